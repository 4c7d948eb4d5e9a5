//! Attention in tiles of queries x keys (see the contract in `ferrotron_device::ops::attention`).
//!
//! Tiles of q, k, v are packed to f32 in a thread's scratch, products run on the micro-kernels of [`crate::gemm`],
//! and what of a tile a row may see is one span of columns: masks cost nothing, and what no row sees is skipped.
//! Forward: a task is a block of queries of a head. Backward: two passes, one whose tasks are blocks of queries (dq)
//! and one whose tasks are blocks of keys (dk, dv); both compute P again, so that nobody shares sums and the order of
//! every sum follows from the shape.

mod backward;
mod forward;
mod softmax;
mod tile;

use std::ops::Range;

use ferrotron_base::philox::drop_threshold;
use ferrotron_device::ops::attention::AttentionDims;
use ferrotron_device::ops::{AttentionArgs, AttentionOps};
use ferrotron_device::{Error, Result, Stream, Tensor};

use crate::gemm::{Operand, PackLoad};
use crate::view::{In, Out};
use crate::{CpuOps, dispatch};
use softmax::Keep;

/// Largest head dim whose tiles fit in a thread's scratch.
const MAX_HEAD_DIM: usize = 256;

impl AttentionOps for CpuOps {
    fn attention(&self, s: &Stream, a: AttentionArgs<'_>, o: &mut Tensor, lse: &mut Tensor) -> Result<()> {
        a.check_forward(o, lse)?;
        let inputs = Inputs::of(&a)?;
        let (o, lse) = (Out::of(o), Out::of(lse));
        dispatch!(a.q.dtype(), T => self.run(s, move |team| {
            // SAFETY: stream order keeps the tensors until this job is done; outputs are apart from inputs.
            let (call, o, lse) = unsafe { (inputs.get::<T>()?, o.get::<T>(), lse.get::<f32>()) };
            forward::run(team, &call, o, lse)
        }))
    }

    fn attention_backward(
        &self,
        s: &Stream,
        a: AttentionArgs<'_>,
        o: &Tensor,
        lse: &Tensor,
        dout: &Tensor,
        delta: &mut Tensor,
        dq: &mut Tensor,
        dk: &mut Tensor,
        dv: &mut Tensor,
    ) -> Result<()> {
        a.check_backward(o, lse, dout, delta, dq, dk, dv)?;
        let inputs = Inputs::of(&a)?;
        let (o, lse, dout) = (In::of(o), In::of(lse), In::of(dout));
        let (delta, dq, dk, dv) = (Out::of(delta), Out::of(dq), Out::of(dk), Out::of(dv));
        dispatch!(a.q.dtype(), T => self.run(s, move |team| {
            // SAFETY: stream order keeps the tensors until this job is done; outputs are apart from inputs.
            unsafe {
                let call = inputs.get::<T>()?;
                let saved = backward::Saved { o: o.get::<T>(), lse: lse.get::<f32>(), dout: dout.get::<T>() };
                backward::run(team, &call, &saved, delta.get::<f32>(), [dq.get::<T>(), dk.get::<T>(), dv.get::<T>()])
            }
        }))
    }
}

/// Views of the inputs, for a job.
#[derive(Clone, Copy)]
struct Inputs {
    dims: AttentionDims,
    qkv: [In; 3],
    cu: [In; 2],
    drop: Option<(Keep, [In; 3])>,
}

impl Inputs {
    fn of(a: &AttentionArgs<'_>) -> Result<Inputs> {
        let dims = a.dims;
        if dims.head_dim > MAX_HEAD_DIM {
            let why = format!("head dim {} is above {MAX_HEAD_DIM}", dims.head_dim);
            return Err(Error::Unsupported { op: "attention", device: "cpu:0".into(), why });
        }
        let drop = a.drop.filter(|d| d.site.p > 0.0).map(|d| {
            let (threshold, scale) = (drop_threshold(d.site.p), 1.0 / (1.0 - d.site.p));
            let keep = Keep { key: d.site.key, threshold, scale, word: 0 };
            (keep, [In::of(d.sample), In::of(d.offset_q), In::of(d.offset_k)])
        });
        Ok(Inputs { dims, qkv: [In::of(a.q), In::of(a.k), In::of(a.v)], cu: [In::of(a.cu_q), In::of(a.cu_k)], drop })
    }

    /// The inputs as slices.
    ///
    /// # Safety
    /// As [`In::get`].
    unsafe fn get<'a, T: PackLoad>(self) -> Result<Call<'a, T>> {
        // SAFETY: the caller's promise.
        let call = unsafe {
            let [q, k, v] = self.qkv.map(|x| x.get::<T>());
            let [cu_q, cu_k] = self.cu.map(|x| x.get::<i32>());
            let drop = self.drop.map(|(keep, ids)| {
                let [sample, query, key] = ids.map(|x| x.get::<i32>());
                Drop { keep, sample, query, key }
            });
            Call { dims: self.dims, q, k, v, cu_q, cu_k, drop }
        };
        call.check()?;
        Ok(call)
    }
}

/// Dropout with the names of all rows.
#[derive(Clone, Copy)]
struct Drop<'a> {
    keep: Keep,
    sample: &'a [i32],
    query: &'a [i32],
    key: &'a [i32],
}

impl Drop<'_> {
    /// The mask of one of this rank's heads.
    fn head(&self, first_head: usize, head: usize) -> Keep {
        Keep { word: (first_head + head) as u32 + 1, ..self.keep }
    }
}

/// Inputs of both directions as slices.
struct Call<'a, T> {
    dims: AttentionDims,
    q: &'a [T],
    k: &'a [T],
    v: &'a [T],
    cu_q: &'a [i32],
    cu_k: &'a [i32],
    drop: Option<Drop<'a>>,
}

/// Rows of one packed sequence.
#[derive(Clone, Debug)]
struct Seq {
    q: Range<usize>,
    k: Range<usize>,
}

impl<'a, T: PackLoad> Call<'a, T> {
    /// Refuses `cu_seqlens` that reach outside the tensors.
    fn check(&self) -> Result<()> {
        let d = &self.dims;
        let tq = self.q.len().checked_div(d.heads * d.head_dim).unwrap_or(0);
        let tk = self.k.len().checked_div(d.groups * d.head_dim).unwrap_or(0);
        for (name, cu, t) in [("cu_seqlens of q", self.cu_q, tq), ("cu_seqlens of k", self.cu_k, tk)] {
            let rising = cu.is_sorted() && cu.first().is_none_or(|&c| c == 0);
            if !rising || cu.last().is_some_and(|&c| c as usize != t) {
                return Err(Error::Data(format!("attention: {name} should rise from 0 to {t} rows, not {cu:?}")));
            }
        }
        Ok(())
    }

    fn sequences(&self) -> usize {
        self.cu_q.len().saturating_sub(1)
    }

    fn seq(&self, i: usize) -> Seq {
        let rows = |cu: &[i32]| cu[i] as usize..cu[i + 1] as usize;
        Seq { q: rows(self.cu_q), k: rows(self.cu_k) }
    }

    /// Most rows of any sequence.
    fn longest(cu: &[i32]) -> usize {
        cu.windows(2).map(|w| (w[1] - w[0]) as usize).max().unwrap_or(0)
    }

    /// Rows of a head of `[rows, heads, D]`, each as a lane.
    fn lanes<'x>(&self, x: &'x [T], heads: usize, head: usize, rows: Range<usize>) -> Operand<'x, T> {
        let (d, ld) = (self.dims.head_dim, heads * self.dims.head_dim);
        Operand { data: x.get(rows.start * ld + head * d..).unwrap_or(&[]), ld, lanes: rows.len(), lane_is_row: true }
    }

    /// Keys that query `r` of a sequence sees.
    fn keys_of(&self, seq: &Seq, r: usize) -> Range<usize> {
        let (lq, lk) = (seq.q.len() as isize, seq.k.len() as isize);
        let p = r as isize + lk - lq;
        let end = if self.dims.causal { (p + 1).clamp(0, lk) } else { lk };
        let start = self.window().map_or(0, |w| (p - w + 1).clamp(0, end));
        start as usize..end as usize
    }

    /// Queries that see key `j` of a sequence: the other way round.
    fn queries_of(&self, seq: &Seq, j: usize) -> Range<usize> {
        let (lq, lk) = (seq.q.len() as isize, seq.k.len() as isize);
        let r = j as isize - (lk - lq);
        let end = self.window().map_or(lq, |w| (r + w).clamp(0, lq));
        let start = if self.dims.causal { r.clamp(0, end) } else { 0 };
        start as usize..end as usize
    }

    fn window(&self) -> Option<isize> {
        // Far beyond any sequence is as good as the largest number, and cannot overflow.
        self.dims.window.map(|w| w.min(1 << 40) as isize)
    }
}
