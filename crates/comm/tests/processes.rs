//! Process ranks: the same bits as thread ranks over TCP and over shared memory; deaths, stops, small folders, strangers.
//! Most worlds here are made by threads of this process, which share nothing but their sockets and rings; those that
//! are killed are processes of their own: this test binary, started again with a role.

#![allow(clippy::unwrap_used)] // helpers of tests

mod common;

use std::io::Write;
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::*;
use ferrotron_comm::store::{Rendezvous, RendezvousOptions, StoreLimits, StoreServer};
use ferrotron_comm::{Fabric, Options, P2p, ProcessOptions, ProcessWorld, ReduceOp, Transport};
use ferrotron_cpu::StreamMode;
use ferrotron_device::DType;

fn meet(rank: usize, world: usize, port: u16) -> Rendezvous {
    Rendezvous::join(RendezvousOptions {
        rank,
        world,
        host: "127.0.0.1".into(),
        port,
        served: true,
        run: "test".into(),
        timeout: Duration::from_secs(20),
        tell_every: Duration::from_secs(5),
        notify: Arc::new(|_| {}),
    })
    .unwrap()
}

fn options(transport: Transport) -> ProcessOptions {
    let comm = Options { timeout: Duration::from_secs(20), ..Options::default() };
    ProcessOptions { comm, transport, ..ProcessOptions::default() }
}

/// One world, a thread a rank.
fn worlds<T: Send>(size: usize, options: &ProcessOptions, body: impl Fn(ProcessWorld) -> T + Sync) -> Vec<T> {
    let store = StoreServer::start(0, StoreLimits::default()).unwrap();
    on_threads(size, |r| body(ProcessWorld::connect(&meet(r, size, store.port()), options).unwrap()))
}

#[test]
fn the_same_bits_over_tcp_and_shared_memory_as_by_threads() {
    // Small rings: messages go in many parts.
    for (transport, ring) in [(Transport::Tcp, 0), (Transport::SharedMemory, 4096), (Transport::Auto, 64 << 10)] {
        for size in [1, 2, 3, 4, 8] {
            let run = u64::from(size % 2 == 1);
            let o = ProcessOptions { shm_ring: ring, ..options(transport) };
            let got = worlds(size, &o, |w| {
                assert_eq!(w.notices(), [""; 0]);
                let peer = (w.rank() + 1) % size;
                assert_eq!(w.shares_memory_with(peer), transport != Transport::Tcp && size > 1);
                program(&w, &Place::new(streams(run, w.rank())))
            });
            for (r, got) in got.iter().enumerate() {
                assert_same(got, &expected(r, size), &format!("rank {r} of {size}, {transport:?}"));
            }
        }
    }
}

#[test]
fn long_tensors_go_in_pieces() {
    for transport in [Transport::Tcp, Transport::SharedMemory] {
        // More than a piece for each owner, and not a multiple of anything.
        let n = 3 * (1 << 18) + 12_345;
        let got = worlds(2, &options(transport), |w| {
            let place = Place::new(StreamMode::Inline);
            let g = w.group(&place.device, "dp", "grads", &[0, 1]).unwrap();
            let mine = values(DType::F32, w.rank(), n);
            let t = g.all_reduce(&place.home, place.tensor(DType::F32, &mine), ReduceOp::Sum).unwrap().wait();
            let b = g.broadcast(&place.home, place.tensor(DType::F32, &mine), 1).unwrap().wait();
            let out = place.pool.alloc(DType::F32, [2 * n]).unwrap();
            let a = g.all_gather(&place.home, place.tensor(DType::F32, &mine), out).unwrap().wait();
            let half = place.pool.alloc(DType::F32, [n / 2]).unwrap();
            let x = place.tensor(DType::F32, &mine[..n / 2 * 2]);
            let s = g.reduce_scatter(&place.home, x, half).unwrap().wait();
            [t, b, a, s].map(|t| place.bytes(&t))
        });
        let v = [0, 1].map(|r| values(DType::F32, r, n));
        let sum: Vec<f32> = v[0].iter().zip(&v[1]).map(|(a, b)| a + b).collect();
        let bytes = |v: &[f32]| v.iter().flat_map(|x| x.to_ne_bytes()).collect::<Vec<u8>>();
        for (r, got) in got.into_iter().enumerate() {
            let want = [bytes(&sum), bytes(&v[1]), bytes(&v.concat()), bytes(&sum[r * (n / 2)..][..n / 2])];
            assert!(got == want, "rank {r}, {transport:?}");
        }
    }
}

#[test]
fn checked_ranks_and_aborts() {
    for transport in [Transport::Tcp, Transport::SharedMemory] {
        let mut o = options(transport);
        o.comm.checked = true;
        let got = worlds(3, &o, |w| program(&w, &Place::new(streams(1, w.rank()))));
        for (r, got) in got.iter().enumerate() {
            assert_same(got, &expected(r, 3), &format!("checked rank {r}, {transport:?}"));
        }
        let errors = worlds(2, &o, |w| {
            let place = Place::new(StreamMode::Inline);
            let g = w.group(&place.device, "tp", "x", &[0, 1]).unwrap();
            let t = place.tensor(DType::F32, &vec![1.0; 8 + w.rank()]);
            g.all_reduce(&place.home, t, ReduceOp::Sum).err().unwrap().to_string()
        });
        for e in errors {
            assert!(e.contains("all_reduce of 8 F32") && e.contains("all_reduce of 9 F32"), "{e}");
            assert_eq!(e.matches("processes.rs:").count(), 2, "{e}");
        }
        let began = Instant::now();
        let errors = worlds(3, &options(transport), |w| {
            let place = Place::new(StreamMode::Inline);
            let g = w.group(&place.device, "dp", "x", &[0, 1, 2]).unwrap();
            if w.rank() == 1 {
                std::thread::sleep(Duration::from_millis(100));
                w.abort("rank 1: the disk is full");
            }
            g.barrier().unwrap_err().to_string()
        });
        assert!(errors.iter().all(|e| e == "aborted: rank 1: the disk is full"), "{errors:?}");
        assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    }
}

#[test]
fn unchecked_differences_and_late_ranks_are_reported() {
    let errors = worlds(2, &options(Transport::Tcp), |w| {
        let place = Place::new(StreamMode::Inline);
        let g = w.group(&place.device, "tp", "x", &[0, 1]).unwrap();
        let t = place.tensor(DType::F32, &[1.0; 8]);
        let pending = match w.rank() {
            0 => g.all_reduce(&place.home, t, ReduceOp::Sum),
            _ => g.broadcast(&place.home, t, 0),
        };
        pending.err().unwrap().to_string()
    });
    assert!(errors[1].contains("rank 0 calls #1 all_reduce of 8 F32"), "{errors:?}");
    let mut o = options(Transport::Auto);
    o.comm.timeout = Duration::from_millis(300);
    let errors = worlds(3, &o, |w| {
        let place = Place::new(StreamMode::Inline);
        let g = w.group(&place.device, "dp", "x", &[0, 1, 2]).unwrap();
        g.barrier().unwrap();
        if w.rank() == 1 {
            let until = Instant::now() + Duration::from_secs(5);
            while w.failure().is_none() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(10));
            }
            return w.failure().unwrap();
        }
        g.all_reduce(&place.home, place.tensor(DType::F32, &[1.0; 8]), ReduceOp::Sum).err().unwrap().to_string()
    });
    for e in errors {
        assert!(e.contains("in vain for 1 of 3 ranks: missing [1]"), "{e}");
        assert!(e.contains("waits in no collective: it is late"), "{e}");
        assert!(e.contains("rank 1: last 1 collectives:\n  1. dp #1 barrier"), "{e}");
        assert!(e.contains("dp #1 all_reduce of 8 F32 at crates/comm/tests/processes.rs:"), "{e}");
    }
}

#[test]
fn what_was_sent_before_leaving_still_arrives() {
    for transport in [Transport::Tcp, Transport::SharedMemory] {
        let n = 300_000;
        let got = worlds(2, &options(transport), |w| {
            let place = Place::new(StreamMode::Inline);
            let g = w.group(&place.device, "pp", "x", &[0, 1]).unwrap();
            let t = place.tensor(DType::F32, &values(DType::F32, w.rank(), n));
            if w.rank() == 0 {
                g.exchange(&place.home, vec![P2p::Send(t, 1)]).unwrap().pop().unwrap().wait();
                return vec![];
            }
            std::thread::sleep(Duration::from_millis(150));
            let t = g.exchange(&place.home, vec![P2p::Recv(t, 0)]).unwrap().pop().unwrap().wait();
            let e = g.exchange(&place.home, vec![P2p::Recv(t.clone(), 0)]).err().unwrap().to_string();
            assert!(e.contains("rank 0") && e.contains("has ended, and this rank still needs it"), "{e}");
            place.bytes(&t)
        });
        let want: Vec<u8> = values(DType::F32, 0, n).iter().flat_map(|x| x.to_ne_bytes()).collect();
        assert!(got[1] == want, "{transport:?}");
    }
}

#[test]
fn no_room_for_shared_memory_means_tcp_with_a_notice() {
    let big = ProcessOptions { shm_ring: 1 << 50, ..options(Transport::Auto) };
    for o in [big.clone(), ProcessOptions { shm_folder: "/nonexistent".into(), ..options(Transport::Auto) }] {
        let notices = worlds(2, &o, |w| {
            assert!(!w.shares_memory_with(1 - w.rank()));
            let place = Place::new(StreamMode::Inline);
            let g = w.group(&place.device, "dp", "x", &[0, 1]).unwrap();
            g.barrier().unwrap();
            w.notices().to_vec()
        });
        assert!(notices.iter().all(|n| n.len() == 1 && n[0].contains("using TCP instead")), "{notices:?}");
    }
    let store = StoreServer::start(0, StoreLimits::default()).unwrap();
    let must = ProcessOptions { transport: Transport::SharedMemory, ..big };
    let errors = on_threads(2, |r| {
        let e = ProcessWorld::connect(&meet(r, 2, store.port()), &must);
        e.err().unwrap().to_string()
    });
    assert!(errors.iter().all(|e| e.contains("too small") && e.contains("--shm-size")), "{errors:?}");
}

#[test]
fn interfaces_are_chosen_and_strangers_refused() {
    let store = StoreServer::start(0, StoreLimits::default()).unwrap();
    let port = store.port();
    let o = ProcessOptions { interface: Some("nosuch0,127.0.0.1".into()), ..options(Transport::Tcp) };
    on_threads(2, |r| {
        let met = meet(r, 2, port);
        if r == 1 {
            // Knock at rank 0's door first, without the token.
            let at = met.store().get("net/address/0").unwrap();
            let at = String::from_utf8(at).unwrap();
            assert!(at.starts_with("127.0.0.1:"), "{at}");
            TcpStream::connect(at).unwrap().write_all(&[7; 64]).unwrap();
        }
        let w = ProcessWorld::connect(&met, &o).unwrap();
        let place = Place::new(StreamMode::Inline);
        w.group(&place.device, "dp", "x", &[0, 1]).unwrap().barrier().unwrap();
    });
    let o = ProcessOptions { interface: Some("nosuch0".into()), ..o };
    let lone = StoreServer::start(0, StoreLimits::default()).unwrap();
    let e = ProcessWorld::connect(&meet(0, 1, lone.port()), &o).err().unwrap().to_string();
    assert!(e.contains("no interface or address nosuch0 here; there are ") && e.contains("lo 127.0.0.1"), "{e}");
}

// Ranks that are killed: processes.

const ROLE: &str = "FERROTRON_COMM_TEST_RANK";

/// The body of a rank process; as a test of its own it has no role and nothing to do.
#[test]
fn rank_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let mut parts = role.split(' ');
    let mut number = || parts.next().unwrap().parse::<u64>().unwrap();
    let (rank, size, port, timeout_ms) = (number() as usize, number() as usize, number() as u16, number());
    let transport = if number() == 0 { Transport::Tcp } else { Transport::SharedMemory };
    let mut o = options(transport);
    o.comm.timeout = Duration::from_millis(timeout_ms);
    let w = ProcessWorld::connect(&meet(rank, size, port), &o).unwrap();
    let place = Place::new(StreamMode::Inline);
    let everyone: Vec<usize> = (0..size).collect();
    let g = w.group(&place.device, "dp", "grads", &everyone).unwrap();
    let n = 100_000;
    for step in 0.. {
        let t = place.tensor(DType::F32, &vec![1.0; n]);
        match g.all_reduce(&place.home, t, ReduceOp::Sum) {
            Ok(p) => drop(p.wait()),
            Err(e) => {
                // One line on the error stream, so that the parent can read it; then a failure.
                eprintln!("RANK {rank}: {}", e.to_string().replace('\n', " | "));
                std::process::exit(3);
            }
        }
        if step == 5 {
            eprintln!("RANK {rank} runs");
        }
    }
}

struct Ranks(Vec<Child>);

impl Drop for Ranks {
    fn drop(&mut self) {
        for c in &mut self.0 {
            let _ = c.kill();
            let _ = c.wait();
        }
    }
}

/// True when a process has a file of /dev/shm mapped.
fn maps_shared_memory(c: &Child) -> bool {
    std::fs::read_to_string(format!("/proc/{}/maps", c.id())).unwrap().contains(" /dev/shm/")
}

/// Files of /dev/shm that this user could have left there.
fn shared_files() -> Vec<PathBuf> {
    let files = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    files.map(|e| e.path()).filter(|p| p.to_string_lossy().contains("ferrotron")).collect()
}

fn signal(c: &Child, signal: i32) {
    // SAFETY: a signal to a child of this process.
    assert_eq!(unsafe { libc::kill(c.id() as i32, signal) }, 0);
}

/// Starts `size` ranks, waits until they run, does `harm`; gives what the survivors said, and in which time.
fn harmed(size: usize, transport: u8, timeout_ms: u64, victim: usize, harm: i32) -> (Vec<String>, Duration) {
    use std::io::{BufRead, BufReader};
    let store = StoreServer::start(0, StoreLimits::default()).unwrap();
    let exe = std::env::current_exe().unwrap();
    let mut ranks = Ranks(vec![]);
    for r in 0..size {
        let role = format!("{r} {size} {} {timeout_ms} {transport}", store.port());
        let mut c = Command::new(&exe);
        c.args(["--exact", "rank_process", "--nocapture"]).env(ROLE, role).stdout(Stdio::null()).stderr(Stdio::piped());
        ranks.0.push(c.spawn().unwrap());
    }
    let mut lines: Vec<_> =
        ranks.0.iter_mut().map(|c| BufReader::new(c.stderr.take().unwrap()).lines().map_while(Result::ok)).collect();
    for (r, l) in lines.iter_mut().enumerate() {
        assert!(l.any(|l| l == format!("RANK {r} runs")), "rank {r} did not start");
    }
    assert!(ranks.0.iter().all(|c| maps_shared_memory(c) == (transport == 1)));
    assert_eq!(shared_files(), [""; 0].map(PathBuf::from), "the file has no name");
    signal(&ranks.0[victim], harm);
    let began = Instant::now();
    let mut said = vec![];
    for r in (0..size).filter(|r| *r != victim) {
        said.push(lines[r].find(|l| l.starts_with(&format!("RANK {r}: "))).unwrap_or_default());
        assert_eq!(ranks.0[r].wait().unwrap().code(), Some(3), "rank {r}");
    }
    (said, began.elapsed())
}

#[test]
fn a_killed_rank_ends_all_and_is_named() {
    for transport in 0..2 {
        let (said, took) = harmed(3, transport, 60_000, 1, libc::SIGKILL);
        assert!(said.iter().all(|s| s.contains("rank 1 (") && s.contains("has gone")), "{said:?}");
        assert!(took < Duration::from_secs(5), "{took:?}");
    }
}

#[test]
fn a_stopped_rank_is_named_at_the_deadline() {
    for transport in 0..2 {
        let (said, took) = harmed(3, transport, 700, 2, libc::SIGSTOP);
        assert!(said.iter().any(|s| s.contains("missing [2]") && s.contains("does not answer")), "{said:?}");
        assert!(took < Duration::from_secs(5), "{took:?}");
    }
}
