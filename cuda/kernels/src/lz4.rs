//! Blocks of LZ4, as NVIDIA's `fatbinary` compresses what every driver can read.

use crate::Damaged;

/// Decompresses a block that gives `n` bytes.
pub fn decompress(block: &[u8], n: usize) -> Result<Vec<u8>, Damaged> {
    // a byte of a block gives at most 255 bytes: what is asked for is bounded before memory is
    if n / 255 > block.len() {
        return Err(Damaged { what: "a length that the compressed data cannot have", at: 0 });
    }
    let mut out = Vec::with_capacity(n);
    let mut at = 0;
    let mut next = || {
        let byte = block.get(at).copied().ok_or(Damaged { what: "the compressed data ends", at });
        at += 1;
        byte
    };
    loop {
        let token = usize::from(next()?);
        for _ in 0..length(token >> 4, &mut next)? {
            out.push(next()?);
        }
        if out.len() >= n {
            break; // the last sequence has literals only
        }
        let distance = usize::from(next()?) | usize::from(next()?) << 8;
        let copies = length(token & 15, &mut next)? + 4;
        let Some(from) = out.len().checked_sub(distance).filter(|_| distance > 0) else {
            return Err(Damaged { what: "compressed data that refers to what is not there", at: out.len() });
        };
        if copies > n - out.len() {
            return Err(Damaged { what: "compressed data that gives too much", at: out.len() });
        }
        // byte by byte: what is copied may overlap what it is copied from
        for i in from..from + copies {
            out.push(out[i]);
        }
    }
    if out.len() == n { Ok(out) } else { Err(Damaged { what: "compressed data that gives too much", at: out.len() }) }
}

/// A length of four bits, and the bytes that follow when all are set.
fn length(four: usize, next: &mut impl FnMut() -> Result<u8, Damaged>) -> Result<usize, Damaged> {
    let mut all = four;
    if four == 15 {
        loop {
            let more = next()?;
            all += usize::from(more);
            if more < 255 {
                break;
            }
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_matches_overlaps_and_long_lengths() {
        // "abc", then 300 more of it by a match that overlaps itself (4 + 15 + 255 + 26), then "!"
        let block = [0x3f, b'a', b'b', b'c', 3, 0, 255, 26, 0x10, b'!'];
        let text = decompress(&block, 304).expect("a block");
        assert_eq!((&text[..7], text[303]), (&b"abcabca"[..], b'!'));
        assert!(text[..303].iter().enumerate().all(|(i, b)| *b == b"abc"[i % 3]));
        // sixteen literals
        let long: Vec<u8> = [&[0xf0, 1][..], &[b'x'; 16]].concat();
        assert_eq!(decompress(&long, 16), Ok(vec![b'x'; 16]));
    }

    #[test]
    fn damage_is_an_error() {
        let block = [0x3f, b'a', b'b', b'c', 3, 0, 255, 26, 0x10, b'!'];
        let what = |block: &[u8], n| decompress(block, n).expect_err("damage").what;
        for cut in 0..block.len() {
            assert!(what(&block[..cut], 304).contains("ends") || cut == 0, "{cut}");
        }
        assert_eq!(what(&[0x10, b'a', 2, 0], 9), "compressed data that refers to what is not there");
        assert_eq!(what(&[0x10, b'a', 0, 0], 9), "compressed data that refers to what is not there");
        assert_eq!(what(&block, 100), "compressed data that gives too much");
        assert_eq!(what(&[0x30, 1, 2, 3], 2), "compressed data that gives too much");
        assert_eq!(what(&block, 1 << 40), "a length that the compressed data cannot have");
    }
}
