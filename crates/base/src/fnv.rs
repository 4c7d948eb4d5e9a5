//! FNV-1a of 64 bits (Fowler, Noll, Vo): the same on every machine; tells names and states apart, finds damage, not malice.

/// Where [`fnv`] begins.
pub const FNV: u64 = 0xcbf2_9ce4_8422_2325;

/// The hash of what `hash` is of, followed by `bytes`.
pub fn fnv(hash: u64, bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes.into_iter().fold(hash, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Test vectors of draft-eastlake-fnv.
    #[test]
    fn published_vectors() {
        for (text, hash) in [("", FNV), ("a", 0xaf63_dc4c_8601_ec8c), ("foobar", 0x8594_4171_f739_67e8)] {
            assert_eq!(fnv(FNV, text.bytes()), hash);
        }
        assert_eq!(fnv(fnv(FNV, *b"foo"), *b"bar"), fnv(FNV, *b"foobar"));
    }
}
