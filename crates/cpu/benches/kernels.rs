//! Speed of the kernels on the shapes of a small GPT and of GPT-2 124M, beside what the processor can do at most.
//!
//! `cargo bench -p ferrotron-cpu --bench kernels [-- words that a line must hold]`; OMP_NUM_THREADS sets the threads.
//! A figure is the least time of several runs, as other programs only ever add to it. One thread is timed by its own
//! processor time, which other programs hardly touch; several by the wall clock.

#[path = "../tests/common/mod.rs"]
mod common;

use std::hint::black_box;
use std::time::Instant;

use common::{Rig, numbers};
use ferrotron_cpu::{Isa, StreamMode};
use ferrotron_device::ops::attention::AttentionDims;
use ferrotron_device::ops::{Activation, AdamConfig, AttentionArgs, Gemm};
use ferrotron_device::{DType, Result, Shape, Tensor};

/// Runs of each kernel, and of the peak before it.
const RUNS: usize = 12;

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).filter(|w| !w.starts_with("--")).collect();
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let threads = std::env::var("OMP_NUM_THREADS").ok().and_then(|n| n.parse().ok()).unwrap_or(cores);
    let isa = Isa::detect();
    let bench = Bench { rig: Rig::new(threads, StreamMode::Inline, isa), threads, isa, words, start: Instant::now() };
    println!("{threads} threads, {}\n", isa.name());
    bench.gemm()?;
    bench.attention()?;
    bench.rows()
}

struct Bench {
    rig: Rig,
    threads: usize,
    isa: Isa,
    words: Vec<String>,
    start: Instant,
}

impl Bench {
    fn wants(&self, line: &str) -> bool {
        self.words.iter().all(|w| line.contains(w.as_str()))
    }

    fn tensor(&self, shape: impl Into<Shape>) -> Tensor {
        let shape = shape.into();
        self.rig.tensor(DType::F32, shape, &numbers(shape.numel(), 7))
    }

    /// Least seconds of a run; and GFLOP/s of the peak loop, run between, at best.
    fn time(&self, mut run: impl FnMut() -> Result<()>) -> Result<(f64, f64)> {
        run()?;
        let (mut least, mut peak) = (f64::INFINITY, 0f64);
        for _ in 0..RUNS {
            let start = self.now();
            run()?;
            least = least.min(self.now() - start);
            peak = peak.max(self.peak_gflops());
        }
        Ok((least, peak))
    }

    /// Seconds: of this thread's processor time when it is the only one, else of the wall clock.
    fn now(&self) -> f64 {
        if self.threads > 1 {
            return self.start.elapsed().as_secs_f64();
        }
        let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: writes one timespec.
        unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut t) };
        t.tv_sec as f64 + 1e-9 * t.tv_nsec as f64
    }

    /// GFLOP/s of fused multiply-adds on registers alone, on as many threads.
    fn peak_gflops(&self) -> f64 {
        const TURNS: usize = 100_000;
        let start = self.now();
        let flops: usize = std::thread::scope(|scope| {
            let others: Vec<_> = (1..self.threads).map(|_| scope.spawn(|| registers(self.isa, TURNS))).collect();
            let own = registers(self.isa, TURNS);
            own + others.into_iter().map(|t| t.join().unwrap_or(0)).sum::<usize>()
        });
        flops as f64 / (self.now() - start) / 1e9
    }

    fn report(&self, name: &str, flops: f64, run: impl FnMut() -> Result<()>) -> Result<()> {
        if self.wants(name) {
            let (s, peak) = self.time(run)?;
            let rate = flops / s / 1e9;
            println!("| {name} | {:.2} | {rate:.0} | {peak:.0} | {:.0}% |", 1e3 * s, 100.0 * rate / peak);
        }
        Ok(())
    }

    /// The products of a training step: forward, input gradient, weight gradient.
    fn gemm(&self) -> Result<()> {
        println!("| product (M, N, K) | ms | GFLOP/s | peak | share |\n|---|---|---|---|---|");
        let linear = [(2048, 384, 384), (2048, 1536, 384), (2048, 384, 1536), (2048, 8192, 384), (1024, 2304, 768)];
        for (t, n, k) in linear.into_iter().chain([(1024, 3072, 768), (1024, 768, 3072), (1024, 50304, 768)]) {
            let parts = [
                ("y = x W^T", Gemm::NT, [t, n], k),
                ("dx = dy W", Gemm::NN, [t, k], n),
                ("dW += dy^T x", Gemm::TN_ACC, [n, k], t),
            ];
            let parts = parts.map(|(what, g, c, depth)| (format!("gemm {what} {}, {}, {depth}", c[0], c[1]), g, c));
            if !parts.iter().any(|(name, ..)| self.wants(name)) {
                continue;
            }
            let (x, w, y) = (self.tensor([t, k]), self.tensor([n, k]), self.tensor([t, n]));
            let ops = self.rig.dev.ops();
            for ((name, g, c), [a, b]) in parts.iter().zip([[&x, &w], [&y, &w], [&y, &x]]) {
                let mut c = self.tensor(*c);
                self.report(name, 2.0 * (t * n * k) as f64, || ops.gemm(&self.rig.s, *g, a, b, None, &mut c))?;
            }
        }
        Ok(())
    }

    fn attention(&self) -> Result<()> {
        println!("\n| attention, causal | ms | GFLOP/s | peak | share |\n|---|---|---|---|---|");
        for (batch, len, heads, d) in [(8, 256, 6, 64), (4, 256, 12, 64), (1, 1024, 12, 64), (1, 2048, 16, 128)] {
            let (t, ops) = (batch * len, self.rig.dev.ops());
            let cu: Vec<i32> = (0..=batch).map(|i| (i * len) as i32).collect();
            let cu = self.rig.ints(&cu);
            let [q, k, v, dout] = std::array::from_fn(|_| self.tensor([t, heads, d]));
            let [mut o, mut dq, mut dk, mut dv] = std::array::from_fn(|_| self.tensor([t, heads, d]));
            let (mut lse, mut delta) = (self.tensor([heads, t]), self.tensor([heads, t]));
            let dims = AttentionDims {
                heads,
                groups: heads,
                head_dim: d,
                causal: true,
                window: None,
                scale: 1.0 / (d as f32).sqrt(),
                max_len: len,
                first_head: 0,
            };
            let args = AttentionArgs { dims, q: &q, k: &k, v: &v, cu_q: &cu, cu_k: &cu, host_cu: None, drop: None };
            // Half of each S x S product is seen: 2 forward, 5 backward.
            let product = (batch * heads * len * len * d) as f64;
            let name = format!("{batch} x {len}, {heads} heads of {d}");
            self.report(&format!("attention forward {name}"), 2.0 * product, || {
                ops.attention(&self.rig.s, args, &mut o, &mut lse)
            })?;
            ops.attention(&self.rig.s, args, &mut o, &mut lse)?;
            self.report(&format!("attention backward {name}"), 5.0 * product, || {
                let (delta, dq, dk, dv) = (&mut delta, &mut dq, &mut dk, &mut dv);
                ops.attention_backward(&self.rig.s, args, &o, &lse, &dout, delta, dq, dk, dv)
            })?;
        }
        Ok(())
    }

    /// Kernels that memory bounds: bytes that must be read and written at least, a second.
    fn rows(&self) -> Result<()> {
        println!("\n| row kernel | ms | GB/s |\n|---|---|---|");
        let (t, h) = (2048, 1536);
        let (ops, s) = (self.rig.dev.ops(), &self.rig.s);
        let report = |name: &str, floats: usize, run: &mut dyn FnMut() -> Result<()>| -> Result<()> {
            if self.wants(name) {
                let (seconds, _) = self.time(run)?;
                println!("| {name} | {:.2} | {:.1} |", 1e3 * seconds, 4e-9 * floats as f64 / seconds);
            }
            Ok(())
        };
        let (x, w, b, dy) = (self.tensor([t, h]), self.tensor([h]), self.tensor([h]), self.tensor([t, h]));
        let (mut y, mut dx, mut stats) = (self.tensor([t, h]), self.tensor([t, h]), self.tensor([2, t]));
        let (mut dw, mut db) = (self.tensor([h]), self.tensor([h]));
        report("layer norm 2048, 1536", 2 * t * h, &mut || {
            ops.layer_norm(s, 1e-5, false, &x, &w, &b, &mut y, &mut stats)
        })?;
        report("layer norm backward", 3 * t * h, &mut || {
            ops.layer_norm_backward(s, false, &x, &w, &stats, &dy, &mut dx, Some((&mut dw, &mut db)))
        })?;
        report("GELU tanh", 2 * t * h, &mut || ops.activation(s, Activation::GeluTanh, &x, &mut y))?;
        report("GELU tanh backward", 3 * t * h, &mut || {
            ops.activation_backward(s, Activation::GeluTanh, &x, &dy, &mut dx)
        })?;
        report("add", 3 * t * h, &mut || ops.add(s, &x, &dy, &mut y))?;
        report("column sum", t * h, &mut || ops.column_sum(s, &x, &mut db))?;
        let (r, v) = (128, 50304);
        let (z, mut dz, ones) = (self.tensor([r, v]), self.tensor([r, v]), self.tensor([r]));
        let (labels, one) = (self.rig.ints(&vec![5; r]), self.tensor([1]));
        let [mut max, mut sum, mut target] = std::array::from_fn(|_| self.tensor([r]));
        report("cross-entropy 128, 50304", r * v, &mut || {
            ops.ce_stats(s, &z, &labels, 0, &mut max, &mut sum, &mut target)
        })?;
        report("cross-entropy backward", 2 * r * v, &mut || {
            ops.ce_backward(s, &z, &labels, 0, &ones, &ones, &one, &mut dz)
        })?;
        let p = 8 << 20;
        let (grad, scalars) =
            (self.tensor([p]), self.rig.tensor(DType::F32, [8], &[1e-4, 0.1, 1.0, 0.1, 0.1, 0.0, 0.0, 0.0]));
        let [mut w, mut m, mut v] = std::array::from_fn(|_| self.tensor([p]));
        let adam = AdamConfig { beta1: 0.9, beta2: 0.95, eps: 1e-8, decoupled: true };
        report("AdamW 8 Mi", 7 * p, &mut || {
            ops.adam(s, adam, 1.0, 1.0, &scalars, &grad, &mut w, &mut m, &mut v, None)
        })?;
        let mut out = self.tensor([1]);
        report("sum of squares 8 Mi", p, &mut || ops.sum_squares(s, &grad, &mut out))
    }
}

/// Does fused multiply-adds; gives how many operations (two each).
fn registers(isa: Isa, turns: usize) -> usize {
    match isa {
        #[cfg(all(target_arch = "x86_64", not(ferrotron_portable)))]
        // SAFETY: the processor has these instructions, or its `Isa` would be another.
        Isa::Avx512 => unsafe { x86::avx512(turns) },
        #[cfg(all(target_arch = "x86_64", not(ferrotron_portable)))]
        // SAFETY: as above.
        Isa::Avx2 => unsafe { x86::avx2(turns) },
        _ => {
            let (mut acc, x) = ([[0f32; 4]; 12], black_box([0.5f32; 4]));
            for _ in 0..turns {
                for a in &mut acc {
                    *a = std::array::from_fn(|i| a[i] * x[i] + x[i]);
                }
            }
            black_box(acc);
            turns * 12 * 4 * 2
        }
    }
}

#[cfg(all(target_arch = "x86_64", not(ferrotron_portable)))]
mod x86 {
    use std::arch::x86_64::*;
    use std::hint::black_box;

    /// Chains enough to hide the latency of two units.
    const CHAINS: usize = 12;

    #[target_feature(enable = "avx512f")]
    pub fn avx512(turns: usize) -> usize {
        let x = _mm512_set1_ps(black_box(0.5));
        let mut acc = [x; CHAINS];
        for _ in 0..turns {
            for a in &mut acc {
                *a = _mm512_fmadd_ps(*a, x, x);
            }
        }
        black_box(acc);
        turns * CHAINS * 16 * 2
    }

    #[target_feature(enable = "avx2,fma")]
    pub fn avx2(turns: usize) -> usize {
        let x = _mm256_set1_ps(black_box(0.5));
        let mut acc = [x; CHAINS];
        for _ in 0..turns {
            for a in &mut acc {
                *a = _mm256_fmadd_ps(*a, x, x);
            }
        }
        black_box(acc);
        turns * CHAINS * 8 * 2
    }
}
