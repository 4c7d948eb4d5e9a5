//! Conversion of element types while reading. Narrowing rounds to nearest, ties to even; widening is exact.

use ferrotron_base::DType;
use half::{bf16, f16};

/// True if [`convert`] can turn `from` into `to`: any type into itself, f32, bf16 and f16 into each other, f64 and f32
/// into each other. (f64 to 16 bits is left out: by way of f32 it would round twice.)
pub fn convertible(from: DType, to: DType) -> bool {
    use DType::{BF16, F16, F32, F64};
    from == to || matches!((from, to), (F32, BF16 | F16 | F64) | (BF16, F32 | F16) | (F16, F32 | BF16) | (F64, F32))
}

/// Converts little-endian elements `src` of type `from` into `dst` of type `to`; both hold the same number of elements.
///
/// # Panics
/// If the pair is not [`convertible`] or the lengths do not belong together.
pub fn convert(from: DType, src: &[u8], to: DType, dst: &mut [u8]) {
    use DType::{BF16, F16, F32, F64};
    assert_eq!(src.len() / from.size(), dst.len() / to.size(), "{from} and {to} elements");
    if from == to {
        dst.copy_from_slice(src);
        return;
    }
    match (from, to) {
        (F32, BF16) => map(src, dst, |b| bf16::from_f32(f32::from_le_bytes(b)).to_le_bytes()),
        (F32, F16) => map(src, dst, |b| f16::from_f32(f32::from_le_bytes(b)).to_le_bytes()),
        (F32, F64) => map(src, dst, |b| f64::from(f32::from_le_bytes(b)).to_le_bytes()),
        (BF16, F32) => map(src, dst, |b| bf16::from_le_bytes(b).to_f32().to_le_bytes()),
        (BF16, F16) => map(src, dst, |b| f16::from_f32(bf16::from_le_bytes(b).to_f32()).to_le_bytes()),
        (F16, F32) => map(src, dst, |b| f16::from_le_bytes(b).to_f32().to_le_bytes()),
        (F16, BF16) => map(src, dst, |b| bf16::from_f32(f16::from_le_bytes(b).to_f32()).to_le_bytes()),
        (F64, F32) => map(src, dst, |b| (f64::from_le_bytes(b) as f32).to_le_bytes()),
        _ => panic!("no conversion from {from} to {to}: callers ask `convertible` first"),
    }
}

fn map<const A: usize, const B: usize>(src: &[u8], dst: &mut [u8], f: impl Fn([u8; A]) -> [u8; B]) {
    for (s, d) in src.as_chunks::<A>().0.iter().zip(dst.as_chunks_mut::<B>().0) {
        *d = f(*s);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(from: DType, src: &[u8], to: DType) -> Vec<u8> {
        let mut dst = vec![0; src.len() / from.size() * to.size()];
        convert(from, src, to, &mut dst);
        dst
    }

    /// Every bf16 and f16 bit pattern survives the way through f32 (NaNs as NaNs).
    #[test]
    fn sixteen_bits_round_trip_through_f32() {
        for d in [DType::BF16, DType::F16] {
            let all: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
            let back = one(DType::F32, &one(d, &all, DType::F32), d);
            for (a, b) in all.as_chunks::<2>().0.iter().zip(back.as_chunks::<2>().0) {
                let nan = |b: [u8; 2]| match d {
                    DType::BF16 => bf16::from_le_bytes(b).is_nan(),
                    _ => f16::from_le_bytes(b).is_nan(),
                };
                assert!(a == b || (nan(*a) && nan(*b)), "{d} {a:?} {b:?}");
            }
        }
    }

    #[test]
    fn narrowing_ties_to_even() {
        // 1 + 2^-8 lies half way between the bf16 numbers 1 and 1 + 2^-7; 1 + 3*2^-8 between 1 + 2^-7 and 1 + 2^-6.
        for (x, want) in [(1.0 + 1.0 / 256.0, 1.0f32), (1.0 + 3.0 / 256.0, 1.0 + 1.0 / 64.0)] {
            assert_eq!(one(DType::F32, &f32::to_le_bytes(x), DType::BF16), bf16::from_f32(want).to_le_bytes());
        }
        assert_eq!(one(DType::F32, &65520f32.to_le_bytes(), DType::F16), f16::INFINITY.to_le_bytes());
    }

    #[test]
    fn only_listed_pairs() {
        assert!(convertible(DType::I64, DType::I64) && convertible(DType::F16, DType::BF16));
        assert!(!convertible(DType::I64, DType::F32) && !convertible(DType::F64, DType::BF16));
    }
}
