//! Matrix products against f64 loops, on every instruction set that this processor has.

mod common;

use common::{Rig, numbers, rounding};
use ferrotron_cpu::{Isa, StreamMode};
use ferrotron_device::DType;
use ferrotron_device::ops::Gemm;

/// Size, product and dtypes of a test case.
#[derive(Clone, Copy, Debug)]
struct Case {
    m: usize,
    n: usize,
    k: usize,
    g: Gemm,
    ab: DType,
    c: DType,
    bias: Option<DType>,
}

/// Runs a case; checks it against f64; gives the result.
fn check(rig: &Rig, case: Case) -> Vec<f32> {
    let Case { m, n, k, g, ab, c: c_dtype, bias } = case;
    let (va, vb, vbias) = (numbers(m * k, 1), numbers(k * n, 2), numbers(n, 3));
    // NaN where C must not be read
    let vc = if g.beta == 0.0 { vec![f32::NAN; m * n] } else { numbers(m * n, 4) };
    let a = rig.tensor(ab, if g.trans_a { [k, m] } else { [m, k] }, &va);
    let b = rig.tensor(ab, if g.trans_b { [n, k] } else { [k, n] }, &vb);
    let mut c = rig.tensor(c_dtype, [m, n], &vc);
    let bias = bias.map(|d| rig.tensor(d, [n], &vbias));
    rig.dev.ops().gemm(&rig.s, g, &a, &b, bias.as_ref(), &mut c).expect("a product");
    let got = rig.read(&c);
    // Large results are checked at every 29th element, a step that is prime to all block sizes.
    let step = if m * n * k > 1 << 22 { 29 } else { 1 };
    for at in (0..m * n).step_by(step) {
        let (i, j) = (at / n, at % n);
        let (mut want, mut size) = (0f64, 0f64);
        for l in 0..k {
            let x = va[if g.trans_a { l * m + i } else { i * k + l }];
            let y = vb[if g.trans_b { j * k + l } else { l * n + j }];
            want += f64::from(x) * f64::from(y);
            size += f64::from((x * y).abs());
        }
        want *= f64::from(g.alpha);
        if g.beta != 0.0 {
            want += f64::from(g.beta) * f64::from(vc[i * n + j]);
        }
        if bias.is_some() {
            want += f64::from(vbias[j]);
        }
        // f32 sums: error grows like the root of K at most times the sum of magnitudes; then one rounding.
        let bound =
            (k as f64).sqrt().max(4.0) * (size + 4.0) * rounding(DType::F32) + want.abs() * rounding(c_dtype) + 1e-7;
        let (got, what) = (f64::from(got[i * n + j]), (i, j));
        assert!((got - want).abs() <= bound, "{case:?} on {}: {what:?} {got} {want}", rig.dev.info().model);
    }
    got
}

const KINDS: [Gemm; 3] = [Gemm::NT, Gemm::NN, Gemm::TN];

#[test]
fn sizes_around_the_register_blocks() {
    for &isa in Isa::available() {
        let rig = Rig::new(2, StreamMode::Inline, isa);
        let (ab, c) = (DType::F32, DType::F32);
        for g in KINDS {
            for m in [1, 2, 5, 6, 7, 8, 9, 13, 17, 22, 31] {
                for n in [1, 3, 8, 15, 16, 17, 33, 47, 48, 49, 100] {
                    for k in [1, 7, 8, 30] {
                        check(&rig, Case { m, n, k, g, ab, c, bias: None });
                    }
                }
            }
        }
    }
}

#[test]
fn factors_bias_and_empty_sizes() {
    for &isa in Isa::available() {
        let rig = Rig::new(2, StreamMode::Inline, isa);
        let (ab, c) = (DType::F32, DType::F32);
        for (alpha, beta) in [(1.0, 1.0), (0.5, 0.0), (-2.0, 0.25), (0.0, 1.0)] {
            for (m, n, k) in [(10, 50, 20), (50, 3, 30), (3, 4, 0), (0, 5, 3), (5, 0, 3), (130, 400, 500)] {
                for bias in [None, Some(DType::F32), Some(DType::BF16)] {
                    check(&rig, Case { m, n, k, g: Gemm { alpha, beta, ..Gemm::NT }, ab, c, bias });
                }
            }
        }
    }
}

#[test]
fn storage_dtypes() {
    for &isa in Isa::available() {
        let rig = Rig::new(2, StreamMode::Inline, isa);
        for ab in [DType::BF16, DType::F16] {
            for c in [ab, DType::F32] {
                for g in [Gemm::NT, Gemm::NN, Gemm::TN, Gemm::TN_ACC] {
                    for (m, n, k) in [(21, 75, 43), (64, 96, 800), (3, 300, 5000), (300, 4, 70)] {
                        check(&rig, Case { m, n, k, g, ab, c, bias: Some(ab) });
                    }
                }
            }
        }
    }
}

/// K beyond one packed panel, with sums of 16-bit C between the panels; several panels of rows and columns.
#[test]
fn several_panels() {
    let rig = Rig::new(2, StreamMode::Inline, Isa::detect());
    for (ab, c) in [(DType::F32, DType::F32), (DType::BF16, DType::BF16), (DType::BF16, DType::F32)] {
        check(&rig, Case { m: 30, n: 70, k: 9001, g: Gemm { beta: 0.5, ..Gemm::NN }, ab, c, bias: Some(ab) });
        check(&rig, Case { m: 450, n: 900, k: 4090, g: Gemm::NT, ab, c, bias: None });
    }
}

/// The same bits whatever the number of threads, and on streams that run late.
#[test]
fn bits_do_not_depend_on_threads_or_streams() {
    let chaos = StreamMode::Chaos { seed: 3 };
    for &isa in Isa::available() {
        for g in KINDS {
            for (m, n, k) in [(300, 500, 700), (1, 1000, 50), (77, 3, 2000)] {
                let case = Case { m, n, k, g, ab: DType::F32, c: DType::F32, bias: None };
                let run = |threads, streams| check(&Rig::new(threads, streams, isa), case);
                let one = run(1, StreamMode::Inline);
                assert!(run(2, StreamMode::Inline) == one && run(3, StreamMode::Inline) == one && run(2, chaos) == one);
            }
        }
    }
}

#[test]
fn wrong_shapes_are_named() {
    let rig = Rig::new(1, StreamMode::Inline, Isa::Portable);
    let (a, b) = (rig.tensor(DType::F32, [2, 3], &[0.0; 6]), rig.tensor(DType::F32, [2, 4], &[0.0; 8]));
    let mut c = rig.tensor(DType::F32, [2, 2], &[0.0; 4]);
    let e = rig.dev.ops().gemm(&rig.s, Gemm::NT, &a, &b, None, &mut c).unwrap_err();
    assert_eq!(e.to_string(), "gemm: K of B should be 3, not 4");
}
