//! AVX2 + FMA micro-kernel: 6 x 16, that is 12 accumulators of 8 lanes, 2 registers of B and one broadcast of A.

use std::arch::x86_64::*;

use super::Tile;

/// Rows of C in registers.
pub const MR: usize = 6;
/// Columns of C in registers.
pub const NR: usize = 16;

/// A is always packed: with six rows its panels cost little.
pub const READS_ROWS: bool = false;

/// Computes one tile of C of `rows` x `cols`, at most [`MR`] x [`NR`].
///
/// # Safety
/// The processor has AVX2 and FMA; pointers of `t` are good for the tile.
pub unsafe fn kernel(t: &Tile, rows: usize, cols: usize) {
    macro_rules! by_rows {
        ($v:literal) => {
            match rows {
                1 => tile::<1, $v>(t, cols),
                2 => tile::<2, $v>(t, cols),
                3 => tile::<3, $v>(t, cols),
                4 => tile::<4, $v>(t, cols),
                5 => tile::<5, $v>(t, cols),
                _ => tile::<6, $v>(t, cols),
            }
        };
    }
    // SAFETY: the caller's promise.
    unsafe { if cols <= 8 { by_rows!(1) } else { by_rows!(2) } }
}

/// Eight ones and eight zeros: a window of it masks the first lanes of a register.
static LANES: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];

/// `R` rows, `V` registers of columns, the last of them perhaps in part.
#[target_feature(enable = "avx2,fma")]
unsafe fn tile<const R: usize, const V: usize>(t: &Tile, cols: usize) {
    // SAFETY: packed panels hold k rows of MR and NR floats; C and bias are touched in `cols` lanes of R rows only;
    // the mask's window lies in LANES because cols is in 8 (V - 1) + 1 ..= 8 V.
    unsafe {
        let (mut a, mut b) = (t.a, t.b);
        let mut acc = [[_mm256_setzero_ps(); V]; R];
        for _ in 0..t.k {
            let mut bv = [_mm256_setzero_ps(); V];
            for (v, bv) in bv.iter_mut().enumerate() {
                *bv = _mm256_loadu_ps(b.add(v * 8));
            }
            for (r, acc) in acc.iter_mut().enumerate() {
                let x = _mm256_broadcast_ss(&*a.add(r));
                for (acc, &bv) in acc.iter_mut().zip(&bv) {
                    *acc = _mm256_fmadd_ps(x, bv, *acc);
                }
            }
            a = a.add(MR);
            b = b.add(NR);
        }
        let mut masks = [_mm256_set1_epi32(-1); V];
        masks[V - 1] = _mm256_loadu_si256(LANES.as_ptr().add(8 * V - cols).cast());
        let (alpha, beta) = (_mm256_set1_ps(t.alpha), _mm256_set1_ps(t.beta));
        for v in 0..V {
            let bias = match t.bias.is_null() {
                true => _mm256_setzero_ps(),
                false => _mm256_maskload_ps(t.bias.add(v * 8), masks[v]),
            };
            for (r, acc) in acc.iter().enumerate() {
                let c = t.c.add(r * t.ldc + v * 8);
                let mut y = _mm256_fmadd_ps(alpha, acc[v], bias);
                if t.beta != 0.0 {
                    y = _mm256_fmadd_ps(beta, _mm256_maskload_ps(c, masks[v]), y);
                }
                _mm256_maskstore_ps(c, masks[v], y);
            }
        }
    }
}
