//! Splits and merges of fused projections: copies. Contract: `ferrotron_device::ops::layout`.

use ferrotron_device::ops::{LayoutOps, QkvDims};
use ferrotron_device::{Result, Stream, Tensor};

use crate::CpuOps;
use crate::dispatch;
use crate::team::row_grain;
use crate::view::{In, Out, rows};

/// Elements of q and of k (or v) in one row and in one group of it.
#[derive(Clone, Copy)]
struct Widths {
    q_row: usize,
    kv_row: usize,
    q_group: usize,
    head: usize,
}

impl Widths {
    fn of(d: QkvDims) -> Widths {
        Widths {
            q_row: d.heads * d.head_dim,
            kv_row: d.groups * d.head_dim,
            q_group: d.heads / d.groups * d.head_dim,
            head: d.head_dim,
        }
    }
}

/// Splits one row: per group the queries, one key, one value head.
fn split_row<T: Copy>(w: Widths, qkv: &[T], q: &mut [T], k: &mut [T], v: &mut [T]) {
    let parts = q.chunks_exact_mut(w.q_group).zip(k.chunks_exact_mut(w.head)).zip(v.chunks_exact_mut(w.head));
    for (group, ((q, k), v)) in qkv.chunks_exact(w.q_group + 2 * w.head).zip(parts) {
        let (from_q, kv) = group.split_at(w.q_group);
        let (from_k, from_v) = kv.split_at(w.head);
        q.copy_from_slice(from_q);
        k.copy_from_slice(from_k);
        v.copy_from_slice(from_v);
    }
}

fn merge_row<T: Copy>(w: Widths, q: &[T], k: &[T], v: &[T], qkv: &mut [T]) {
    let parts = q.chunks_exact(w.q_group).zip(k.chunks_exact(w.head)).zip(v.chunks_exact(w.head));
    for (group, ((q, k), v)) in qkv.chunks_exact_mut(w.q_group + 2 * w.head).zip(parts) {
        let (to_q, kv) = group.split_at_mut(w.q_group);
        let (to_k, to_v) = kv.split_at_mut(w.head);
        to_q.copy_from_slice(q);
        to_k.copy_from_slice(k);
        to_v.copy_from_slice(v);
    }
}

impl LayoutOps for CpuOps {
    fn qkv_split(
        &self,
        s: &Stream,
        d: QkvDims,
        qkv: &Tensor,
        q: &mut Tensor,
        k: &mut Tensor,
        v: &mut Tensor,
    ) -> Result<()> {
        let t = d.check("qkv_split", qkv, q, k, v)?;
        let (w, cols, grain) = (Widths::of(d), d.fused_cols(), row_grain(2 * qkv.cols() * qkv.dtype().size()));
        let (qkv, q, k, v) = (In::of(qkv), Out::of(q), Out::of(k), Out::of(v));
        dispatch!(qkv.dtype(), T => self.run(s, move |team| {
            // SAFETY: stream order keeps the tensors until this job is done; the check has them apart.
            let (qkv, q, k, v) = unsafe { (qkv.get::<T>(), q.get::<T>(), k.get::<T>(), v.get::<T>()) };
            let out = (rows(q, w.q_row), rows(k, w.kv_row), rows(v, w.kv_row));
            team.rows(out, t, grain, |r, (q, k, v), _| {
                let parts = q.chunks_exact_mut(w.q_row).zip(k.chunks_exact_mut(w.kv_row)).zip(v.chunks_exact_mut(w.kv_row));
                for (t, ((q, k), v)) in r.zip(parts) {
                    split_row(w, &qkv[t * cols..(t + 1) * cols], q, k, v);
                }
            })
        }))
    }

    fn qkv_merge(&self, s: &Stream, d: QkvDims, q: &Tensor, k: &Tensor, v: &Tensor, qkv: &mut Tensor) -> Result<()> {
        let t = d.check("qkv_merge", qkv, q, k, v)?;
        let (w, cols, grain) = (Widths::of(d), d.fused_cols(), row_grain(2 * qkv.cols() * qkv.dtype().size()));
        let (q, k, v, qkv) = (In::of(q), In::of(k), In::of(v), Out::of(qkv));
        dispatch!(qkv.dtype(), T => self.run(s, move |team| {
            // SAFETY: stream order keeps the tensors until this job is done; the check has them apart.
            let (q, k, v, qkv) = unsafe { (q.get::<T>(), k.get::<T>(), v.get::<T>(), qkv.get::<T>()) };
            team.rows(rows(qkv, cols), t, grain, |r, qkv, _| {
                for (t, qkv) in r.zip(qkv.chunks_exact_mut(cols)) {
                    let kv = t * w.kv_row..(t + 1) * w.kv_row;
                    merge_row(w, &q[t * w.q_row..(t + 1) * w.q_row], &k[kv.clone()], &v[kv], qkv);
                }
            })
        }))
    }
}
