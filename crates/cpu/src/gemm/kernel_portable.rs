//! Micro-kernel in plain Rust: 6 x 8, which compilers keep in 12 registers of four lanes (SSE2, NEON).

use super::Tile;

/// Rows of C in registers.
pub const MR: usize = 6;
/// Columns of C in registers.
pub const NR: usize = 8;

/// `a b + c`, fused where the base target has an instruction for it.
#[inline(always)]
fn fma(a: f32, b: f32, c: f32) -> f32 {
    if cfg!(target_arch = "aarch64") { a.mul_add(b, c) } else { a * b + c }
}

/// A is always packed: with six rows its panels cost little.
pub const READS_ROWS: bool = false;

/// Computes one tile of C of `rows` x `cols`, at most [`MR`] x [`NR`].
///
/// # Safety
/// Pointers of `t` are good for the tile.
pub unsafe fn kernel(t: &Tile, rows: usize, cols: usize) {
    // SAFETY: packed panels hold k rows of MR and NR floats, padded with zeros.
    let (a, b) = unsafe { (std::slice::from_raw_parts(t.a, t.k * MR), std::slice::from_raw_parts(t.b, t.k * NR)) };
    let mut acc = [[0f32; NR]; MR];
    // A row of accumulators is an array of its own, and the loops over both have constant bounds: in this form they
    // become whole registers.
    for (a, b) in a.as_chunks::<MR>().0.iter().zip(b.as_chunks::<NR>().0) {
        for r in 0..MR {
            let row: [f32; NR] = std::array::from_fn(|j| fma(a[r], b[j], acc[r][j]));
            acc[r] = row;
        }
    }
    for (r, acc) in acc.iter().enumerate().take(rows) {
        // SAFETY: C is good for `cols` elements of `rows` rows, and so is bias, if any.
        let (c, bias) = unsafe {
            let bias = (!t.bias.is_null()).then(|| std::slice::from_raw_parts(t.bias, cols));
            (std::slice::from_raw_parts_mut(t.c.add(r * t.ldc), cols), bias)
        };
        for (j, c) in c.iter_mut().enumerate() {
            let y = fma(t.alpha, acc[j], bias.map_or(0.0, |b| b[j]));
            *c = if t.beta == 0.0 { y } else { fma(t.beta, *c, y) };
        }
    }
}
