//! Element by element, with broadcasting; reductions over dims.

use std::sync::Arc;

use ferrotron_acl_sys as acl;

use super::{float, operators, wrong};
use crate::plan::{Plan, ints, scalar, tensor};
use crate::tensor::{Tensor, broadcast};
use crate::world::Answer;

/// `out = f(x, y)` of two tensors that broadcast to it.
fn binary(
    x: Arc<Tensor>,
    y: Arc<Tensor>,
    out: Arc<Tensor>,
    f: impl Fn(f64, f64) -> f64 + Send + 'static,
) -> Answer<Plan> {
    if x.dtype != out.dtype || y.dtype != out.dtype {
        return wrong(format!("dtypes {}, {} into {}: the mock promotes nothing", x.dtype, y.dtype, out.dtype));
    }
    let (dims_x, dims_y, dims) = (x.dims.clone(), y.dims.clone(), out.dims.clone());
    let fits = |t: &Tensor| broadcast(&vec![0.0; t.numel()], &t.dims, &dims).is_some();
    if !fits(&x) || !fits(&y) {
        return wrong(format!("{dims_x:?} and {dims_y:?} do not broadcast to {dims:?}"));
    }
    Ok(Plan::new(vec![x, y], vec![out], move |v| {
        let spread = |i: usize, from: &[usize]| broadcast(&v[i], from, &dims).unwrap_or_default();
        let (a, b) = (spread(0, &dims_x), spread(1, &dims_y));
        vec![a.iter().zip(&b).map(|(&a, &b)| f(a, b)).collect()]
    }))
}

/// `out = f(x)`, dims alike.
fn unary(x: Arc<Tensor>, out: Arc<Tensor>, f: impl Fn(f64) -> f64 + Send + 'static) -> Answer<Plan> {
    if x.dims != out.dims {
        return wrong(format!("{:?} into {:?}", x.dims, out.dims));
    }
    Ok(Plan::new(vec![x], vec![out], move |v| vec![v[0].iter().map(|&x| f(x)).collect()]))
}

fn same_dtype(x: &Tensor, out: &Tensor) -> Answer<()> {
    if x.dtype == out.dtype { Ok(()) } else { wrong(format!("dtype {} into {}", x.dtype, out.dtype)) }
}

/// A comparison, into bool.
fn compare(
    x: *const acl::aclTensor,
    other: *const acl::aclScalar,
    out: *mut acl::aclTensor,
    f: fn(f64, f64) -> bool,
) -> Answer<Plan> {
    let (x, other, out) = (tensor(x)?, scalar(other)?, tensor(out)?);
    if out.dtype != acl::ACL_BOOL {
        return wrong("comparisons give bool");
    }
    unary(x, out, move |x| f64::from(u8::from(f(x, other))))
}

/// A function of floats, one dtype.
fn function(x: *const acl::aclTensor, out: *mut acl::aclTensor, f: fn(f64) -> f64) -> Answer<Plan> {
    let (x, out) = (tensor(x)?, tensor(out)?);
    float(&x)?;
    same_dtype(&x, &out)?;
    unary(x, out, f)
}

/// Folds over dims.
fn reduce(
    x: Arc<Tensor>,
    dims: &[i64],
    keep: bool,
    out: Arc<Tensor>,
    start: f64,
    f: fn(f64, f64) -> f64,
) -> Answer<Plan> {
    let reduced: Vec<bool> = (0..x.dims.len()).map(|i| dims.contains(&(i as i64))).collect();
    let kept = |keep: bool| -> Vec<usize> {
        let each = x.dims.iter().zip(&reduced);
        each.filter(|(_, r)| keep || !**r).map(|(&d, &r)| if r { 1 } else { d }).collect()
    };
    if kept(keep) != out.dims {
        return wrong(format!("{:?} over {dims:?} into {:?}", x.dims, out.dims));
    }
    let (from, small) = (x.dims.clone(), kept(true));
    let n = out.numel();
    Ok(Plan::new(vec![x], vec![out], move |v| {
        let places: Vec<f64> = (0..n).map(|i| i as f64).collect();
        let places = broadcast(&places, &small, &from).unwrap_or_default();
        let mut acc = vec![start; n];
        for (value, place) in v[0].iter().zip(places) {
            acc[place as usize] = f(acc[place as usize], *value);
        }
        vec![acc]
    }))
}

operators! {
    aclnnAdd, aclnnAddGetWorkspaceSize(
        x: *const acl::aclTensor, y: *const acl::aclTensor, alpha: *const acl::aclScalar, out: *mut acl::aclTensor,
    ) {
        let alpha = scalar(alpha)?;
        binary(tensor(x)?, tensor(y)?, tensor(out)?, move |a, b| a + alpha * b)
    }
    aclnnSub, aclnnSubGetWorkspaceSize(
        x: *const acl::aclTensor, y: *const acl::aclTensor, alpha: *const acl::aclScalar, out: *mut acl::aclTensor,
    ) {
        let alpha = scalar(alpha)?;
        binary(tensor(x)?, tensor(y)?, tensor(out)?, move |a, b| a - alpha * b)
    }
    aclnnInplaceAdd, aclnnInplaceAddGetWorkspaceSize(
        x: *const acl::aclTensor, y: *const acl::aclTensor, alpha: *const acl::aclScalar,
    ) {
        let alpha = scalar(alpha)?;
        binary(tensor(x)?, tensor(y)?, tensor(x)?, move |a, b| a + alpha * b)
    }
    aclnnMul, aclnnMulGetWorkspaceSize(
        x: *const acl::aclTensor, y: *const acl::aclTensor, out: *mut acl::aclTensor,
    ) {
        binary(tensor(x)?, tensor(y)?, tensor(out)?, |a, b| a * b)
    }
    aclnnDiv, aclnnDivGetWorkspaceSize(
        x: *const acl::aclTensor, y: *const acl::aclTensor, out: *mut acl::aclTensor,
    ) {
        binary(tensor(x)?, tensor(y)?, tensor(out)?, |a, b| a / b)
    }
    aclnnAdds, aclnnAddsGetWorkspaceSize(
        x: *const acl::aclTensor, y: *const acl::aclScalar, alpha: *const acl::aclScalar, out: *mut acl::aclTensor,
    ) {
        let (x, out, c) = (tensor(x)?, tensor(out)?, scalar(y)? * scalar(alpha)?);
        same_dtype(&x, &out)?;
        unary(x, out, move |a| a + c)
    }
    aclnnMuls, aclnnMulsGetWorkspaceSize(
        x: *const acl::aclTensor, y: *const acl::aclScalar, out: *mut acl::aclTensor,
    ) {
        let (x, out, c) = (tensor(x)?, tensor(out)?, scalar(y)?);
        same_dtype(&x, &out)?;
        unary(x, out, move |a| a * c)
    }
    aclnnSqrt, aclnnSqrtGetWorkspaceSize(x: *const acl::aclTensor, out: *mut acl::aclTensor) {
        function(x, out, f64::sqrt)
    }
    aclnnExp, aclnnExpGetWorkspaceSize(x: *const acl::aclTensor, out: *mut acl::aclTensor) {
        function(x, out, f64::exp)
    }
    aclnnLog, aclnnLogGetWorkspaceSize(x: *const acl::aclTensor, out: *mut acl::aclTensor) {
        function(x, out, f64::ln)
    }
    aclnnEqScalar, aclnnEqScalarGetWorkspaceSize(
        x: *const acl::aclTensor, other: *const acl::aclScalar, out: *mut acl::aclTensor,
    ) {
        compare(x, other, out, |a, b| a == b)
    }
    aclnnGeScalar, aclnnGeScalarGetWorkspaceSize(
        x: *const acl::aclTensor, other: *const acl::aclScalar, out: *mut acl::aclTensor,
    ) {
        compare(x, other, out, |a, b| a >= b)
    }
    aclnnLtScalar, aclnnLtScalarGetWorkspaceSize(
        x: *const acl::aclTensor, other: *const acl::aclScalar, out: *mut acl::aclTensor,
    ) {
        compare(x, other, out, |a, b| a < b)
    }
    aclnnClamp, aclnnClampGetWorkspaceSize(
        x: *const acl::aclTensor, low: *const acl::aclScalar, high: *const acl::aclScalar, out: *mut acl::aclTensor,
    ) {
        let (x, out, low, high) = (tensor(x)?, tensor(out)?, scalar(low)?, scalar(high)?);
        same_dtype(&x, &out)?;
        unary(x, out, move |a| a.max(low).min(high))
    }
    aclnnSWhere, aclnnSWhereGetWorkspaceSize(
        condition: *const acl::aclTensor, x: *const acl::aclTensor, other: *const acl::aclTensor,
        out: *mut acl::aclTensor,
    ) {
        let (condition, x, other, out) = (tensor(condition)?, tensor(x)?, tensor(other)?, tensor(out)?);
        if condition.dtype != acl::ACL_BOOL {
            return wrong("the condition is not bool");
        }
        same_dtype(&x, &out)?;
        same_dtype(&other, &out)?;
        let from = [condition.dims.clone(), x.dims.clone(), other.dims.clone()];
        let dims = out.dims.clone();
        for t in [&condition, &x, &other] {
            if broadcast(&vec![0.0; t.numel()], &t.dims, &dims).is_none() {
                return wrong(format!("{:?} does not broadcast to {dims:?}", t.dims));
            }
        }
        Ok(Plan::new(vec![condition, x, other], vec![out], move |v| {
            let [c, x, y] = [0, 1, 2].map(|i| broadcast(&v[i], &from[i], &dims).unwrap_or_default());
            vec![(0..c.len()).map(|i| if c[i] != 0.0 { x[i] } else { y[i] }).collect()]
        }))
    }
    aclnnCast, aclnnCastGetWorkspaceSize(
        x: *const acl::aclTensor, dtype: acl::aclDataType, out: *mut acl::aclTensor,
    ) {
        let (x, out) = (tensor(x)?, tensor(out)?);
        if out.dtype != dtype {
            return wrong(format!("a cast to {dtype} into dtype {}", out.dtype));
        }
        unary(x, out, |a| a)
    }
    aclnnInplaceCopy, aclnnInplaceCopyGetWorkspaceSize(out: *mut acl::aclTensor, src: *const acl::aclTensor) {
        unary(tensor(src)?, tensor(out)?, |a| a)
    }
    aclnnInplaceZero, aclnnInplaceZeroGetWorkspaceSize(out: *mut acl::aclTensor) {
        let out = tensor(out)?;
        let n = out.numel();
        Ok(Plan::new(vec![], vec![out], move |_| vec![vec![0.0; n]]))
    }
    aclnnInplaceFillScalar, aclnnInplaceFillScalarGetWorkspaceSize(
        out: *mut acl::aclTensor, value: *const acl::aclScalar,
    ) {
        let (out, value) = (tensor(out)?, scalar(value)?);
        let n = out.numel();
        Ok(Plan::new(vec![], vec![out], move |_| vec![vec![value; n]]))
    }
    aclnnReduceSum, aclnnReduceSumGetWorkspaceSize(
        x: *const acl::aclTensor, dims: *const acl::aclIntArray, keep: bool, dtype: acl::aclDataType,
        out: *mut acl::aclTensor,
    ) {
        let (x, dims, out) = (tensor(x)?, ints(dims)?, tensor(out)?);
        if out.dtype != dtype {
            return wrong(format!("a sum in {dtype} into dtype {}", out.dtype));
        }
        reduce(x, &dims, keep, out, 0.0, |a, b| a + b)
    }
    aclnnAmax, aclnnAmaxGetWorkspaceSize(
        x: *const acl::aclTensor, dims: *const acl::aclIntArray, keep: bool, out: *mut acl::aclTensor,
    ) {
        let (x, dims, out) = (tensor(x)?, ints(dims)?, tensor(out)?);
        same_dtype(&x, &out)?;
        reduce(x, &dims, keep, out, f64::NEG_INFINITY, f64::max)
    }
}
