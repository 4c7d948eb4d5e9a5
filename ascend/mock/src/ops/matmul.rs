//! Matrix products.

use ferrotron_acl_sys as acl;
use ferrotron_conformance::reference::gemm::{Size, gemm};
use ferrotron_device::ops::Gemm;

use super::{alike, apart, float, operators, wrong};
use crate::plan::{Plan, tensor};

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
}
