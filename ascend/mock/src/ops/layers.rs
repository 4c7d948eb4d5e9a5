//! Normalisations and activations.

use std::ffi::{CStr, c_char};
use std::sync::Arc;

use ferrotron_acl_sys as acl;
use ferrotron_conformance::reference::{activation, norm};
use ferrotron_device::ops::Activation;

use super::{alike, apart, float, operators, wrong};
use crate::plan::{Plan, bools, ints, scalar, tensor};
use crate::tensor::Tensor;
use crate::world::Answer;

/// Checks x `[T,H]` against gamma `[H]` and statistics `F32[T,1]`.
fn rows(x: &Tensor, gamma: &Tensor, stats: &[&Arc<Tensor>]) -> Answer<(usize, usize)> {
    let &[t, h] = &x.dims[..] else { return wrong(format!("x {:?}: the mock takes two dims", x.dims)) };
    float(x)?;
    if gamma.dims != [h] || !(gamma.dtype == x.dtype || gamma.dtype == acl::ACL_FLOAT) {
        return wrong(format!("gamma {:?} of dtype {} for x {:?}", gamma.dims, gamma.dtype, x.dims));
    }
    alike(&[t, 1], acl::ACL_FLOAT, stats)?;
    Ok((t, h))
}

/// `out = f(x)` by the reference.
fn plain(x: Arc<Tensor>, out: Arc<Tensor>, f: Activation) -> Answer<Plan> {
    float(&x)?;
    alike(&x.dims, x.dtype, &[&out])?;
    Ok(Plan::new(vec![x], vec![out], move |v| vec![activation::forward(f, &v[0])]))
}

/// `dx = dy f'(x)` by the reference.
fn plain_backward(dy: Arc<Tensor>, x: Arc<Tensor>, dx: Arc<Tensor>, f: Activation) -> Answer<Plan> {
    float(&x)?;
    alike(&x.dims, x.dtype, &[&dy, &dx])?;
    Ok(Plan::new(vec![x, dy], vec![dx], move |v| vec![activation::backward(f, &v[0], &v[1])]))
}

/// Checks x `[T,2F]` and narrow `[T,F]`; gives F.
fn gated(x: &Tensor, narrow: &Arc<Tensor>, dim: i64) -> Answer<usize> {
    float(x)?;
    match (&x.dims[..], dim) {
        (&[t, two_f], -1 | 1) if two_f % 2 == 0 => alike(&[t, two_f / 2], x.dtype, &[narrow]).map(|()| two_f / 2),
        _ => wrong(format!("x {:?} split along {dim}: the mock takes the last of two dims", x.dims)),
    }
}

operators! {
    aclnnRmsNorm, aclnnRmsNormGetWorkspaceSize(
        x: *const acl::aclTensor, gamma: *const acl::aclTensor, eps: f64, y: *const acl::aclTensor,
        rstd: *const acl::aclTensor,
    ) {
        let (x, gamma, y, rstd) = (tensor(x)?, tensor(gamma)?, tensor(y)?, tensor(rstd)?);
        rows(&x, &gamma, &[&rstd])?;
        alike(&x.dims, x.dtype, &[&y])?;
        apart(&y, &[&x, &gamma])?;
        Ok(Plan::new(vec![x, gamma], vec![y, rstd], move |v| {
            let (y, rstd) = norm::rms_norm(eps, false, &v[0], &v[1]);
            vec![y, rstd]
        }))
    }
    aclnnRmsNormGrad, aclnnRmsNormGradGetWorkspaceSize(
        dy: *const acl::aclTensor, x: *const acl::aclTensor, rstd: *const acl::aclTensor, gamma: *const acl::aclTensor,
        dx: *const acl::aclTensor, dgamma: *const acl::aclTensor,
    ) {
        let (dy, x, rstd, gamma) = (tensor(dy)?, tensor(x)?, tensor(rstd)?, tensor(gamma)?);
        let (dx, dgamma) = (tensor(dx)?, tensor(dgamma)?);
        let (_, h) = rows(&x, &gamma, &[&rstd])?;
        alike(&x.dims, x.dtype, &[&dy, &dx])?;
        alike(&[h], acl::ACL_FLOAT, &[&dgamma])?;
        apart(&dx, &[&dy, &x, &rstd, &gamma])?;
        Ok(Plan::new(vec![x, gamma, rstd, dy], vec![dx, dgamma], |v| {
            let (dx, dgamma) = norm::rms_norm_backward(false, &v[0], &v[1], &v[2], &v[3]);
            vec![dx, dgamma]
        }))
    }
    aclnnLayerNorm, aclnnLayerNormGetWorkspaceSize(
        x: *const acl::aclTensor, shape: *const acl::aclIntArray, gamma: *const acl::aclTensor,
        beta: *const acl::aclTensor, eps: f64, y: *mut acl::aclTensor, mean: *mut acl::aclTensor,
        rstd: *mut acl::aclTensor,
    ) {
        let (x, gamma, beta, y) = (tensor(x)?, tensor(gamma)?, tensor(beta)?, tensor(y)?);
        let (mean, rstd) = (tensor(mean)?, tensor(rstd)?);
        let (t, h) = rows(&x, &gamma, &[&mean, &rstd])?;
        if *ints(shape)? != [h as i64] {
            return wrong("normalizedShape is not the last dim of x");
        }
        alike(&[h], gamma.dtype, &[&beta])?;
        alike(&x.dims, x.dtype, &[&y])?;
        apart(&y, &[&x, &gamma, &beta])?;
        Ok(Plan::new(vec![x, gamma, beta], vec![y, mean, rstd], move |v| {
            let (y, mut mean) = norm::layer_norm(eps, false, &v[0], &v[1], &v[2]);
            let rstd = mean.split_off(t);
            vec![y, mean, rstd]
        }))
    }
    aclnnLayerNormBackward, aclnnLayerNormBackwardGetWorkspaceSize(
        dy: *const acl::aclTensor, x: *const acl::aclTensor, shape: *const acl::aclIntArray,
        mean: *const acl::aclTensor, rstd: *const acl::aclTensor, gamma: *const acl::aclTensor,
        beta: *const acl::aclTensor, mask: *const acl::aclBoolArray, dx: *mut acl::aclTensor,
        dgamma: *mut acl::aclTensor, dbeta: *mut acl::aclTensor,
    ) {
        let (dy, x, mean, rstd, gamma) = (tensor(dy)?, tensor(x)?, tensor(mean)?, tensor(rstd)?, tensor(gamma)?);
        let (dx, dgamma, dbeta) = (tensor(dx)?, tensor(dgamma)?, tensor(dbeta)?);
        let (_, h) = rows(&x, &gamma, &[&mean, &rstd])?;
        if *ints(shape)? != [h as i64] || *bools(mask)? != [true; 3] {
            return wrong("normalizedShape is not the last dim of x, or the mask leaves one out");
        }
        alike(&[h], gamma.dtype, &[&tensor(beta)?, &dgamma, &dbeta])?;
        alike(&x.dims, x.dtype, &[&dy, &dx])?;
        apart(&dx, &[&dy, &x, &mean, &rstd, &gamma])?;
        Ok(Plan::new(vec![x, gamma, mean, rstd, dy], vec![dx, dgamma, dbeta], |v| {
            let stats = [&v[2][..], &v[3][..]].concat();
            let (dx, dgamma, dbeta) = norm::layer_norm_backward(false, &v[0], &v[1], &stats, &v[4]);
            vec![dx, dgamma, dbeta]
        }))
    }
    aclnnGeluV2, aclnnGeluV2GetWorkspaceSize(x: *const acl::aclTensor, approximate: i64, y: *mut acl::aclTensor) {
        let f = match approximate {
            0 => Activation::Gelu,
            1 => Activation::GeluTanh,
            _ => return wrong(format!("approximate {approximate}")),
        };
        plain(tensor(x)?, tensor(y)?, f)
    }
    aclnnGeluBackwardV2, aclnnGeluBackwardV2GetWorkspaceSize(
        dy: *const acl::aclTensor, x: *const acl::aclTensor, approximate: *mut c_char, dx: *mut acl::aclTensor,
    ) {
        if approximate.is_null() {
            return wrong("approximate is null");
        }
        // SAFETY: the caller gives a C string.
        let f = match unsafe { CStr::from_ptr(approximate) }.to_bytes() {
            b"none" => Activation::Gelu,
            b"tanh" => Activation::GeluTanh,
            _ => return wrong("approximate is neither none nor tanh"),
        };
        plain_backward(tensor(dy)?, tensor(x)?, tensor(dx)?, f)
    }
    aclnnSilu, aclnnSiluGetWorkspaceSize(x: *const acl::aclTensor, y: *mut acl::aclTensor) {
        plain(tensor(x)?, tensor(y)?, Activation::Silu)
    }
    aclnnSiluBackward, aclnnSiluBackwardGetWorkspaceSize(
        dy: *const acl::aclTensor, x: *const acl::aclTensor, dx: *mut acl::aclTensor,
    ) {
        plain_backward(tensor(dy)?, tensor(x)?, tensor(dx)?, Activation::Silu)
    }
    aclnnRelu, aclnnReluGetWorkspaceSize(x: *const acl::aclTensor, y: *mut acl::aclTensor) {
        plain(tensor(x)?, tensor(y)?, Activation::Relu)
    }
    aclnnThresholdBackward, aclnnThresholdBackwardGetWorkspaceSize(
        dy: *const acl::aclTensor, x: *const acl::aclTensor, threshold: *const acl::aclScalar, dx: *mut acl::aclTensor,
    ) {
        let (dy, x, dx, threshold) = (tensor(dy)?, tensor(x)?, tensor(dx)?, scalar(threshold)?);
        alike(&x.dims, x.dtype, &[&dy, &dx])?;
        Ok(Plan::new(vec![x, dy], vec![dx], move |v| {
            vec![v[0].iter().zip(&v[1]).map(|(&x, &dy)| if x > threshold { dy } else { 0.0 }).collect()]
        }))
    }
    aclnnSwiGlu, aclnnSwiGluGetWorkspaceSize(x: *const acl::aclTensor, dim: i64, y: *const acl::aclTensor) {
        let (x, y) = (tensor(x)?, tensor(y)?);
        let width = gated(&x, &y, dim)?;
        apart(&y, &[&x])?;
        Ok(Plan::new(vec![x], vec![y], move |v| vec![activation::glu(Activation::Silu, width, &v[0])]))
    }
    aclnnSwiGluGrad, aclnnSwiGluGradGetWorkspaceSize(
        dy: *const acl::aclTensor, x: *const acl::aclTensor, dim: i64, dx: *const acl::aclTensor,
    ) {
        let (dy, x, dx) = (tensor(dy)?, tensor(x)?, tensor(dx)?);
        let width = gated(&x, &dy, dim)?;
        alike(&x.dims, x.dtype, &[&dx])?;
        apart(&dx, &[&x, &dy])?;
        Ok(Plan::new(vec![x, dy], vec![dx], move |v| {
            vec![activation::glu_backward(Activation::Silu, width, &v[0], &v[1])]
        }))
    }
}
