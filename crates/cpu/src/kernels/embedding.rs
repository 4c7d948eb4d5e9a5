//! Row lookups. Contract: `ferrotron_device::ops::embedding`.

use std::ops::Range;

use ferrotron_device::ops::{EmbeddingOps, embedding};
use ferrotron_device::{Result, Stream, Tensor};

use super::block::{BLOCK, ColumnRange, Dst, DstRows, Src, blocks, columns};
use crate::CpuOps;
use crate::multiversion;
use crate::team::row_grain;
use crate::view::{In, Out};

/// Columns that a task of the backward pass takes: each task reads all ids, so that every row of dw is summed in the
/// order of t.
const COLUMNS: usize = 128;

/// Row of this shard that an id names.
#[inline(always)]
fn local(id: i32, first: usize, held: usize) -> Option<usize> {
    let row = i64::from(id) - first as i64;
    (0..held as i64).contains(&row).then_some(row as usize)
}

multiversion! {
    fn look_up(ids: &[i32], first: usize, held: usize, h: usize, w: Src<'_>, accumulate: bool, y: Dst<'_>) {
        let mut y = y;
        let (mut bw, mut by) = ([0.0; BLOCK], [0.0; BLOCK]);
        for (t, &id) in ids.iter().enumerate() {
            let row = local(id, first, held);
            for (c, n) in blocks(h) {
                let at = t * h + c;
                match row {
                    Some(row) => {
                        let w = w.read(row * h + c, n, &mut bw);
                        if accumulate {
                            let sum = y.load(at, n, &mut by);
                            for (s, w) in sum.iter_mut().zip(w) {
                                *s += w;
                            }
                            y.store(at, &by[..n]);
                        } else {
                            y.store(at, w);
                        }
                    }
                    None if accumulate => {}
                    None => y.write(at, n, &mut by, |y| y.fill(0.0)),
                }
            }
        }
    }
}

multiversion! {
    /// Adds `dy[t, columns]` to row `ids[t]` of dw.
    fn scatter(ids: &[i32], first: usize, held: usize, h: usize, columns: Range<usize>, dy: Src<'_>, dw: ColumnRange<'_>) {
        let mut dw = dw;
        let mut buf = [0.0; BLOCK];
        for (t, &id) in ids.iter().enumerate() {
            if let Some(row) = local(id, first, held) {
                let dy = dy.read(t * h + columns.start, columns.len(), &mut buf);
                for (dw, dy) in dw.row(row).iter_mut().zip(dy) {
                    *dw += dy;
                }
            }
        }
    }
}

impl EmbeddingOps for CpuOps {
    fn embedding(
        &self,
        s: &Stream,
        ids: &Tensor,
        first: usize,
        w: &Tensor,
        accumulate: bool,
        y: &mut Tensor,
    ) -> Result<()> {
        let (t, v, h) = embedding::check(ids, w, y)?;
        let (ids, w, y) = (In::of(ids), In::of(w), Out::of(y));
        self.run(s, move |team| {
            // SAFETY: stream order keeps the tensors until this job is done; the check has y apart from w, and ids
            // are of another dtype.
            let (ids, w, y) = unsafe { (ids.get::<i32>(), Src::of(w), DstRows::of(y, h)) };
            team.rows(y, t, row_grain(h * 8), |r, y, _| look_up(team.isa(), &ids[r], first, v, h, w, accumulate, y))
        })
    }

    fn embedding_backward(&self, s: &Stream, ids: &Tensor, first: usize, dy: &Tensor, dw: &mut Tensor) -> Result<()> {
        let (_, v, h) = embedding::check_backward(ids, dy, dw)?;
        let (ids, dy, dw) = (In::of(ids), In::of(dy), Out::of(dw));
        self.run(s, move |team| {
            // SAFETY: as in the forward pass.
            let (ids, dy, dw) = unsafe { (ids.get::<i32>(), Src::of(dy), dw.get::<f32>()) };
            team.rows(columns(dw, h), h, COLUMNS, |r, dw, _| scatter(team.isa(), ids, first, v, h, r, dy, dw))
        })
    }
}
