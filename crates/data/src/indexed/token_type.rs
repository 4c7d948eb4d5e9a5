//! Element types of `.bin` files and the conversion between their bytes and token ids.

/// How a token is stored; the discriminant is the code in the `.idx` header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum TokenType {
    /// 8 bits unsigned.
    U8 = 1,
    /// 8 bits signed.
    I8 = 2,
    /// 16 bits signed.
    I16 = 3,
    /// 32 bits signed.
    I32 = 4,
    /// 64 bits signed.
    I64 = 5,
    /// 64-bit float.
    F64 = 6,
    /// 32-bit float.
    F32 = 7,
    /// 16 bits unsigned: the usual choice below 65500 vocabulary entries.
    U16 = 8,
}

/// Evaluates `$body` with `$t` bound to the Rust type that stores `$value`.
macro_rules! with_type {
    ($value:expr, $t:ident => $body:expr) => {
        match $value {
            TokenType::U8 => {
                type $t = u8;
                $body
            }
            TokenType::I8 => {
                type $t = i8;
                $body
            }
            TokenType::I16 => {
                type $t = i16;
                $body
            }
            TokenType::I32 => {
                type $t = i32;
                $body
            }
            TokenType::I64 => {
                type $t = i64;
                $body
            }
            TokenType::F64 => {
                type $t = f64;
                $body
            }
            TokenType::F32 => {
                type $t = f32;
                $body
            }
            TokenType::U16 => {
                type $t = u16;
                $body
            }
        }
    };
}

impl TokenType {
    /// All types, in the order of their codes.
    pub const ALL: [TokenType; 8] = [
        TokenType::U8,
        TokenType::I8,
        TokenType::I16,
        TokenType::I32,
        TokenType::I64,
        TokenType::F64,
        TokenType::F32,
        TokenType::U16,
    ];

    /// The type of a header code.
    pub fn from_code(code: u8) -> Option<TokenType> {
        TokenType::ALL.into_iter().find(|t| t.code() == code)
    }

    /// The header code.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// Bytes a token takes.
    pub fn size(self) -> usize {
        with_type!(self, T => size_of::<T>())
    }

    /// numpy's name of the type.
    pub fn name(self) -> &'static str {
        match self {
            TokenType::U8 => "uint8",
            TokenType::I8 => "int8",
            TokenType::I16 => "int16",
            TokenType::I32 => "int32",
            TokenType::I64 => "int64",
            TokenType::F64 => "float64",
            TokenType::F32 => "float32",
            TokenType::U16 => "uint16",
        }
    }

    /// What Megatron's `preprocess_data` picks: 16 bits below 65500 vocabulary entries, else 32.
    pub fn for_vocabulary(vocab_size: usize) -> TokenType {
        if vocab_size < 65500 { TokenType::U16 } else { TokenType::I32 }
    }

    /// Appends the bytes of `id`; false, with nothing appended, when the type cannot hold it exactly.
    #[inline]
    pub(crate) fn encode(self, id: i64, out: &mut Vec<u8>) -> bool {
        with_type!(self, T => match T::from_id(id) {
            Some(stored) => {
                out.extend_from_slice(&stored.to_le_bytes());
                true
            }
            None => false,
        })
    }

    /// Feeds every token in `bytes` to `take`, stopping when it returns false. `Err((position, value))` names a float
    /// that is not a whole number.
    pub(crate) fn decode(self, bytes: &[u8], mut take: impl FnMut(i64) -> bool) -> Result<(), (usize, String)> {
        with_type!(self, T => {
            for (position, chunk) in bytes.as_chunks().0.iter().enumerate() {
                let stored = T::from_le_bytes(*chunk);
                let Some(id) = stored.to_id() else { return Err((position, stored.to_string())) };
                if !take(id) {
                    break;
                }
            }
            Ok(())
        })
    }
}

/// Exact conversion between a stored element and a token id.
trait Stored: Sized {
    fn from_id(id: i64) -> Option<Self>;
    fn to_id(self) -> Option<i64>;
}

macro_rules! stored_integer {
    ($($t:ty),*) => {$(
        impl Stored for $t {
            fn from_id(id: i64) -> Option<$t> {
                id.try_into().ok()
            }
            fn to_id(self) -> Option<i64> {
                Some(self.into())
            }
        }
    )*};
}
stored_integer!(u8, i8, i16, i32, i64, u16);

macro_rules! stored_float {
    ($($t:ty => $digits:expr),*) => {$(
        impl Stored for $t {
            fn from_id(id: i64) -> Option<$t> {
                // Up to the width of the mantissa every integer is exact.
                (id.unsigned_abs() <= 1 << $digits).then_some(id as $t)
            }
            fn to_id(self) -> Option<i64> {
                // The comparison is false for NaN and infinities.
                (self.fract() == 0.0 && self.abs() <= (1u64 << $digits) as $t).then_some(self as i64)
            }
        }
    )*};
}
stored_float!(f64 => f64::MANTISSA_DIGITS, f32 => f32::MANTISSA_DIGITS);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extremes_round_trip_and_the_next_id_is_refused() {
        for (t, min, max) in [
            (TokenType::U8, 0, 255),
            (TokenType::I8, -128, 127),
            (TokenType::I16, -32768, 32767),
            (TokenType::I32, i64::from(i32::MIN), i64::from(i32::MAX)),
            (TokenType::I64, i64::MIN, i64::MAX),
            (TokenType::F64, -(1 << 53), 1 << 53),
            (TokenType::F32, -(1 << 24), 1 << 24),
            (TokenType::U16, 0, 65535),
        ] {
            let mut bytes = Vec::new();
            assert!(t.encode(min, &mut bytes) && t.encode(max, &mut bytes));
            assert_eq!(bytes.len(), 2 * t.size());
            let mut back = Vec::new();
            t.decode(&bytes, |id| {
                back.push(id);
                true
            })
            .unwrap();
            assert_eq!(back, [min, max]);
            for outside in [min.checked_sub(1), max.checked_add(1)].into_iter().flatten() {
                assert!(!t.encode(outside, &mut bytes), "{t:?} took {outside}");
            }
            assert_eq!(bytes.len(), 2 * t.size());
            assert_eq!(TokenType::from_code(t.code()), Some(t));
        }
        assert_eq!(TokenType::from_code(0), None);
        assert_eq!(TokenType::from_code(9), None);
    }

    #[test]
    fn fractions_are_named() {
        let bytes = [1.0f32.to_le_bytes(), 2.5f32.to_le_bytes()].concat();
        assert_eq!(TokenType::F32.decode(&bytes, |_| true), Err((1, "2.5".to_owned())));
        assert!(TokenType::F64.decode(&f64::NAN.to_le_bytes(), |_| true).is_err());
    }
}
