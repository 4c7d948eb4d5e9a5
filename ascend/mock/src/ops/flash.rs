//! Fused attention of packed sequences, as far as the device asks for it; stricter than documented: what is not known to
//! be right on silicon is refused.

use std::ffi::{CStr, c_char};
use std::sync::Arc;

use ferrotron_acl_sys as acl;
use ferrotron_conformance::reference::attention::Inputs;
use ferrotron_device::ops::AttentionDims;
use ferrotron_mock::Fault;

use super::{alike, apart, float, operators, wrong};
use crate::plan::{Plan, ints, tensor};
use crate::tensor::Tensor;
use crate::world::Answer;

/// Copies of each row's maximum and sum.
const LANES: usize = 8;

/// What both directions check.
struct Call {
    dims: AttentionDims,
    cu: [Vec<i32>; 2],
    q: Arc<Tensor>,
    k: Arc<Tensor>,
    v: Arc<Tensor>,
    /// A corner of the mask: enough to tell what it is.
    corner: Arc<Tensor>,
}

#[allow(clippy::too_many_arguments)]
fn call(
    [q, k, v]: [*const acl::aclTensor; 3],
    absent: &[*const acl::aclTensor],
    mask: *const acl::aclTensor,
    prefix: *const acl::aclIntArray,
    ends: [*const acl::aclIntArray; 2],
    scale: f64,
    keep: f64,
    heads: i64,
    layout: *const c_char,
    modes: [i64; 2],
) -> Answer<Call> {
    let (q, k, v, mask) = (tensor(q)?, tensor(k)?, tensor(v)?, tensor(mask)?);
    // SAFETY: the caller gives a C string, or null.
    if layout.is_null() || unsafe { CStr::from_ptr(layout) }.to_bytes() != b"TND" {
        return wrong("inputLayout of packed sequences is TND");
    }
    if absent.iter().any(|t| !t.is_null()) || !prefix.is_null() || keep != 1.0 {
        return wrong("shifts, masks of dropout, padding and prefixes: the mock has none of them");
    }
    let (&[t, n, d], &[tk, g, dk]) = (&q.dims[..], &k.dims[..]) else { return wrong("q [T,N,D], k [T,G,D]") };
    float(&q)?;
    alike(&[tk, g, dk], q.dtype, &[&k, &v])?;
    if heads != n as i64 || g == 0 || n % g != 0 || d != dk || d > 768 {
        return wrong(format!("headNum {heads} for q {:?}, k {:?}", q.dims, k.dims));
    }
    if modes != [0, 3] {
        return wrong(format!("innerPrecise and sparseMode {modes:?}: the mock has 0 and right down causal"));
    }
    if mask.dims != [2048, 2048] || !matches!(mask.dtype, acl::ACL_BOOL | acl::ACL_UINT8) {
        return wrong("sparseMode 3 takes a mask of [2048,2048] bytes");
    }
    let cu = |ends: *const acl::aclIntArray, rows: usize| -> Answer<Vec<i32>> {
        let ends = ints(ends)?;
        if !ends.is_sorted() || ends.first().is_none_or(|&e| e < 0) || ends.last() != Some(&(rows as i64)) {
            return wrong(format!("ends of sequences {ends:?} of {rows} rows"));
        }
        Ok(std::iter::once(0).chain(ends.iter().map(|&e| e as i32)).collect())
    };
    let cu = [cu(ends[0], t)?, cu(ends[1], tk)?];
    let lengths = |cu: &[i32]| cu.windows(2).map(|w| w[1] - w[0]).collect::<Vec<i32>>();
    let (lq, lk) = (lengths(&cu[0]), lengths(&cu[1]));
    if lq.len() != lk.len() || lq.iter().zip(&lk).any(|(q, k)| *q == 0 || q > k) {
        return wrong(format!("queries {lq:?} and keys {lk:?}: a row that sees no key"));
    }
    let max_len = lk.iter().copied().max().unwrap_or(0) as usize;
    let dims = AttentionDims {
        heads: n,
        groups: g,
        head_dim: d,
        causal: true,
        window: None,
        scale: scale as f32,
        max_len,
        first_head: 0,
    };
    Ok(Call { dims, cu, q, k, v, corner: Arc::new(mask.corner()) })
}

/// The mask is 1 above the diagonal.
fn triangular(corner: &[f64]) -> Result<(), Fault> {
    if corner == [0.0, 1.0, 0.0, 0.0] {
        return Ok(());
    }
    Err(Fault {
        code: acl::code::VECTOR_CORE_EXCEPTION,
        text: format!("the mask begins {corner:?}, not 1 above the diagonal"),
    })
}

/// Largest score of each row, `[T,N]`.
fn largest(dims: &AttentionDims, cu: &[Vec<i32>; 2], q: &[f64], k: &[f64]) -> Vec<f64> {
    let (n, g, d) = (dims.heads, dims.groups, dims.head_dim);
    let mut out = vec![];
    for (q_at, k_at) in cu[0].windows(2).zip(cu[1].windows(2)) {
        let shift = (k_at[1] - k_at[0]) - (q_at[1] - q_at[0]);
        for t in q_at[0]..q_at[1] {
            for head in 0..n {
                let row = &q[(t as usize * n + head) * d..][..d];
                let last = k_at[0] + (t - q_at[0]) + shift;
                let score = |j: i32| {
                    let key = &k[(j as usize * g + head / (n / g)) * d..][..d];
                    f64::from(dims.scale) * row.iter().zip(key).map(|(a, b)| a * b).sum::<f64>()
                };
                out.push((k_at[0]..=last).map(score).fold(f64::NEG_INFINITY, f64::max));
            }
        }
    }
    out
}

/// Each value as often as there are lanes.
fn lanes(values: &[f64]) -> Vec<f64> {
    values.iter().flat_map(|&v| [v; LANES]).collect()
}

operators! {
    aclnnFlashAttentionVarLenScore, aclnnFlashAttentionVarLenScoreGetWorkspaceSize(
        query: *const acl::aclTensor, key: *const acl::aclTensor, value: *const acl::aclTensor,
        shift: *const acl::aclTensor, drop_mask: *const acl::aclTensor, padding: *const acl::aclTensor,
        mask: *const acl::aclTensor, prefix: *const acl::aclIntArray, ends_q: *const acl::aclIntArray,
        ends_k: *const acl::aclIntArray, scale: f64, keep: f64, _pre: i64, _next: i64, heads: i64,
        layout: *mut c_char, precise: i64, sparse: i64, max: *const acl::aclTensor, sum: *const acl::aclTensor,
        _unused: *const acl::aclTensor, out: *const acl::aclTensor,
    ) {
        let ends = [ends_q, ends_k];
        let absent = [shift, drop_mask, padding];
        let c = call([query, key, value], &absent, mask, prefix, ends, scale, keep, heads, layout, [precise, sparse])?;
        let (max, sum, out) = (tensor(max)?, tensor(sum)?, tensor(out)?);
        let t = c.q.dims[0];
        alike(&[t, c.dims.heads, LANES], acl::ACL_FLOAT, &[&max, &sum])?;
        alike(&c.q.dims, c.q.dtype, &[&out])?;
        apart(&out, &[&c.q, &c.k, &c.v])?;
        let Call { dims, cu, q, k, v, corner } = c;
        Ok(Plan::fallible(vec![q, k, v, corner], vec![max, sum, out], move |x| {
            triangular(&x[3])?;
            let at = Inputs { dims, q: &x[0], k: &x[1], v: &x[2], cu_q: &cu[0], cu_k: &cu[1], drop: None };
            let (o, lse) = at.forward();
            let max = largest(&dims, &cu, &x[0], &x[1]);
            let n = dims.heads;
            let sum: Vec<f64> = max.iter().enumerate().map(|(i, m)| (lse[i % n * t + i / n] - m).exp()).collect();
            Ok(vec![lanes(&max), lanes(&sum), o])
        }))
    }
    aclnnFlashAttentionUnpaddingScoreGrad, aclnnFlashAttentionUnpaddingScoreGradGetWorkspaceSize(
        query: *const acl::aclTensor, key: *const acl::aclTensor, value: *const acl::aclTensor,
        dy: *const acl::aclTensor, shift: *const acl::aclTensor, drop_mask: *const acl::aclTensor,
        padding: *const acl::aclTensor, mask: *const acl::aclTensor, max: *const acl::aclTensor,
        sum: *const acl::aclTensor, softmax: *const acl::aclTensor, out: *const acl::aclTensor,
        prefix: *const acl::aclIntArray, ends_q: *const acl::aclIntArray, ends_k: *const acl::aclIntArray, scale: f64,
        keep: f64, _pre: i64, _next: i64, heads: i64, layout: *mut c_char, precise: i64, sparse: i64,
        dq: *const acl::aclTensor, dk: *const acl::aclTensor, dv: *const acl::aclTensor, _unused: *const acl::aclTensor,
    ) {
        let ends = [ends_q, ends_k];
        let absent = [shift, drop_mask, padding, softmax];
        let c = call([query, key, value], &absent, mask, prefix, ends, scale, keep, heads, layout, [precise, sparse])?;
        let (dy, max, sum, out) = (tensor(dy)?, tensor(max)?, tensor(sum)?, tensor(out)?);
        let (dq, dk, dv) = (tensor(dq)?, tensor(dk)?, tensor(dv)?);
        let t = c.q.dims[0];
        alike(&[t, c.dims.heads, LANES], acl::ACL_FLOAT, &[&max, &sum])?;
        alike(&c.q.dims, c.q.dtype, &[&dy, &out, &dq])?;
        alike(&c.k.dims, c.q.dtype, &[&dk, &dv])?;
        for gradient in [&dq, &dk, &dv] {
            apart(gradient, &[&c.q, &c.k, &c.v, &dy, &out])?;
        }
        let Call { dims, cu, q, k, v, corner } = c;
        Ok(Plan::fallible(vec![q, k, v, corner, dy, max, sum, out], vec![dq, dk, dv], move |x| {
            triangular(&x[3])?;
            let at = Inputs { dims, q: &x[0], k: &x[1], v: &x[2], cu_q: &cu[0], cu_k: &cu[1], drop: None };
            let n = dims.heads;
            let mut lse = vec![0.0; n * t];
            for i in 0..n * t {
                lse[i % n * t + i / n] = x[5][i * LANES] + x[6][i * LANES].ln();
            }
            let (dq, dk, dv) = at.backward(&x[7], &lse, &x[4]);
            Ok(vec![dq, dk, dv])
        }))
    }
}
