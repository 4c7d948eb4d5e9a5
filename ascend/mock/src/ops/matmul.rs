//! Matrix products.

use ferrotron_acl_sys as acl;
use ferrotron_conformance::reference::gemm::{Size, gemm};
use ferrotron_device::ops::Gemm;
use ferrotron_mock::Fault;

use super::{alike, apart, float, operators, wrong};
use crate::plan::{Plan, scalar, tensor};

operators! {
    aclnnMatmul, aclnnMatmulGetWorkspaceSize(
        a: *const acl::aclTensor, b: *const acl::aclTensor, out: *mut acl::aclTensor, cube_math_type: i8,
    ) {
        let (a, b, out) = (tensor(a)?, tensor(b)?, tensor(out)?);
        let (&[m, k], &[kb, n]) = (&a.dims[..], &b.dims[..]) else {
            return wrong(format!("a product of {:?} and {:?}: the mock takes two dims", a.dims, b.dims));
        };
        float(&a)?;
        if k != kb || !(0..=4).contains(&cube_math_type) {
            return wrong(format!("a product of {:?} and {:?}, cubeMathType {cube_math_type}", a.dims, b.dims));
        }
        alike(&[k, n], a.dtype, &[&b])?;
        alike(&[m, n], a.dtype, &[&out])?;
        apart(&out, &[&a, &b])?;
        Ok(Plan::new(vec![a, b], vec![out], move |v| vec![gemm(Gemm::NN, Size { m, n, k }, &v[0], &v[1], None, &[])]))
    }
    aclnnBatchMatMul, aclnnBatchMatMulGetWorkspaceSize(
        a: *const acl::aclTensor, b: *const acl::aclTensor, out: *mut acl::aclTensor, cube_math_type: i8,
    ) {
        let (a, b, out) = (tensor(a)?, tensor(b)?, tensor(out)?);
        let (&[batch, m, k], &[_, kb, n]) = (&a.dims[..], &b.dims[..]) else {
            return wrong(format!("products of {:?} and {:?}: three dims are wanted", a.dims, b.dims));
        };
        float(&a)?;
        if k != kb || !(0..=4).contains(&cube_math_type) {
            return wrong(format!("products of {:?} and {:?}, cubeMathType {cube_math_type}", a.dims, b.dims));
        }
        alike(&[batch, k, n], a.dtype, &[&b])?;
        alike(&[batch, m, n], a.dtype, &[&out])?;
        apart(&out, &[&a, &b])?;
        Ok(Plan::new(vec![a, b], vec![out], move |v| {
            let one = |i: usize| {
                let (a, b) = (&v[0][i * m * k..(i + 1) * m * k], &v[1][i * k * n..(i + 1) * k * n]);
                gemm(Gemm::NN, Size { m, n, k }, a, b, None, &[])
            };
            vec![(0..batch).flat_map(one).collect()]
        }))
    }
    aclnnAddmm, aclnnAddmmGetWorkspaceSize(
        bias: *const acl::aclTensor, a: *const acl::aclTensor, b: *const acl::aclTensor, beta: *const acl::aclScalar,
        alpha: *const acl::aclScalar, out: *mut acl::aclTensor, cube_math_type: i8,
    ) {
        let (bias, a, b, out) = (tensor(bias)?, tensor(a)?, tensor(b)?, tensor(out)?);
        let (&[m, k], &[kb, n]) = (&a.dims[..], &b.dims[..]) else {
            return wrong(format!("a product of {:?} and {:?}: two dims are wanted", a.dims, b.dims));
        };
        float(&a)?;
        if k != kb || !(0..=4).contains(&cube_math_type) || scalar(beta)? != 1.0 || scalar(alpha)? != 1.0 {
            return wrong(format!("a product of {:?} and {:?}: the mock has factors of 1", a.dims, b.dims));
        }
        alike(&[k, n], a.dtype, &[&b])?;
        alike(&[n], a.dtype, &[&bias])?;
        alike(&[m, n], a.dtype, &[&out])?;
        apart(&out, &[&a, &b, &bias])?;
        Ok(Plan::new(vec![a, b, bias], vec![out], move |v| {
            vec![gemm(Gemm::NN, Size { m, n, k }, &v[0], &v[1], Some(&v[2]), &[])]
        }))
    }
    aclnnGroupedMatmulAdd, aclnnGroupedMatmulAddGetWorkspaceSize(
        x: *const acl::aclTensor, weight: *const acl::aclTensor, ends: *const acl::aclTensor, y: *mut acl::aclTensor,
        transpose_x: bool, transpose_weight: bool, group_type: i64,
    ) {
        let (x, w, ends, y) = (tensor(x)?, tensor(weight)?, tensor(ends)?, tensor(y)?);
        let (&[k, m], &[kw, n]) = (&x.dims[..], &w.dims[..]) else {
            return wrong(format!("x {:?} and weight {:?}: two dims are wanted", x.dims, w.dims));
        };
        if !matches!(x.dtype, acl::ACL_FLOAT16 | acl::ACL_BF16) || !transpose_x || transpose_weight || group_type != 2 {
            return wrong("16-bit types, x transposed, weight not, groups along K: nothing else exists");
        }
        if k != kw || k * m * n == 0 {
            return wrong(format!("x {:?} and weight {:?}", x.dims, w.dims));
        }
        alike(&[kw, n], x.dtype, &[&w])?;
        alike(&[1], acl::ACL_INT64, &[&ends])?;
        alike(&[m, n], acl::ACL_FLOAT, &[&y])?;
        apart(&y, &[&x, &w])?;
        Ok(Plan::fallible(vec![x, w, ends, y.clone()], vec![y], move |v| {
            if v[2] != [k as f64] {
                let text = format!("the groups end at {:?}, and K is {k}", v[2]);
                return Err(Fault { code: acl::code::AICORE_EXCEPTION, text });
            }
            Ok(vec![gemm(Gemm::TN_ACC, Size { m, n, k }, &v[0], &v[1], None, &v[3])])
        }))
    }
}
