//! Which integer a token is stored as in a `.bin` file.

use std::fmt;

/// Storage type of token ids, chosen by vocabulary as Megatron's `preprocess_data.py` does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenDType {
    /// Unsigned 16-bit: vocabularies below 65500.
    U16,
    /// Signed 32-bit: all others.
    I32,
}

impl TokenDType {
    /// Megatron's rule (`DType.optimal_dtype`): 16 bits when the vocabulary is below 65500.
    pub fn for_vocab(vocab_size: usize) -> TokenDType {
        if vocab_size < 65_500 { TokenDType::U16 } else { TokenDType::I32 }
    }

    /// Bytes of one token.
    pub fn size(self) -> usize {
        match self {
            TokenDType::U16 => 2,
            TokenDType::I32 => 4,
        }
    }

    /// Largest id the type holds. A larger one would wrap silently in Megatron; here it is an error.
    pub fn max_id(self) -> u32 {
        match self {
            TokenDType::U16 => u32::from(u16::MAX),
            TokenDType::I32 => i32::MAX as u32,
        }
    }
}

impl fmt::Display for TokenDType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TokenDType::U16 => "uint16",
            TokenDType::I32 => "int32",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_threshold_is_65500() {
        assert_eq!(TokenDType::for_vocab(65_499), TokenDType::U16);
        assert_eq!(TokenDType::for_vocab(65_500), TokenDType::I32);
        assert_eq!((TokenDType::U16.size(), TokenDType::I32.size()), (2, 4));
    }
}
