//! Backward in two passes over the same tiles, with the roles of queries and keys exchanged.
//!
//! | pass | rows | columns | `t1 = scale x1 y1^T` | `t2 = x2 y2^T` | sums |
//! |---|---|---|---|---|---|
//! | queries | q, do | k, v | scores | do v^T | dq += dS k |
//! | keys | k, v | q, do | scores^T | v do^T | dk += dS^T q, dv += P^T do |

use std::ops::Range;

use ferrotron_device::Result;

use super::forward::seq_total;
use super::softmax::{gradient_row, keep_keys, keep_queries, scale_row};
use super::tile::{self, Spans, accumulate, clear_unseen, packed, packed_rows, scores};
use super::{Call, Seq};
use crate::gemm::{Micro, Operand, PackLoad, dot, with_micro};
use crate::isa::Isa;
use crate::scratch::Scratch;
use crate::team::{Team, chunks, row_grain};
use crate::view::Disjoint;

/// What forward left, and the gradient of its output.
pub(super) struct Saved<'a, T> {
    pub o: &'a [T],
    pub lse: &'a [f32],
    pub dout: &'a [T],
}

/// Fills delta, then dq, then dk and dv.
pub(super) fn run<T: PackLoad>(
    team: &Team,
    call: &Call<'_, T>,
    saved: &Saved<'_, T>,
    delta: &mut [f32],
    [dq, dk, dv]: [&mut [T]; 3],
) -> Result<()> {
    let (heads, groups, d, isa) = (call.dims.heads, call.dims.groups, call.dims.head_dim, team.isa());
    let total = seq_total(call);
    let pieces = chunks(total, row_grain(heads * d * size_of::<T>()));
    let deltas = Disjoint::new(delta);
    team.run(pieces.count(), &|i, scratch| {
        let [o, dout] = scratch.split([d, d]);
        for t in pieces.range(i) {
            for head in 0..heads {
                let at = (t * heads + head) * d..(t * heads + head + 1) * d;
                let sum = dot(isa, T::as_f32(&saved.o[at.clone()], o), T::as_f32(&saved.dout[at], dout));
                // SAFETY: row t is this task's.
                unsafe { deltas.part(head * total + t, 1)[0] = sum };
            }
        }
    })?;
    let pass = Pass { isa, call, saved, delta, total };
    let rows = tile::block(d).0;
    let blocks = chunks(Call::<T>::longest(call.cu_q), rows).count();
    let dq = Disjoint::new(dq);
    team.run(call.sequences() * heads * blocks, &|i, scratch| {
        let (seq, head, block) = (i / (heads * blocks), i / blocks % heads, blocks - 1 - i % blocks);
        let seq = call.seq(seq);
        let rows = chunks(seq.q.len(), rows).range(block);
        with_micro!(isa, M => pass.block::<M>(Side::Queries, &seq, head..head + 1, rows, [&dq, &dq], scratch));
    })?;
    let blocks = chunks(Call::<T>::longest(call.cu_k), rows).count();
    let (dk, dv, share) = (Disjoint::new(dk), Disjoint::new(dv), heads / groups);
    team.run(call.sequences() * groups * blocks, &|i, scratch| {
        // First keys first: under a causal mask most queries see them.
        let (seq, group, block) = (i / (groups * blocks), i / blocks % groups, i % blocks);
        let seq = call.seq(seq);
        let rows = chunks(seq.k.len(), rows).range(block);
        let heads = group * share..(group + 1) * share;
        with_micro!(isa, M => pass.block::<M>(Side::Keys, &seq, heads, rows, [&dk, &dv], scratch));
    })
}

/// What the rows of a pass are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Queries,
    Keys,
}

struct Pass<'a, T> {
    isa: Isa,
    call: &'a Call<'a, T>,
    saved: &'a Saved<'a, T>,
    delta: &'a [f32],
    /// Rows of q in all.
    total: usize,
}

impl<T: PackLoad> Pass<'_, T> {
    /// Gradients of one block of rows: of one query head, or of one KV group, summed over its heads in order.
    fn block<M: Micro>(
        &self,
        side: Side,
        seq: &Seq,
        heads: Range<usize>,
        rows: Range<usize>,
        out: [&Disjoint<'_, T>; 2],
        scratch: &mut Scratch,
    ) {
        if rows.start >= rows.end {
            return;
        }
        let (call, dims) = (self.call, &self.call.dims);
        let (d, len, group) = (dims.head_dim, rows.len(), heads.start / (dims.heads / dims.groups));
        let (rows_max, cols_max) = tile::block(d);
        let row_panel = packed(rows_max, d, M::MR);
        let (lanes, plain) = (packed(cols_max, d, M::NR), packed(d, cols_max, M::NR));
        let [x1, x2, y1, y2, y1p, y2p, t1, t2, tp, acc1, acc2, keep] = scratch.split([
            row_panel,
            row_panel,
            lanes,
            lanes,
            plain,
            if side == Side::Keys { plain } else { 0 },
            rows_max * cols_max,
            rows_max * cols_max,
            packed_rows::<M>(rows_max, cols_max),
            rows_max * d,
            rows_max * d,
            cols_max,
        ]);
        acc1[..len * d].fill(0.0);
        acc2[..len * d].fill(0.0);
        let column_blocks = match side {
            Side::Queries => chunks(seq.k.len(), cols_max),
            Side::Keys => chunks(seq.q.len(), cols_max),
        };
        for head in heads.clone() {
            if head == heads.start || side == Side::Queries {
                let [a, b] = self.operands(side == Side::Queries, seq, head, group, &rows);
                M::pack_a(a, 0, len.div_ceil(M::MR), 0..d, x1);
                M::pack_a(b, 0, len.div_ceil(M::MR), 0..d, x2);
            }
            for cols in (0..column_blocks.count()).map(|i| column_blocks.range(i)) {
                let spans = Spans::new(len, &cols, |r| match side {
                    Side::Queries => call.keys_of(seq, rows.start + r),
                    Side::Keys => call.queries_of(seq, rows.start + r),
                });
                if spans.is_empty() {
                    continue;
                }
                let width = cols.len();
                let [a, b] = self.operands(side == Side::Keys, seq, head, group, &cols);
                M::pack_b(a, 0, width.div_ceil(M::NR), 0..d, y1);
                M::pack_b(b, 0, width.div_ceil(M::NR), 0..d, y2);
                M::pack_b(Operand { lanes: d, lane_is_row: false, ..a }, 0, d.div_ceil(M::NR), 0..width, y1p);
                // SAFETY: M is the team's; tiles are cut to their blocks.
                unsafe {
                    scores::<M>(&spans, width, d, dims.scale, x1, y1, t1, cols_max);
                    scores::<M>(&spans, width, d, 1.0, x2, y2, t2, cols_max);
                }
                clear_unseen(&spans, width, t1, cols_max);
                clear_unseen(&spans, width, t2, cols_max);
                for r in 0..len {
                    let seen = spans.row(r);
                    let (t1, t2) = (&mut t1[r * cols_max..][seen.clone()], &mut t2[r * cols_max..][seen.clone()]);
                    let columns = cols.start + seen.start..cols.start + seen.end;
                    self.row(side, seq, head, rows.start + r, columns, t1, t2, keep);
                }
                // SAFETY: as above.
                unsafe { accumulate::<M>(&spans, width, d, (t2, cols_max), y1p, acc1, tp) };
                if side == Side::Keys {
                    M::pack_b(Operand { lanes: d, lane_is_row: false, ..b }, 0, d.div_ceil(M::NR), 0..width, y2p);
                    // SAFETY: as above.
                    unsafe { accumulate::<M>(&spans, width, d, (t1, cols_max), y2p, acc2, tp) };
                }
            }
        }
        let (first, stride, head) = match side {
            Side::Queries => (seq.q.start, dims.heads, heads.start),
            Side::Keys => (seq.k.start, dims.groups, group),
        };
        scale_row(self.isa, &mut acc1[..len * d], dims.scale);
        for r in 0..len {
            let at = ((first + rows.start + r) * stride + head) * d;
            // SAFETY: this task's rows of this head or group; the second output is another tensor.
            unsafe {
                T::store(&acc1[r * d..(r + 1) * d], out[0].part(at, d));
                if side == Side::Keys {
                    T::store(&acc2[r * d..(r + 1) * d], out[1].part(at, d));
                }
            }
        }
    }

    /// (q, do) of some query rows, or (k, v) of some key rows.
    fn operands(
        &self,
        queries: bool,
        seq: &Seq,
        head: usize,
        group: usize,
        rows: &Range<usize>,
    ) -> [Operand<'_, T>; 2] {
        let (call, dims) = (self.call, &self.call.dims);
        if queries {
            let rows = seq.q.start + rows.start..seq.q.start + rows.end;
            [call.lanes(call.q, dims.heads, head, rows.clone()), call.lanes(self.saved.dout, dims.heads, head, rows)]
        } else {
            let rows = seq.k.start + rows.start..seq.k.start + rows.end;
            [call.lanes(call.k, dims.groups, group, rows.clone()), call.lanes(call.v, dims.groups, group, rows)]
        }
    }

    /// Scores and do v^T of a row become P (dropped) and dS. `row` and `columns` count in the sequence.
    #[allow(clippy::too_many_arguments)]
    fn row(
        &self,
        side: Side,
        seq: &Seq,
        head: usize,
        row: usize,
        columns: Range<usize>,
        t1: &mut [f32],
        t2: &mut [f32],
        keep: &mut [f32],
    ) {
        let keep = &mut keep[..if self.call.drop.is_some() { columns.len() } else { 0 }];
        let of_queries = |r: Range<usize>| seq.q.start + r.start..seq.q.start + r.end;
        let of_keys = |r: Range<usize>| seq.k.start + r.start..seq.k.start + r.end;
        let row = row..row + 1;
        let queries = of_queries(if side == Side::Queries { row.clone() } else { columns.clone() });
        if let Some(drop) = &self.call.drop {
            let mask = drop.head(self.call.dims.first_head, head);
            match side {
                Side::Queries => {
                    let (t, keys) = (queries.start, &drop.key[of_keys(columns)]);
                    keep_keys(self.isa, mask, drop.sample[t], drop.query[t], keys, keep);
                }
                Side::Keys => {
                    let (sample, query) = (&drop.sample[queries.clone()], &drop.query[queries.clone()]);
                    keep_queries(self.isa, mask, sample, query, drop.key[of_keys(row).start], keep);
                }
            }
        }
        let saved = head * self.total + queries.start..head * self.total + queries.end;
        gradient_row(self.isa, t1, t2, &self.saved.lse[saved.clone()], &self.delta[saved], keep);
    }
}
