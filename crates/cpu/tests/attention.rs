//! Attention, forward and backward, against plain f64 loops over the contract's formulas.

mod common;

use common::{Rig, numbers, rounding};
use ferrotron_base::philox::{drop_threshold, philox4x32};
use ferrotron_cpu::{Isa, StreamMode};
use ferrotron_device::ops::attention::AttentionDims;
use ferrotron_device::ops::{AttentionArgs, AttentionDrop, DropSite};
use ferrotron_device::{DType, Error};

/// Sequences as (query rows, key rows), and what attention does with them.
#[derive(Clone, Copy, Debug)]
struct Case {
    lens: &'static [(usize, usize)],
    heads: usize,
    groups: usize,
    d: usize,
    causal: bool,
    window: Option<usize>,
    dtype: DType,
    p: f32,
}

const PLAIN: Case =
    Case { lens: &[(7, 7)], heads: 2, groups: 2, d: 8, causal: true, window: None, dtype: DType::F32, p: 0.0 };

/// o, lse, dq, dk, dv.
type Results = [Vec<f32>; 5];

struct Inputs {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    dout: Vec<f32>,
    cu_q: Vec<i32>,
    cu_k: Vec<i32>,
    /// Of each query row.
    sample: Vec<i32>,
    offset_q: Vec<i32>,
    offset_k: Vec<i32>,
    dims: AttentionDims,
    site: DropSite,
}

impl Inputs {
    fn of(c: &Case) -> Inputs {
        let (tq, tk) = c.lens.iter().fold((0, 0), |(a, b), l| (a + l.0, b + l.1));
        let (mut cu_q, mut cu_k, mut sample, mut offset_q, mut offset_k) = (vec![0], vec![0], vec![], vec![], vec![]);
        for (i, &(lq, lk)) in c.lens.iter().enumerate() {
            cu_q.push(cu_q[i] + lq as i32);
            cu_k.push(cu_k[i] + lk as i32);
            sample.extend(vec![40 + i as i32; lq]);
            offset_q.extend((0..lq).map(|r| (r + lk) as i32 - lq as i32));
            offset_k.extend(0..lk as i32);
        }
        let max_len = c.lens.iter().map(|l| l.0.max(l.1)).max().unwrap_or(0);
        let dims = AttentionDims {
            heads: c.heads,
            groups: c.groups,
            head_dim: c.d,
            causal: c.causal,
            window: c.window,
            scale: 1.0 / (c.d as f32).sqrt(),
            max_len,
            first_head: 3,
        };
        Inputs {
            q: numbers(tq * c.heads * c.d, 1).iter().map(|x| 2.0 * x).collect(),
            k: numbers(tk * c.groups * c.d, 2),
            v: numbers(tk * c.groups * c.d, 3),
            dout: numbers(tq * c.heads * c.d, 4),
            cu_q,
            cu_k,
            sample,
            offset_q,
            offset_k,
            dims,
            site: DropSite { p: c.p, key: 0x1234_5678_9abc_def0 },
        }
    }
}

/// The contract in f64, element by element.
fn reference(c: &Case, x: &Inputs) -> [Vec<f64>; 5] {
    let (n, g, d) = (c.heads, c.groups, c.d);
    let (tq, scale) = (x.sample.len(), f64::from(x.dims.scale));
    let mut o = vec![0.0; x.q.len()];
    let mut lse = vec![f64::NEG_INFINITY; n * tq];
    let (mut dq, mut dk, mut dv) = (vec![0.0; x.q.len()], vec![0.0; x.k.len()], vec![0.0; x.v.len()]);
    for (i, &(lq, lk)) in c.lens.iter().enumerate() {
        let (q0, k0) = (x.cu_q[i] as usize, x.cu_k[i] as usize);
        for h in 0..n {
            for r in 0..lq {
                let t = q0 + r;
                let at = |row: usize, heads: usize, head: usize| (row * heads + head) * d;
                let (qi, p) = (at(t, n, h), r as i64 + lk as i64 - lq as i64);
                let seen: Vec<usize> = (0..lk)
                    .filter(|&j| !c.causal || j as i64 <= p)
                    .filter(|&j| c.window.is_none_or(|w| j as i128 > i128::from(p) - w as i128))
                    .collect();
                if seen.is_empty() {
                    continue;
                }
                let dot = |a: &[f32], ai: usize, b: &[f32], bi: usize| -> f64 {
                    (0..d).map(|e| f64::from(a[ai + e]) * f64::from(b[bi + e])).sum()
                };
                let kv = |j: usize| at(k0 + j, g, h / (n / g));
                let scores: Vec<f64> = seen.iter().map(|&j| scale * dot(&x.q, qi, &x.k, kv(j))).collect();
                let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let sum: f64 = scores.iter().map(|s| (s - max).exp()).sum();
                lse[h * tq + t] = max + sum.ln();
                let probability = |s: f64| (s - lse[h * tq + t]).exp();
                let keep = |j: usize| {
                    let counter =
                        [x.sample[t] as u32, x.offset_q[t] as u32, x.offset_k[k0 + j] as u32, (3 + h) as u32 + 1];
                    let dropped = philox4x32(x.site.key, counter)[0] < drop_threshold(c.p);
                    if dropped { 0.0 } else { 1.0 / (1.0 - f64::from(c.p)) }
                };
                for (&j, &s) in seen.iter().zip(&scores) {
                    for e in 0..d {
                        o[qi + e] += probability(s) * keep(j) * f64::from(x.v[kv(j) + e]);
                    }
                }
                let delta: f64 = (0..d).map(|e| o[qi + e] * f64::from(x.dout[qi + e])).sum();
                for (&j, &s) in seen.iter().zip(&scores) {
                    let ds = probability(s) * (keep(j) * dot(&x.dout, qi, &x.v, kv(j)) - delta);
                    for e in 0..d {
                        dq[qi + e] += scale * ds * f64::from(x.k[kv(j) + e]);
                        dk[kv(j) + e] += scale * ds * f64::from(x.q[qi + e]);
                        dv[kv(j) + e] += probability(s) * keep(j) * f64::from(x.dout[qi + e]);
                    }
                }
            }
        }
    }
    [o, lse, dq, dk, dv]
}

fn run(rig: &Rig, c: &Case, x: &Inputs) -> Results {
    let (n, g, d) = (c.heads, c.groups, c.d);
    let (tq, tk) = (x.sample.len(), x.offset_k.len());
    let nan = |n: usize| vec![f32::NAN; n];
    let q = rig.tensor(c.dtype, [tq, n, d], &x.q);
    let (k, v) = (rig.tensor(c.dtype, [tk, g, d], &x.k), rig.tensor(c.dtype, [tk, g, d], &x.v));
    let dout = rig.tensor(c.dtype, [tq, n, d], &x.dout);
    let mut o = rig.tensor(c.dtype, [tq, n, d], &nan(tq * n * d));
    let mut dq = rig.tensor(c.dtype, [tq, n, d], &nan(tq * n * d));
    let mut lse = rig.tensor(DType::F32, [n, tq], &nan(n * tq));
    let mut delta = rig.tensor(DType::F32, [n, tq], &nan(n * tq));
    let mut dk = rig.tensor(c.dtype, [tk, g, d], &nan(tk * g * d));
    let mut dv = rig.tensor(c.dtype, [tk, g, d], &nan(tk * g * d));
    let (sample, offset_q, offset_k) = (rig.ints(&x.sample), rig.ints(&x.offset_q), rig.ints(&x.offset_k));
    let (cu_q, cu_k) = (rig.ints(&x.cu_q), rig.ints(&x.cu_k));
    let drop = AttentionDrop { site: x.site, sample: &sample, offset_q: &offset_q, offset_k: &offset_k };
    let drop = (c.p > 0.0).then_some(drop);
    let args = AttentionArgs { dims: x.dims, q: &q, k: &k, v: &v, cu_q: &cu_q, cu_k: &cu_k, host_cu: None, drop };
    let ops = rig.dev.ops();
    ops.attention(&rig.s, args, &mut o, &mut lse).expect("forward");
    ops.attention_backward(&rig.s, args, &o, &lse, &dout, &mut delta, &mut dq, &mut dk, &mut dv).expect("backward");
    [&o, &lse, &dq, &dk, &dv].map(|t| rig.read(t))
}

/// Runs a case on a device and compares it.
fn check(rig: &Rig, c: Case) -> Results {
    let x = Inputs::of(&c);
    let (got, want) = (run(rig, &c, &x), reference(&c, &x));
    for (name, (got, want)) in ["o", "lse", "dq", "dk", "dv"].iter().zip(got.iter().zip(&want)) {
        let size = want.iter().filter(|w| w.is_finite()).fold(1e-3f64, |m, w| m.max(w.abs()));
        // Relative to the largest element: f32 sums of a few hundred terms and an exp of 1.5 units; o in 16 bits is
        // rounded once, and its rounding enters the gradients through rowsum(do o).
        let bound = size * (3e-6 + if *name == "lse" { 0.0 } else { 2.0 * rounding(c.dtype) });
        for (i, (&g, &w)) in got.iter().zip(want).enumerate() {
            let near = f64::from(g) == w || (f64::from(g) - w).abs() <= bound;
            assert!(near, "{c:?} on {}: {name}[{i}] = {g}, not {w}", rig.dev.info().model);
        }
    }
    got
}

fn everywhere(cases: &[Case]) {
    for &isa in Isa::available() {
        let rig = Rig::new(2, StreamMode::Inline, isa);
        for &c in cases {
            check(&rig, c);
        }
    }
}

#[test]
fn masks_and_packed_sequences() {
    let lens: &[(usize, usize)] = &[(1, 1), (40, 40), (0, 0), (13, 13)];
    // queries at the end of longer keys, as context parallel has them; and more queries than keys: some see nothing
    let uneven: &[(usize, usize)] = &[(10, 33), (20, 5), (3, 0), (1, 200)];
    for lens in [lens, uneven] {
        for causal in [true, false] {
            for window in [None, Some(1), Some(9), Some(usize::MAX)] {
                everywhere(&[Case { lens, causal, window, ..PLAIN }]);
            }
        }
    }
}

#[test]
fn heads_groups_and_head_dims() {
    for (heads, groups, d) in [(4, 1, 16), (6, 2, 7), (1, 1, 1), (2, 1, 64), (2, 2, 65), (1, 1, 128), (1, 1, 255)] {
        everywhere(&[Case { lens: &[(21, 21)], heads, groups, d, ..PLAIN }]);
    }
}

#[test]
fn storage_dtypes() {
    for dtype in [DType::BF16, DType::F16] {
        everywhere(&[Case { lens: &[(50, 50), (7, 7)], d: 24, dtype, p: 0.1, ..PLAIN }]);
    }
}

#[test]
fn several_tiles_of_queries_and_keys() {
    for (lens, d, window) in [
        (&[(300, 450)], 16, None),
        (&[(450, 450)], 64, None),
        (&[(450, 450)], 16, Some(100)),
        (&[(130, 290)], 160, None),
    ] {
        everywhere(&[Case { lens, heads: 1, groups: 1, d, window, ..PLAIN }]);
    }
}

#[test]
fn dropout_is_that_of_the_contract() {
    everywhere(&[
        Case { lens: &[(60, 60), (9, 30)], heads: 2, groups: 1, p: 0.5, ..PLAIN },
        Case { lens: &[(20, 20)], causal: false, window: Some(4), p: 0.2, ..PLAIN },
    ]);
}

/// The same bits whatever the number of threads, and on streams that run late.
#[test]
fn bits_do_not_depend_on_threads_or_streams() {
    let chaos = StreamMode::Chaos { seed: 11 };
    let c = Case { lens: &[(200, 200), (30, 70)], heads: 4, groups: 2, d: 20, p: 0.1, ..PLAIN };
    for &isa in Isa::available() {
        let one = check(&Rig::new(1, StreamMode::Inline, isa), c);
        for (threads, streams) in [(2, StreamMode::Inline), (3, StreamMode::Inline), (2, chaos)] {
            assert_eq!(run(&Rig::new(threads, streams, isa), &c, &Inputs::of(&c)), one);
        }
    }
}

#[test]
fn bad_sequences_are_named() {
    let rig = Rig::new(1, StreamMode::Inline, Isa::Portable);
    let x = rig.tensor(DType::F32, [4, 1, 8], &[0.0; 32]);
    let (mut o, mut lse) = (rig.tensor(DType::F32, [4, 1, 8], &[0.0; 32]), rig.tensor(DType::F32, [1, 4], &[0.0; 4]));
    let (cu, dims) = (rig.ints(&[0, 5]), Inputs::of(&Case { heads: 1, groups: 1, ..PLAIN }).dims);
    let args = AttentionArgs { dims, q: &x, k: &x, v: &x, cu_q: &cu, cu_k: &cu, host_cu: None, drop: None };
    let e = rig.dev.ops().attention(&rig.s, args, &mut o, &mut lse).unwrap_err();
    assert!(matches!(&e, Error::Data(what) if what.contains("from 0 to 4 rows")), "{e}");
}
