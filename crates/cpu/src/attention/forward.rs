//! Forward: `o = softmax(scale q k^T) v` by blocks of keys with the online softmax.

use ferrotron_device::Result;

use super::softmax::{keep_keys, multiply_row, scale_row, softmax_row};
use super::tile::{self, Spans, accumulate, clear_unseen, packed, packed_rows, scores};
use super::{Call, Seq};
use crate::gemm::{Micro, Operand, PackLoad, with_micro};
use crate::isa::Isa;
use crate::kernels::math::exp;
use crate::scratch::Scratch;
use crate::team::{Team, chunks};
use crate::view::Disjoint;

/// Fills o and lse.
pub(super) fn run<T: PackLoad>(team: &Team, call: &Call<'_, T>, o: &mut [T], lse: &mut [f32]) -> Result<()> {
    let (heads, d) = (call.dims.heads, call.dims.head_dim);
    let blocks = chunks(Call::<T>::longest(call.cu_q), tile::block(d).0).count();
    let (o, lse, isa) = (Disjoint::new(o), Disjoint::new(lse), team.isa());
    team.run(call.sequences() * heads * blocks, &|i, scratch| {
        // Last queries first: under a causal mask they have the most to do.
        let (seq, head, block) = (i / (heads * blocks), i / blocks % heads, blocks - 1 - i % blocks);
        with_micro!(isa, M => task::<M, T>(isa, call, call.seq(seq), head, block, &o, &lse, scratch));
    })
}

/// One block of queries of one head.
#[allow(clippy::too_many_arguments)]
fn task<M: Micro, T: PackLoad>(
    isa: Isa,
    call: &Call<'_, T>,
    seq: Seq,
    head: usize,
    block: usize,
    o: &Disjoint<'_, T>,
    lse: &Disjoint<'_, f32>,
    scratch: &mut Scratch,
) {
    let dims = &call.dims;
    let (d, n, group) = (dims.head_dim, dims.heads, head / (dims.heads / dims.groups));
    let (rows_max, cols_max) = tile::block(d);
    let rows = chunks(seq.q.len(), rows_max).range(block);
    if rows.start >= rows.end {
        return;
    }
    let len = rows.len();
    let [q, k, v, t, p, acc, max, sum, keep] = scratch.split([
        packed(rows_max, d, M::MR),
        packed(cols_max, d, M::NR),
        packed(d, cols_max, M::NR),
        rows_max * cols_max,
        packed_rows::<M>(rows_max, cols_max),
        rows_max * d,
        len,
        len,
        cols_max,
    ]);
    acc[..len * d].fill(0.0);
    max.fill(f32::NEG_INFINITY);
    sum.fill(0.0);
    let first = seq.q.start + rows.start;
    M::pack_a(call.lanes(call.q, n, head, first..first + len), 0, len.div_ceil(M::MR), 0..d, q);

    let key_blocks = chunks(seq.k.len(), cols_max);
    for cols in (0..key_blocks.count()).map(|i| key_blocks.range(i)) {
        let spans = Spans::new(len, &cols, |r| call.keys_of(&seq, rows.start + r));
        if spans.is_empty() {
            continue;
        }
        let width = cols.len();
        let keys = seq.k.start + cols.start..seq.k.start + cols.end;
        let key_lanes = call.lanes(call.k, dims.groups, group, keys.clone());
        let value_rows =
            Operand { lanes: d, lane_is_row: false, ..call.lanes(call.v, dims.groups, group, keys.clone()) };
        M::pack_b(key_lanes, 0, width.div_ceil(M::NR), 0..d, k);
        M::pack_b(value_rows, 0, d.div_ceil(M::NR), 0..width, v);
        // SAFETY: M is the team's; tiles are cut to their blocks.
        unsafe { scores::<M>(&spans, width, d, dims.scale, q, k, t, cols_max) };
        clear_unseen(&spans, width, t, cols_max);
        for r in 0..len {
            let seen = spans.row(r);
            if seen.is_empty() {
                continue;
            }
            let row = &mut t[r * cols_max..][seen.clone()];
            let (m, s) = softmax_row(isa, row, max[r]);
            let fade = exp(max[r] - m);
            if fade != 1.0 {
                scale_row(isa, &mut acc[r * d..(r + 1) * d], fade);
            }
            (max[r], sum[r]) = (m, sum[r] * fade + s);
            if let Some(drop) = &call.drop {
                let names = &drop.key[keys.start + seen.start..keys.start + seen.end];
                let (head, keep) = (drop.head(dims.first_head, head), &mut keep[..names.len()]);
                keep_keys(isa, head, drop.sample[first + r], drop.query[first + r], names, keep);
                multiply_row(isa, row, keep);
            }
        }
        // SAFETY: as above.
        unsafe { accumulate::<M>(&spans, width, d, (t, cols_max), v, acc, p) };
    }

    let total = seq_total(call);
    for r in 0..len {
        let row = &mut acc[r * d..(r + 1) * d];
        // A row that saw no key: o = 0, lse = -inf.
        let seen = sum[r] > 0.0 || sum[r].is_nan();
        scale_row(isa, row, if seen { 1.0 / sum[r] } else { 0.0 });
        let t = first + r;
        // SAFETY: this task's rows of this head.
        unsafe {
            T::store(row, o.part((t * n + head) * d, d));
            lse.part(head * total + t, 1)[0] = if seen { max[r] + sum[r].ln() } else { f32::NEG_INFINITY };
        }
    }
}

/// Rows of q in all.
pub(super) fn seq_total<T>(call: &Call<'_, T>) -> usize {
    call.cu_q.last().map_or(0, |&t| t as usize)
}
