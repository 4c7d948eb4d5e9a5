//! Fused qkv rows: per KV group its queries, then one key, then one value head.

use ferrotron_device::ops::QkvDims;

/// (q `[T,N,D]`, k and v `[T,G,D]`) of qkv `[T,(N+2G)D]`.
pub fn qkv_split(d: QkvDims, qkv: &[f64]) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
    let (mut q, mut k, mut v) = (Vec::new(), Vec::new(), Vec::new());
    let queries = d.heads / d.groups * d.head_dim;
    for group in qkv.chunks(queries + 2 * d.head_dim) {
        let (head_q, kv) = group.split_at(queries);
        let (head_k, head_v) = kv.split_at(d.head_dim);
        q.extend(head_q);
        k.extend(head_k);
        v.extend(head_v);
    }
    (q, k, v)
}

/// The inverse of [`qkv_split`], and its gradient.
pub fn qkv_merge(d: QkvDims, q: &[f64], k: &[f64], v: &[f64]) -> Vec<f64> {
    let queries = d.heads / d.groups * d.head_dim;
    let heads = q.chunks(queries).zip(k.chunks(d.head_dim)).zip(v.chunks(d.head_dim));
    heads.flat_map(|((q, k), v)| [q, k, v].concat()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn megatron_order_and_back() {
        // one row, two groups of two queries each, D = 1: q0 q1 k0 v0 q2 q3 k1 v1
        let d = QkvDims { heads: 4, groups: 2, head_dim: 1 };
        let qkv = [0., 1., 10., 20., 2., 3., 11., 21.];
        let (q, k, v) = qkv_split(d, &qkv);
        assert_eq!((&q[..], &k[..], &v[..]), (&[0., 1., 2., 3.][..], &[10., 11.][..], &[20., 21.][..]));
        assert_eq!(qkv_merge(d, &q, &k, &v), qkv);
    }
}
