//! A product with GELU by tanh, or its slope, behind it is one call of cublasLt where that has one, and two where it has not:
//! the same numbers. A kernel of ours that is made to fail shows which.

#![allow(clippy::unwrap_used)] // a test

mod common;

use std::sync::Arc;

use ferrotron_device::ops::{Activation, Gemm};
use ferrotron_device::{DType, Device, Pool, Result, StreamRole, host};

#[test]
fn gelu_goes_with_the_product_where_the_library_has_it() {
    let _alone = ferrotron_tests::alone();
    if !common::kernels() {
        return;
    }
    let (home, control) = (common::home("epilogue"), common::control());
    // f(a b^T + bias) and f'(inner) (a b^T) of ones: a product is k
    let run = |f, n: usize, bias: DType| -> Result<(f32, f32)> {
        let device: Arc<dyn Device> = Arc::new(common::open(&home, 0, None));
        let (s, ops, k) = (device.stream(StreamRole::Compute)?, device.ops(), 3);
        let pool = Pool::new(device.clone(), s.clone(), 1 << 20, true)?;
        let ones = |shape: [usize; 2], dtype| {
            let mut t = pool.alloc(dtype, shape)?;
            ops.fill(&s, 1.0, &mut t)?;
            Ok::<_, ferrotron_device::Error>(t)
        };
        let (a, b, bias) = (ones([2, k], DType::BF16)?, ones([n, k], DType::BF16)?, ones([1, n], bias)?);
        let (mut inner, mut y) = (ones([2, n], DType::BF16)?, ones([2, n], DType::BF16)?);
        ops.gemm_activation(&s, Gemm::NT, &a, &b, Some(&bias), f, &mut inner, &mut y)?;
        let forward = host::read_f32(&*device, &s, &y)?;
        ops.fill(&s, 0.0, &mut inner)?;
        ops.gemm_activation_backward(&s, Gemm::NT, &a, &b, f, &inner, &mut y)?;
        let backward = host::read_f32(&*device, &s, &y)?;
        assert!(forward.iter().all(|v| *v == forward[0]) && backward.iter().all(|v| *v == backward[0]));
        Ok((forward[0], backward[0]))
    };
    // gelu(4) is 4 to bf16's eight bits; its slope at 0 is a half
    let want = (4.0, 1.5);
    let cases = [
        (Activation::GeluTanh, 8, DType::BF16, true),
        (Activation::GeluTanh, 7, DType::BF16, false),
        (Activation::Gelu, 8, DType::BF16, false),
    ];
    for (f, n, bias, fused) in cases {
        assert_eq!(run(f, n, bias).unwrap(), want, "{f:?} {n}");
        control.faults(0, "task:activation#1=700; task:activation_backward#1=700");
        assert_eq!(run(f, n, bias).ok(), fused.then_some(want), "{f:?} {n}");
        control.no_faults(0);
    }
    // a bias of another type is added by a kernel of ours, and the function applied by one; the slope needs no bias
    assert_eq!(run(Activation::GeluTanh, 8, DType::F32).unwrap(), want);
    control.report(0);
    common::remove(&home);
}
