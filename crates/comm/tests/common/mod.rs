//! One program of every collective, run on any fabric, and what it must give: plain loops in the order of ranks.

#![allow(dead_code, clippy::unwrap_used)] // each test binary uses its part

use std::sync::Arc;

use ferrotron_base::philox::mix;
use ferrotron_comm::{Communicator, Fabric, P2p, ReduceOp};
use ferrotron_cpu::{CpuConfig, CpuDevice, StreamMode};
use ferrotron_device::host::{decode, encode, write_f32};
use ferrotron_device::{DType, Device, Pool, Stream, StreamRole, Tensor};

pub const SIZES: [usize; 6] = [0, 1, 2, 7, 1023, 4099];
pub const DTYPES: [DType; 3] = [DType::F32, DType::BF16, DType::F16];

/// A rank's device and pool.
pub struct Place {
    pub device: Arc<dyn Device>,
    pub home: Stream,
    pub pool: Arc<Pool>,
}

impl Place {
    pub fn new(streams: StreamMode) -> Place {
        let device: Arc<dyn Device> = Arc::new(CpuDevice::new(CpuConfig { threads: 1, streams }).unwrap());
        let home = device.stream(StreamRole::Compute).unwrap();
        // Poisoned, so that a buffer that is given back too early shows.
        let pool = Pool::new(device.clone(), home.clone(), 64 << 20, true).unwrap();
        Place { device, home, pool }
    }

    pub fn tensor(&self, dtype: DType, values: &[f32]) -> Tensor {
        let mut t = self.pool.alloc(dtype, [values.len()]).unwrap();
        write_f32(&*self.device, &self.home, values, &mut t).unwrap();
        t
    }

    pub fn bytes(&self, t: &Tensor) -> Vec<u8> {
        let mut out = vec![0; t.bytes()];
        self.device.download(&self.home, t, &mut out).unwrap();
        out
    }
}

/// The streams of rank `rank` in test run `run`: inline at 0, else chaotic.
pub fn streams(run: u64, rank: usize) -> StreamMode {
    if run == 0 { StreamMode::Inline } else { StreamMode::Chaos { seed: mix(run, rank as u64) } }
}

/// What rank `rank` holds, exact in every dtype that tests use after rounding.
pub fn values(dtype: DType, rank: usize, n: usize) -> Vec<f32> {
    let v = |i: usize| (mix(rank as u64 + 1, i as u64) >> 40) as f32 / (1u32 << 23) as f32 - 1.0;
    let all: Vec<f32> = (0..n).map(v).collect();
    decode(&encode(&all, dtype).unwrap(), dtype).unwrap()
}

pub type Results = Vec<(String, Vec<u8>)>;

/// Elements that rank `from` sends to rank `to` in the all-to-all, none for some.
fn part(n: usize, from: usize, to: usize) -> usize {
    if (from + to).is_multiple_of(3) { 0 } else { n / 3 + 2 * from + to }
}

/// Runs every collective on the group of all ranks.
pub fn program(fabric: &dyn Fabric, place: &Place) -> Results {
    let (rank, size) = (fabric.rank(), fabric.size());
    let everyone: Vec<usize> = (0..size).collect();
    let g = fabric.group(&place.device, "all", "test", &everyone).unwrap();
    let mut out = Results::new();
    for dtype in DTYPES {
        for n in SIZES {
            sized(&*g, place, dtype, n, &mut out);
        }
    }
    g.barrier().unwrap();
    // A second group in the opposite order: the last rank is first.
    let reversed: Vec<usize> = everyone.iter().rev().copied().collect();
    let r = fabric.group(&place.device, "reversed", "test", &reversed).unwrap();
    let t = place.tensor(DType::F32, &values(DType::F32, rank, 33));
    let t = r.all_reduce(&place.home, t, ReduceOp::Sum).unwrap().wait();
    out.push(("reversed".into(), place.bytes(&t)));
    g.barrier().unwrap();
    out
}

fn sized(g: &dyn Communicator, place: &Place, dtype: DType, n: usize, out: &mut Results) {
    let (rank, size, home) = (g.rank(), g.size(), &place.home);
    let mut push = |what: &str, t: &Tensor| out.push((format!("{what} {dtype} {n}"), place.bytes(t)));
    let mine = |n| values(dtype, rank, n);
    let alloc = |n: usize| place.pool.alloc(dtype, [n]).unwrap();

    for op in [ReduceOp::Sum, ReduceOp::Max] {
        let t = g.all_reduce(home, place.tensor(dtype, &mine(n)), op).unwrap().wait();
        push(&format!("all_reduce {op:?}"), &t);
    }
    let x = place.tensor(dtype, &mine(n * size));
    push("reduce_scatter", &g.reduce_scatter(home, x.clone(), alloc(n)).unwrap().wait());
    let own = x.view(rank * n, [n]);
    push("reduce_scatter in place", &g.reduce_scatter(home, x, own).unwrap().wait());
    push("all_gather", &g.all_gather(home, place.tensor(dtype, &mine(n)), alloc(n * size)).unwrap().wait());
    let all = place.tensor(dtype, &vec![f32::NAN; n * size]);
    let mut own = all.view(rank * n, [n]);
    write_f32(&*place.device, home, &mine(n), &mut own).unwrap();
    push("all_gather in place", &g.all_gather(home, own, all).unwrap().wait());
    let counts: Vec<usize> = (0..size).map(|r| if r == 1 { 0 } else { n + r }).collect();
    let x = place.tensor(dtype, &mine(counts[rank]));
    push("all_gather_v", &g.all_gather_v(home, x, alloc(counts.iter().sum()), &counts).unwrap().wait());
    for root in [0, size - 1] {
        push(&format!("broadcast {root}"), &g.broadcast(home, place.tensor(dtype, &mine(n)), root).unwrap().wait());
    }
    let send: Vec<usize> = (0..size).map(|to| part(n, rank, to)).collect();
    let recv: Vec<usize> = (0..size).map(|from| part(n, from, rank)).collect();
    let x = place.tensor(dtype, &mine(send.iter().sum()));
    push("all_to_all_v", &g.all_to_all_v(home, x, &send, alloc(recv.iter().sum()), &recv).unwrap().wait());
    // Everyone sends to everyone, twice; receives are listed first, which must not deadlock.
    let peers: Vec<usize> = (0..size).filter(|r| *r != rank).collect();
    let mut ops: Vec<P2p> = vec![];
    for p in &peers {
        ops.extend([P2p::Recv(alloc(n), *p), P2p::Recv(alloc(n + 1), *p)]);
    }
    for p in &peers {
        ops.push(P2p::Send(place.tensor(dtype, &mine(n)), *p));
        ops.push(P2p::Send(place.tensor(dtype, &mine(n + 1)), *p));
    }
    for (i, p) in g.exchange(home, ops).unwrap().into_iter().enumerate() {
        let t = p.wait();
        if i < 2 * peers.len() {
            push(&format!("message {i}"), &t);
        }
    }
}

/// What `program` gives on rank `rank` of `size`.
pub fn expected(rank: usize, size: usize) -> Results {
    let mut out = Results::new();
    for dtype in DTYPES {
        for n in SIZES {
            let mut push = |what: &str, v: &[f32]| {
                out.push((format!("{what} {dtype} {n}"), encode(v, dtype).unwrap()));
            };
            let all = |n: usize| -> Vec<Vec<f32>> { (0..size).map(|r| values(dtype, r, n)).collect() };
            push("all_reduce Sum", &sum(&all(n), dtype));
            push("all_reduce Max", &fold(&all(n), f32::max));
            let scattered = sum(&all(n * size), dtype)[rank * n..][..n].to_vec();
            push("reduce_scatter", &scattered);
            push("reduce_scatter in place", &scattered);
            push("all_gather", &all(n).concat());
            push("all_gather in place", &all(n).concat());
            let given = |r: usize| if r == 1 { vec![] } else { values(dtype, r, n + r) };
            push("all_gather_v", &(0..size).flat_map(given).collect::<Vec<_>>());
            for root in [0, size - 1] {
                push(&format!("broadcast {root}"), &values(dtype, root, n));
            }
            let from = |r: usize| {
                let start: usize = (0..rank).map(|to| part(n, r, to)).sum();
                let total: usize = (0..size).map(|to| part(n, r, to)).sum();
                values(dtype, r, total)[start..][..part(n, r, rank)].to_vec()
            };
            push("all_to_all_v", &(0..size).flat_map(from).collect::<Vec<_>>());
            for (i, p) in (0..size).filter(|r| *r != rank).enumerate() {
                push(&format!("message {}", 2 * i), &values(dtype, p, n));
                push(&format!("message {}", 2 * i + 1), &values(dtype, p, n + 1));
            }
        }
    }
    let mut reversed: Vec<Vec<f32>> = (0..size).map(|r| values(DType::F32, r, 33)).collect();
    reversed.reverse();
    out.push(("reversed".into(), encode(&sum(&reversed, DType::F32), DType::F32).unwrap()));
    out
}

fn fold(ranks: &[Vec<f32>], f: impl Fn(f32, f32) -> f32) -> Vec<f32> {
    (0..ranks[0].len()).map(|i| ranks.iter().map(|v| v[i]).reduce(&f).unwrap()).collect()
}

/// Sum in f32 in the order of ranks. Checked against f64: each of at most 7 additions rounds partial sums below 8 by at
/// most half a unit in the last place, 2^-22; together less than 2e-6.
fn sum(ranks: &[Vec<f32>], dtype: DType) -> Vec<f32> {
    let got = fold(ranks, |a, b| a + b);
    for (i, g) in got.iter().enumerate() {
        let exact: f64 = ranks.iter().map(|v| f64::from(v[i])).sum();
        assert!((f64::from(*g) - exact).abs() < 2e-6, "{dtype} {i}: {g} {exact}");
    }
    got
}

/// Compares results and names the first that differs.
pub fn assert_same(got: &Results, want: &Results, who: &str) {
    assert_eq!(got.len(), want.len(), "{who}");
    for ((a, x), (b, y)) in got.iter().zip(want) {
        assert_eq!(a, b, "{who}");
        assert!(x == y, "{who}: {a}: {:?} not {:?}", &x[..x.len().min(32)], &y[..y.len().min(32)]);
    }
}

/// Runs `body` on one thread a rank and gives what each returned, in order; fails if one panicked.
pub fn on_threads<T: Send>(size: usize, body: impl Fn(usize) -> T + Sync) -> Vec<T> {
    std::thread::scope(|s| {
        let threads: Vec<_> = (0..size)
            .map(|r| {
                s.spawn({
                    let body = &body;
                    move || body(r)
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}
