//! Element types of tensors and files.

use std::fmt;

/// Element type. Storage only: every kernel accumulates in f32 (or better), whatever it stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    /// IEEE binary32.
    F32,
    /// bfloat16: the upper half of a binary32.
    BF16,
    /// IEEE binary16.
    F16,
    /// IEEE binary64: references and checkpoints only, no kernel takes it.
    F64,
    /// Signed 64-bit integer.
    I64,
    /// Signed 32-bit integer: token ids, positions, cu_seqlens.
    I32,
    /// Unsigned byte: raw workspace.
    U8,
}

impl DType {
    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            DType::F64 | DType::I64 => 8,
            DType::F32 | DType::I32 => 4,
            DType::BF16 | DType::F16 => 2,
            DType::U8 => 1,
        }
    }

    /// True for the types that weights and activations may be stored in.
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::BF16 | DType::F16 | DType::F64)
    }

    /// The name that safetensors and our manifests use.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F32 => "F32",
            DType::BF16 => "BF16",
            DType::F16 => "F16",
            DType::F64 => "F64",
            DType::I64 => "I64",
            DType::I32 => "I32",
            DType::U8 => "U8",
        }
    }

    /// Inverse of [`DType::name`].
    pub fn parse(name: &str) -> Option<DType> {
        const ALL: [DType; 7] = [DType::F32, DType::BF16, DType::F16, DType::F64, DType::I64, DType::I32, DType::U8];
        ALL.into_iter().find(|d| d.name() == name)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for d in [DType::F32, DType::BF16, DType::F16, DType::F64, DType::I64, DType::I32, DType::U8] {
            assert_eq!(DType::parse(d.name()), Some(d));
        }
        assert_eq!(DType::parse("F8_E4M3"), None);
    }
}
