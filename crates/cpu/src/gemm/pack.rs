//! Packing: a matrix in storage dtype becomes panels of f32 that the micro-kernel reads one after the other.
//!
//! A panel holds `W` lanes (rows of op(A), columns of op(B)) of all K: `panel[k * W + lane]`, missing lanes are zero.
//! 16-bit storage is converted here, so kernels know f32 only.

use std::ops::Range;

use half::{bf16, f16};

use crate::isa::Isa;
use crate::view::Storage;

/// A matrix operand as lanes and depth: `lanes` rows of op(A) or columns of op(B), each of the same K.
#[derive(Clone, Copy)]
pub struct Operand<'a, T> {
    /// Elements, row-major as stored.
    pub data: &'a [T],
    /// Elements of a stored row.
    pub ld: usize,
    /// Number of lanes.
    pub lanes: usize,
    /// True when a lane is a stored row, its K elements side by side; else a stored column.
    pub lane_is_row: bool,
}

impl<T: Storage> Operand<'_, T> {
    #[inline(always)]
    fn index(&self, lane: usize, k: usize) -> usize {
        if self.lane_is_row { lane * self.ld + k } else { k * self.ld + lane }
    }
}

/// Packs `count` panels that begin at lane `lane0` over `ks` into `dst`, `ks.len() * W` floats each.
pub fn panels<T: PackLoad, const W: usize>(
    isa: Isa,
    m: Operand<'_, T>,
    lane0: usize,
    count: usize,
    ks: Range<usize>,
    dst: &mut [f32],
) {
    let n = ks.len();
    if n == 0 {
        return;
    }
    // Groups of eight lanes that exist are packed by vector code, for the first `fast` k; the rest by plain loops.
    let fast = vector::<T, W>(isa, &m, lane0, count, ks.clone(), dst);
    for (p, dst) in dst.chunks_exact_mut(n * W).enumerate().take(count) {
        let lane0 = lane0 + p * W;
        for at in (0..W).step_by(8) {
            let skip = if lane0 + at + 8 <= m.lanes { fast } else { 0 };
            for (k, row) in ks.clone().zip(dst.chunks_exact_mut(W)).skip(skip) {
                for (lane, v) in row.iter_mut().enumerate().skip(at).take(8) {
                    let lane = lane0 + lane;
                    *v = if lane < m.lanes { m.data[m.index(lane, k)].to_f32() } else { 0.0 };
                }
            }
        }
    }
}

/// The vector code of [`panels`]; gives for how many of the first k it has packed the full groups of eight lanes.
///
/// Eight lanes of a panel of six spill into the panel's next row, which is written after it; so the last row is left
/// out then.
#[cfg(all(target_arch = "x86_64", not(ferrotron_portable)))]
fn vector<T: PackLoad, const W: usize>(
    isa: Isa,
    m: &Operand<'_, T>,
    lane0: usize,
    count: usize,
    ks: Range<usize>,
    dst: &mut [f32],
) -> usize {
    let n = ks.len() - usize::from(!W.is_multiple_of(8));
    match isa {
        Isa::Portable => 0,
        // SAFETY: both have AVX2 and F16C.
        Isa::Avx512 | Isa::Avx2 => unsafe {
            match m.lane_is_row {
                true => x86::transpose::<T, W>(m, lane0, count, ks, n / 8 * 8, dst),
                false => x86::copy::<T, W>(m, lane0, count, ks, n, dst),
            }
        },
    }
}

#[cfg(not(all(target_arch = "x86_64", not(ferrotron_portable))))]
fn vector<T: PackLoad, const W: usize>(
    _: Isa,
    _: &Operand<'_, T>,
    _: usize,
    _: usize,
    _: Range<usize>,
    _: &mut [f32],
) -> usize {
    0
}

/// Storage types as packing loads them.
pub trait PackLoad: Storage {
    /// Eight values as f32.
    ///
    /// # Safety
    /// The processor has AVX2 and F16C; eight values can be read at `p`.
    #[cfg(all(target_arch = "x86_64", not(ferrotron_portable)))]
    unsafe fn load8(p: *const Self) -> std::arch::x86_64::__m256;
}

impl PackLoad for f32 {
    #[cfg(all(target_arch = "x86_64", not(ferrotron_portable)))]
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn load8(p: *const f32) -> std::arch::x86_64::__m256 {
        // SAFETY: the caller's promise.
        unsafe { std::arch::x86_64::_mm256_loadu_ps(p) }
    }
}

impl PackLoad for bf16 {
    #[cfg(all(target_arch = "x86_64", not(ferrotron_portable)))]
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn load8(p: *const bf16) -> std::arch::x86_64::__m256 {
        use std::arch::x86_64::*;
        // SAFETY: the caller's promise.
        let wide = _mm256_cvtepu16_epi32(unsafe { _mm_loadu_si128(p.cast()) });
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
    }
}

impl PackLoad for f16 {
    #[cfg(all(target_arch = "x86_64", not(ferrotron_portable)))]
    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn load8(p: *const f16) -> std::arch::x86_64::__m256 {
        use std::arch::x86_64::*;
        // SAFETY: the caller's promise.
        _mm256_cvtph_ps(unsafe { _mm_loadu_si128(p.cast()) })
    }
}

#[cfg(all(target_arch = "x86_64", not(ferrotron_portable)))]
mod x86 {
    use std::arch::x86_64::*;
    use std::ops::Range;

    use super::{Operand, PackLoad};

    /// Lanes are stored columns: row by row, so that each cache line is read once, whatever the stride. Does and gives
    /// the first `n` of `ks`.
    ///
    /// # Safety
    /// AVX2 and F16C.
    #[target_feature(enable = "avx2,f16c")]
    pub unsafe fn copy<T: PackLoad, const W: usize>(
        m: &Operand<'_, T>,
        lane0: usize,
        count: usize,
        ks: Range<usize>,
        n: usize,
        dst: &mut [f32],
    ) -> usize {
        let len = ks.len() * W;
        assert!(count * len <= dst.len());
        for i in 0..n {
            let row = &m.data[(ks.start + i) * m.ld..][..m.lanes];
            for p in 0..count {
                for at in (0..W).step_by(8) {
                    let lane = lane0 + p * W + at;
                    if lane + 8 <= m.lanes {
                        // SAFETY: eight lanes of the row; eight floats of dst, as rows that spill have a next one.
                        unsafe {
                            let v = T::load8(row.as_ptr().add(lane));
                            _mm256_storeu_ps(dst.as_mut_ptr().add(p * len + i * W + at), v);
                        }
                    }
                }
            }
        }
        n
    }

    /// Lanes are stored rows: blocks of 8 x 8 are transposed. Does and gives the first `n` of `ks`, a multiple of 8.
    ///
    /// # Safety
    /// AVX2 and F16C.
    #[target_feature(enable = "avx2,f16c")]
    pub unsafe fn transpose<T: PackLoad, const W: usize>(
        m: &Operand<'_, T>,
        lane0: usize,
        count: usize,
        ks: Range<usize>,
        n: usize,
        dst: &mut [f32],
    ) -> usize {
        let len = ks.len() * W;
        assert!(count * len <= dst.len());
        for p in 0..count {
            for at in (0..W).step_by(8) {
                let lane = lane0 + p * W + at;
                if lane + 8 > m.lanes {
                    continue;
                }
                let src = &m.data[lane * m.ld + ks.start..][..7 * m.ld + n];
                for i in (0..n).step_by(8) {
                    let mut r = [_mm256_setzero_ps(); 8];
                    for (j, r) in r.iter_mut().enumerate() {
                        // SAFETY: elements i .. i + 8 of lane j, i + 8 <= n.
                        *r = unsafe { T::load8(src.as_ptr().add(j * m.ld + i)) };
                    }
                    for (j, r) in transpose8(r).into_iter().enumerate() {
                        // SAFETY: eight floats of dst, as rows that spill have a next one.
                        unsafe { _mm256_storeu_ps(dst.as_mut_ptr().add(p * len + (i + j) * W + at), r) };
                    }
                }
            }
        }
        n
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn transpose8(r: [__m256; 8]) -> [__m256; 8] {
        // pairs of rows, then pairs of pairs, then halves
        let a = [
            _mm256_unpacklo_ps(r[0], r[1]),
            _mm256_unpackhi_ps(r[0], r[1]),
            _mm256_unpacklo_ps(r[2], r[3]),
            _mm256_unpackhi_ps(r[2], r[3]),
            _mm256_unpacklo_ps(r[4], r[5]),
            _mm256_unpackhi_ps(r[4], r[5]),
            _mm256_unpacklo_ps(r[6], r[7]),
            _mm256_unpackhi_ps(r[6], r[7]),
        ];
        let b = [
            _mm256_shuffle_ps::<0x44>(a[0], a[2]),
            _mm256_shuffle_ps::<0xee>(a[0], a[2]),
            _mm256_shuffle_ps::<0x44>(a[1], a[3]),
            _mm256_shuffle_ps::<0xee>(a[1], a[3]),
            _mm256_shuffle_ps::<0x44>(a[4], a[6]),
            _mm256_shuffle_ps::<0xee>(a[4], a[6]),
            _mm256_shuffle_ps::<0x44>(a[5], a[7]),
            _mm256_shuffle_ps::<0xee>(a[5], a[7]),
        ];
        [
            _mm256_permute2f128_ps::<0x20>(b[0], b[4]),
            _mm256_permute2f128_ps::<0x20>(b[1], b[5]),
            _mm256_permute2f128_ps::<0x20>(b[2], b[6]),
            _mm256_permute2f128_ps::<0x20>(b[3], b[7]),
            _mm256_permute2f128_ps::<0x31>(b[0], b[4]),
            _mm256_permute2f128_ps::<0x31>(b[1], b[5]),
            _mm256_permute2f128_ps::<0x31>(b[2], b[6]),
            _mm256_permute2f128_ps::<0x31>(b[3], b[7]),
        ]
    }
}
