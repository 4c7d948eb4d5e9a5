//! Rows by index, and sorting. An index that is not there is an exception of the core, as on the device.

use ferrotron_acl_sys as acl;
use ferrotron_conformance::reference::embedding::{embedding, embedding_backward};
use ferrotron_mock::Fault;

use super::{alike, apart, float, operators, wrong};
use crate::plan::{Plan, tensor};
use crate::tensor::Tensor;
use crate::world::Answer;

/// Indices as rows of `n`.
fn checked(indices: &[f64], n: usize) -> Result<Vec<i32>, Fault> {
    match indices.iter().find(|&&i| i < 0.0 || i >= n as f64) {
        Some(i) => Err(Fault { code: acl::code::VECTOR_CORE_EXCEPTION, text: format!("index {i} of {n} rows") }),
        None => Ok(indices.iter().map(|&i| i as i32).collect()),
    }
}

/// The order in which a row is sorted: NaN is the largest, both zeros are equal. Without `stable` equals come in reverse,
/// so that who relies on their order without asking for it is found out.
fn order(row: &[f64], stable: bool, descending: bool) -> Vec<usize> {
    let mut order: Vec<usize> = (0..row.len()).collect();
    if !stable {
        order.reverse();
    }
    let above = |a: f64, b: f64| a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()));
    order.sort_by(|&a, &b| if descending { above(row[b], row[a]) } else { above(row[a], row[b]) });
    order
}

fn index(t: &Tensor) -> Answer<()> {
    match t.dtype {
        acl::ACL_INT32 | acl::ACL_INT64 => Ok(()),
        other => wrong(format!("indices of dtype {other}")),
    }
}

operators! {
    aclnnEmbedding, aclnnEmbeddingGetWorkspaceSize(
        weight: *const acl::aclTensor, indices: *const acl::aclTensor, out: *const acl::aclTensor,
    ) {
        let (w, ids, out) = (tensor(weight)?, tensor(indices)?, tensor(out)?);
        let (&[v, h], &[t]) = (&w.dims[..], &ids.dims[..]) else { return wrong("weight [V,H], indices [T]") };
        index(&ids)?;
        alike(&[t, h], w.dtype, &[&out])?;
        apart(&out, &[&w])?;
        Ok(Plan::fallible(vec![w, ids], vec![out], move |x| Ok(vec![embedding(&checked(&x[1], v)?, 0, h, &x[0])])))
    }
    aclnnEmbeddingDenseBackward, aclnnEmbeddingDenseBackwardGetWorkspaceSize(
        grad: *const acl::aclTensor, indices: *const acl::aclTensor, rows: u64, padding: u64, by_freq: bool,
        out: *const acl::aclTensor,
    ) {
        let (dy, ids, out) = (tensor(grad)?, tensor(indices)?, tensor(out)?);
        let (&[t, h], v) = (&dy.dims[..], rows as usize) else { return wrong("gradient [T,H]") };
        index(&ids)?;
        float(&dy)?;
        if ids.dims != [t] || by_freq || padding != u64::MAX {
            return wrong("indices are not [T], or scaling or a padding row is asked for, which the mock has not");
        }
        alike(&[v, h], acl::ACL_FLOAT, &[&out])?;
        Ok(Plan::fallible(vec![dy, ids], vec![out], move |x| {
            Ok(vec![embedding_backward(&checked(&x[1], v)?, 0, h, v, &x[0])])
        }))
    }
    aclnnIndexSelect, aclnnIndexSelectGetWorkspaceSize(
        x: *const acl::aclTensor, dim: i64, indices: *const acl::aclTensor, out: *mut acl::aclTensor,
    ) {
        let (x, ids, out) = (tensor(x)?, tensor(indices)?, tensor(out)?);
        let (&[rows, cols], &[t], 0) = (&x.dims[..], &ids.dims[..], dim) else { return wrong("rows of [R,C] by [T]") };
        index(&ids)?;
        alike(&[t, cols], x.dtype, &[&out])?;
        apart(&out, &[&x])?;
        Ok(Plan::fallible(vec![x, ids], vec![out], move |v| Ok(vec![embedding(&checked(&v[1], rows)?, 0, cols, &v[0])])))
    }
    aclnnGather, aclnnGatherGetWorkspaceSize(
        x: *const acl::aclTensor, dim: i64, indices: *const acl::aclTensor, out: *mut acl::aclTensor,
    ) {
        let (x, ids, out) = (tensor(x)?, tensor(indices)?, tensor(out)?);
        let (&[rows, cols], &[r, n], 1) = (&x.dims[..], &ids.dims[..], dim) else { return wrong("columns of [R,C] by [R,n]") };
        index(&ids)?;
        alike(&[rows, n], x.dtype, &[&out])?;
        if r != rows {
            return wrong("as many rows of indices");
        }
        Ok(Plan::fallible(vec![x, ids], vec![out], move |v| {
            let picked = checked(&v[1], cols)?;
            Ok(vec![picked.iter().enumerate().map(|(i, &c)| v[0][i / n * cols + c as usize]).collect()])
        }))
    }
    aclnnScatterAdd, aclnnScatterAddGetWorkspaceSize(
        x: *const acl::aclTensor, dim: i64, indices: *const acl::aclTensor, src: *const acl::aclTensor,
        out: *mut acl::aclTensor,
    ) {
        let (x, ids, src, out) = (tensor(x)?, tensor(indices)?, tensor(src)?, tensor(out)?);
        let (&[rows, cols], &[r, n], 1) = (&x.dims[..], &ids.dims[..], dim) else { return wrong("columns of [R,C] by [R,n]") };
        index(&ids)?;
        alike(&[rows, n], x.dtype, &[&src])?;
        alike(&[rows, cols], x.dtype, &[&out])?;
        apart(&out, &[&x, &src])?;
        if r != rows {
            return wrong("as many rows of indices");
        }
        Ok(Plan::fallible(vec![x, ids, src], vec![out], move |v| {
            let picked = checked(&v[1], cols)?;
            let mut sum = v[0].clone();
            picked.iter().enumerate().for_each(|(i, &c)| sum[i / n * cols + c as usize] += v[2][i]);
            Ok(vec![sum])
        }))
    }
    aclnnSort, aclnnSortGetWorkspaceSize(
        x: *const acl::aclTensor, stable: bool, dim: i64, descending: bool, values: *mut acl::aclTensor,
        indices: *mut acl::aclTensor,
    ) {
        let (x, values, indices) = (tensor(x)?, tensor(values)?, tensor(indices)?);
        let (&[_, cols], 1) = (&x.dims[..], dim) else { return wrong("rows of [R,C]") };
        if x.dtype == acl::ACL_BOOL || x.dtype == acl::ACL_DOUBLE {
            return wrong(format!("a sort of dtype {}", x.dtype));
        }
        alike(&x.dims, x.dtype, &[&values])?;
        alike(&x.dims, acl::ACL_INT64, &[&indices])?;
        apart(&values, &[&x, &indices])?;
        apart(&indices, &[&x])?;
        Ok(Plan::new(vec![x], vec![values, indices], move |v| {
            let (mut sorted, mut from) = (vec![], vec![]);
            for row in v[0].chunks(cols.max(1)) {
                let order = order(row, stable, descending);
                sorted.extend(order.iter().map(|&i| row[i]));
                from.extend(order.iter().map(|&i| i as f64));
            }
            vec![sorted, from]
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::order;

    #[test]
    fn equals_keep_their_order_only_when_asked_and_nan_is_the_largest() {
        let row = [1.0, f64::NAN, -0.0, 1.0, 0.0];
        assert_eq!(order(&row, true, false), [2, 4, 0, 3, 1]);
        assert_eq!(order(&row, true, true), [1, 0, 3, 2, 4]);
        assert_eq!(order(&row, false, false), [4, 2, 3, 0, 1]);
        assert_eq!(order(&row, false, true), [1, 3, 0, 4, 2]);
    }
}
