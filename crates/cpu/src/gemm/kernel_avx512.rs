//! AVX-512 micro-kernel: 8 x 48, that is 24 accumulators of 16 lanes, 3 registers of B and one broadcast of A.
//!
//! 24 fused multiply-adds a step keep both 512-bit units busy for 12 cycles against 11 loads; and 8 and 48 divide
//! the sizes that transformers have (hidden 384 .. 4096, GPT-2's padded vocabulary 50304), so edges are rare.

use std::arch::x86_64::*;

use super::Tile;

/// Rows of C in registers.
pub const MR: usize = 8;
/// Columns of C in registers.
pub const NR: usize = 48;

/// A whose rows lie as stored is read there: the broadcasts take one float each, packed or not.
pub const READS_ROWS: bool = true;

/// Computes one tile of C of `rows` x `cols`, at most [`MR`] x [`NR`].
///
/// # Safety
/// The processor has AVX-512F; pointers of `t` are good for the tile.
pub unsafe fn kernel(t: &Tile, rows: usize, cols: usize) {
    // SAFETY: the caller's promise.
    unsafe { if t.a_row == 0 { any::<false>(t, rows, cols) } else { any::<true>(t, rows, cols) } }
}

/// [`kernel`], with A read as stored (`STORED`) or packed.
unsafe fn any<const STORED: bool>(t: &Tile, rows: usize, cols: usize) {
    macro_rules! by_rows {
        ($v:literal) => {
            match rows {
                1 => tile::<1, $v, STORED>(t, cols),
                2 => tile::<2, $v, STORED>(t, cols),
                3 => tile::<3, $v, STORED>(t, cols),
                4 => tile::<4, $v, STORED>(t, cols),
                5 => tile::<5, $v, STORED>(t, cols),
                6 => tile::<6, $v, STORED>(t, cols),
                7 => tile::<7, $v, STORED>(t, cols),
                _ => tile::<8, $v, STORED>(t, cols),
            }
        };
    }
    // SAFETY: the caller's promise.
    unsafe {
        match cols.div_ceil(16) {
            1 => by_rows!(1),
            2 => by_rows!(2),
            _ => by_rows!(3),
        }
    }
}

/// `R` rows, `V` registers of columns, the last of them perhaps in part.
#[target_feature(enable = "avx512f")]
unsafe fn tile<const R: usize, const V: usize, const STORED: bool>(t: &Tile, cols: usize) {
    // SAFETY: packed panels hold k rows of MR and NR floats, stored rows k floats each; C and bias are touched in `cols` lanes of R rows only.
    unsafe {
        let (mut a, mut b) = (t.a, t.b);
        // Floats from a row of A to the next, and from one k to the next.
        let (row, step_a) = if STORED { (t.a_row, 1) } else { (1, MR) };
        let mut acc = [[_mm512_setzero_ps(); V]; R];
        for r in 0..R {
            for v in 0..V {
                _mm_prefetch::<_MM_HINT_T0>(t.c.add(r * t.ldc + v * 16).cast());
            }
        }
        let mut step = |a: *const f32, b: *const f32| {
            let mut bv = [_mm512_setzero_ps(); V];
            for (v, bv) in bv.iter_mut().enumerate() {
                *bv = _mm512_loadu_ps(b.add(v * 16));
            }
            for (r, acc) in acc.iter_mut().enumerate() {
                let x = _mm512_set1_ps(*a.add(r * row));
                for (acc, &bv) in acc.iter_mut().zip(&bv) {
                    *acc = _mm512_fmadd_ps(x, bv, *acc);
                }
            }
        };
        let mut ahead = t.ahead;
        for _ in 0..t.k / 4 {
            _mm_prefetch::<_MM_HINT_T1>(ahead.cast());
            ahead = ahead.wrapping_add(16);
            for i in 0..4 {
                step(a.add(i * step_a), b.add(i * NR));
            }
            a = a.add(4 * step_a);
            b = b.add(4 * NR);
        }
        for _ in 0..t.k % 4 {
            step(a, b);
            a = a.add(step_a);
            b = b.add(NR);
        }
        let mut masks = [0xffff; V];
        masks[V - 1] = 0xffff >> (16 * V - cols);
        let (alpha, beta) = (_mm512_set1_ps(t.alpha), _mm512_set1_ps(t.beta));
        for v in 0..V {
            let bias = match t.bias.is_null() {
                true => _mm512_setzero_ps(),
                false => _mm512_maskz_loadu_ps(masks[v], t.bias.add(v * 16)),
            };
            for (r, acc) in acc.iter().enumerate() {
                let c = t.c.add(r * t.ldc + v * 16);
                let mut y = _mm512_fmadd_ps(alpha, acc[v], bias);
                if t.beta != 0.0 {
                    y = _mm512_fmadd_ps(beta, _mm512_maskz_loadu_ps(masks[v], c), y);
                }
                _mm512_mask_storeu_ps(c, masks[v], y);
            }
        }
    }
}
