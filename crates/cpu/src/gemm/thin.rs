//! Products `A B^T` of which one operand has a few rows only (one token, one logit): packing would cost more
//! than the product. Each element of C is a dot product, in 32 lanes over K.

use ferrotron_device::Result;

use super::{PackLoad, Product};
use crate::kernels::math::sum;
use crate::multiversion;
use crate::team::{Team, chunks, row_grain};
use crate::view::{Disjoint, Storage};

/// Most rows of the thin operand.
pub(super) const MAX_THIN: usize = 4;
/// Elements of a row that are widened at once.
const K_BLOCK: usize = 4096;
/// Most rows of the other operand a task.
const MAX_GRAIN: usize = 256;

multiversion! {
    /// `sum a b` over two slices of one length, in 32 lanes that are added pairwise at the end.
    pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
        sum([a, b], |[a, b]| a * b)
    }
}

impl<T: PackLoad, C: Storage> Product<'_, T, C> {
    /// True when this file's way is the better one.
    pub(super) fn is_thin(&self) -> bool {
        let (m, n, k) = self.size;
        !self.g.trans_a && self.g.trans_b && (1..=MAX_THIN).contains(&m.min(n)) && k > 0
    }

    pub(super) fn run_thin(&self, team: &Team) -> Result<()> {
        let (m, n, k) = self.size;
        let thin_a = m <= n;
        let (thin, thin_rows, wide, wide_rows) = if thin_a { (self.a, m, self.b, n) } else { (self.b, n, self.a, m) };
        // SAFETY: the job has C for itself.
        let c = Disjoint::new(unsafe { std::slice::from_raw_parts_mut(self.c, m * n) });
        let pieces = chunks(wide_rows, row_grain(k * size_of::<T>()).min(MAX_GRAIN));
        team.run(pieces.count(), &|i, scratch| {
            let rows = pieces.range(i);
            let cols = if thin_a { rows.clone() } else { 0..n };
            let [thin_buf, row_buf, acc, bias] =
                scratch.split([thin_rows * K_BLOCK, K_BLOCK, rows.len() * thin_rows, cols.len()]);
            acc.fill(0.0);
            for k0 in (0..k).step_by(K_BLOCK) {
                let len = K_BLOCK.min(k - k0);
                let mut bufs = thin_buf.chunks_mut(K_BLOCK);
                let blocks: [&[f32]; MAX_THIN] = std::array::from_fn(|i| match bufs.next() {
                    Some(buf) => T::as_f32(&thin[i * k + k0..][..len], &mut buf[..len]),
                    None => &[],
                });
                for (row, acc) in rows.clone().zip(acc.chunks_mut(thin_rows)) {
                    let row = T::as_f32(&wide[row * k + k0..][..len], &mut row_buf[..len]);
                    for (acc, thin) in acc.iter_mut().zip(&blocks) {
                        *acc += dot(team.isa(), row, thin);
                    }
                }
            }
            let has_bias = self.load_bias(cols.start, bias);
            for (r, acc) in rows.clone().zip(acc.chunks(thin_rows)) {
                for (t, &sum) in acc.iter().enumerate() {
                    let (row, col) = if thin_a { (t, r) } else { (r, t) };
                    // SAFETY: an element of this task's rows or columns of C.
                    let c = unsafe { &mut c.part(row * n + col, 1)[0] };
                    let mut y = self.g.alpha * sum + if has_bias { bias[col - cols.start] } else { 0.0 };
                    if self.g.beta != 0.0 {
                        y += self.g.beta * c.to_f32();
                    }
                    *c = C::from_f32(y);
                }
            }
        })
    }
}
