//! Products of packed tiles, restricted to what rows may see.

use std::ops::Range;

use crate::gemm::{Micro, Operand, Tile};

/// Most rows of a block.
pub(super) const MAX_ROWS: usize = 128;

/// Rows and columns of a block for a head dim: what fits in a thread's scratch (see the callers' splits).
pub(super) fn block(head_dim: usize) -> (usize, usize) {
    match head_dim {
        0..=64 => (MAX_ROWS, 192),
        65..=128 => (96, 144),
        _ => (64, 96),
    }
}

/// Floats of `lanes` lanes packed in panels of `w`, `depth` deep.
pub(super) fn packed(lanes: usize, depth: usize, w: usize) -> usize {
    lanes.next_multiple_of(w) * depth
}

/// For each row of a block, the span of the block's columns that it sees.
pub(super) struct Spans {
    spans: [(u32, u32); MAX_ROWS],
    rows: usize,
}

impl Spans {
    /// Spans of `rows` rows, of the visible columns `seen(row)` those in `cols`.
    pub fn new(rows: usize, cols: &Range<usize>, seen: impl Fn(usize) -> Range<usize>) -> Spans {
        let mut spans = [(0, 0); MAX_ROWS];
        for (row, span) in spans[..rows].iter_mut().enumerate() {
            let r = seen(row);
            let (start, end) = (r.start.max(cols.start), r.end.min(cols.end));
            if start < end {
                *span = ((start - cols.start) as u32, (end - cols.start) as u32);
            }
        }
        Spans { spans, rows }
    }

    pub fn row(&self, i: usize) -> Range<usize> {
        self.spans[i].0 as usize..self.spans[i].1 as usize
    }

    /// The columns that any of some rows sees; empty when none.
    fn union(&self, rows: Range<usize>) -> Range<usize> {
        let seen = self.spans[rows.start..rows.end.min(self.rows)].iter().filter(|(a, b)| a < b);
        let (start, end) = seen.fold((u32::MAX, 0), |(a, b), &(c, d)| (a.min(c), b.max(d)));
        if start < end { start as usize..end as usize } else { 0..0 }
    }

    pub fn is_empty(&self) -> bool {
        self.union(0..self.rows).is_empty()
    }
}

/// `t = alpha x y^T` where some row sees it. x packed as A, y as B, both `depth` deep; t has rows of `ld` floats.
///
/// # Safety
/// The processor has M's instruction set; panels and t hold as many rows and columns.
pub(super) unsafe fn scores<M: Micro>(
    spans: &Spans,
    cols: usize,
    depth: usize,
    alpha: f32,
    x: &[f32],
    y: &[f32],
    t: &mut [f32],
    ld: usize,
) {
    for j in (0..cols).step_by(M::NR) {
        for i in (0..spans.rows).step_by(M::MR) {
            let seen = spans.union(i..i + M::MR);
            if seen.start >= j + M::NR || seen.end <= j {
                continue;
            }
            let (a, b, c) = (x[i * depth..].as_ptr(), y[j * depth..].as_ptr(), t[i * ld + j..].as_mut_ptr());
            let bias = std::ptr::null();
            let tile = Tile { k: depth, a, a_row: 0, b, c, ldc: ld, alpha, beta: 0.0, bias, ahead: a };
            // SAFETY: the caller's promise.
            unsafe { M::kernel(&tile, M::MR.min(spans.rows - i), M::NR.min(cols - j)) };
        }
    }
}

/// Floats of scratch that [`accumulate`] needs for a kernel that cannot read t where it lies.
pub(super) fn packed_rows<M: Micro>(rows: usize, cols: usize) -> usize {
    if M::READS_ROWS { 0 } else { packed(rows, cols, M::MR) }
}

/// `acc += t y` over what rows see; t has rows of `ld` floats, `cols` of them used and 0 where a row does not see; y
/// packed as B, of `width` columns; acc has rows of `width` floats; `scratch` as [`packed_rows`] says.
///
/// # Safety
/// As [`scores`].
pub(super) unsafe fn accumulate<M: Micro>(
    spans: &Spans,
    cols: usize,
    width: usize,
    (t, ld): (&[f32], usize),
    y: &[f32],
    acc: &mut [f32],
    scratch: &mut [f32],
) {
    if !M::READS_ROWS {
        let rows = Operand { data: t, ld, lanes: spans.rows, lane_is_row: true };
        M::pack_a(rows, 0, spans.rows.div_ceil(M::MR), 0..cols, scratch);
    }
    for j in (0..width).step_by(M::NR) {
        for i in (0..spans.rows).step_by(M::MR) {
            let seen = spans.union(i..i + M::MR);
            if seen.is_empty() {
                continue;
            }
            let (a, a_row) = match M::READS_ROWS {
                true => (t[i * ld + seen.start..].as_ptr(), ld),
                false => (scratch[i * cols + seen.start * M::MR..].as_ptr(), 0),
            };
            let b = y[j * cols + seen.start * M::NR..].as_ptr();
            let (c, bias) = (acc[i * width + j..].as_mut_ptr(), std::ptr::null());
            let tile = Tile { k: seen.len(), a, a_row, b, c, ldc: width, alpha: 1.0, beta: 1.0, bias, ahead: a };
            // SAFETY: the caller's promise.
            unsafe { M::kernel(&tile, M::MR.min(spans.rows - i), M::NR.min(width - j)) };
        }
    }
}

/// Zeroes what rows do not see, so that [`accumulate`] may take whole groups of rows.
pub(super) fn clear_unseen(spans: &Spans, cols: usize, t: &mut [f32], ld: usize) {
    for i in 0..spans.rows {
        let (seen, row) = (spans.row(i), &mut t[i * ld..][..cols]);
        row[..seen.start].fill(0.0);
        row[seen.end..].fill(0.0);
    }
}
