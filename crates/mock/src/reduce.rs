//! Element types of collectives, and reductions in them.

use half::{bf16, f16};

/// An element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// 32-bit float.
    F32,
    /// IEEE half.
    F16,
    /// bfloat16.
    BF16,
    /// 64-bit float.
    F64,
    /// Signed 8 bits.
    I8,
    /// Signed 32 bits.
    I32,
    /// Signed 64 bits.
    I64,
    /// Bytes: moved only.
    U8,
}

/// A reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// a + b.
    Sum,
    /// a b.
    Prod,
    /// The larger.
    Max,
    /// The smaller.
    Min,
}

impl Element {
    /// Bytes.
    pub fn size(self) -> usize {
        match self {
            Element::F64 | Element::I64 => 8,
            Element::F32 | Element::I32 => 4,
            Element::F16 | Element::BF16 => 2,
            Element::I8 | Element::U8 => 1,
        }
    }

    /// `acc = acc op x`, element by element, each step rounded to this type as the wire does. Equal lengths.
    pub fn reduce(self, op: Reduction, acc: &mut [u8], x: &[u8]) {
        let n = self.size();
        for (a, b) in acc.chunks_exact_mut(n).zip(x.chunks_exact(n)) {
            match self {
                Element::F32 => {
                    put(a, f32::from_ne_bytes(four(a)).apply(op, f32::from_ne_bytes(four(b))).to_ne_bytes())
                }
                Element::F64 => {
                    put(a, f64::from_ne_bytes(eight(a)).apply(op, f64::from_ne_bytes(eight(b))).to_ne_bytes())
                }
                Element::F16 => {
                    let (x, y) = (f16::from_ne_bytes([a[0], a[1]]).to_f32(), f16::from_ne_bytes([b[0], b[1]]).to_f32());
                    put(a, f16::from_f32(x.apply(op, y)).to_ne_bytes());
                }
                Element::BF16 => {
                    let (x, y) =
                        (bf16::from_ne_bytes([a[0], a[1]]).to_f32(), bf16::from_ne_bytes([b[0], b[1]]).to_f32());
                    put(a, bf16::from_f32(x.apply(op, y)).to_ne_bytes());
                }
                Element::I8 => put(a, i8::from_ne_bytes([a[0]]).apply(op, i8::from_ne_bytes([b[0]])).to_ne_bytes()),
                Element::U8 => put(a, u8::from_ne_bytes([a[0]]).apply(op, u8::from_ne_bytes([b[0]])).to_ne_bytes()),
                Element::I32 => {
                    put(a, i32::from_ne_bytes(four(a)).apply(op, i32::from_ne_bytes(four(b))).to_ne_bytes())
                }
                Element::I64 => {
                    put(a, i64::from_ne_bytes(eight(a)).apply(op, i64::from_ne_bytes(eight(b))).to_ne_bytes())
                }
            }
        }
    }
}

fn four(b: &[u8]) -> [u8; 4] {
    [b[0], b[1], b[2], b[3]]
}

fn eight(b: &[u8]) -> [u8; 8] {
    [b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]
}

fn put<const N: usize>(to: &mut [u8], bytes: [u8; N]) {
    to.copy_from_slice(&bytes);
}

trait Apply: Sized {
    fn apply(self, op: Reduction, other: Self) -> Self;
}

macro_rules! apply {
    ($($t:ty: $add:path, $mul:path;)*) => {$(
        impl Apply for $t {
            fn apply(self, op: Reduction, other: $t) -> $t {
                match op {
                    Reduction::Sum => $add(self, other),
                    Reduction::Prod => $mul(self, other),
                    Reduction::Max => if other > self { other } else { self },
                    Reduction::Min => if other < self { other } else { self },
                }
            }
        }
    )*};
}

apply! {
    f32: std::ops::Add::add, std::ops::Mul::mul;
    f64: std::ops::Add::add, std::ops::Mul::mul;
    i8: i8::wrapping_add, i8::wrapping_mul;
    u8: u8::wrapping_add, u8::wrapping_mul;
    i32: i32::wrapping_add, i32::wrapping_mul;
    i64: i64::wrapping_add, i64::wrapping_mul;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_round_in_the_wire_type() {
        // 256 + 1 is not a bf16: the sum stays at 256 however often one is added
        let mut acc = bf16::from_f32(256.0).to_ne_bytes();
        for _ in 0..3 {
            Element::BF16.reduce(Reduction::Sum, &mut acc, &bf16::from_f32(1.0).to_ne_bytes());
        }
        assert_eq!(bf16::from_ne_bytes(acc).to_f32(), 256.0);
        let mut acc = 3f32.to_ne_bytes();
        for (op, want) in [(Reduction::Prod, 12.0), (Reduction::Max, 12.0), (Reduction::Min, 4.0)] {
            Element::F32.reduce(op, &mut acc, &4f32.to_ne_bytes());
            assert_eq!(f32::from_ne_bytes(acc), want);
        }
        let mut acc = i64::MAX.to_ne_bytes();
        Element::I64.reduce(Reduction::Sum, &mut acc, &1i64.to_ne_bytes());
        assert_eq!(i64::from_ne_bytes(acc), i64::MIN);
    }
}
