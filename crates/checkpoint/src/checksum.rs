//! XXH64 (seed 0): the checksum of our files. It finds accidents (torn writes, bad disks), not forgery, at memory speed.
//!
//! Source: the algorithm's published description, <https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md>.

use std::fmt;
use std::str::FromStr;

const P1: u64 = 0x9E37_79B1_85EB_CA87;
const P2: u64 = 0xC2B2_AE3D_27D4_EB4F;
const P3: u64 = 0x1656_67B1_9E37_79F9;
const P4: u64 = 0x85EB_CA77_C2B2_AE63;
const P5: u64 = 0x27D4_EB2F_1656_67C5;

/// Bytes that one round of the four accumulators takes.
const STRIPE: usize = 32;

/// A finished checksum; written as `xxh64:` and 16 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Checksum(pub u64);

impl Checksum {
    /// Checksum of bytes that are all there.
    pub fn of(bytes: &[u8]) -> Checksum {
        let mut h = Hasher::new();
        h.update(bytes);
        h.finish()
    }
}

impl fmt::Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "xxh64:{:016x}", self.0)
    }
}

impl FromStr for Checksum {
    type Err = String;
    fn from_str(s: &str) -> Result<Checksum, String> {
        s.strip_prefix("xxh64:")
            .filter(|hex| hex.len() == 16 && hex.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)))
            .and_then(|hex| u64::from_str_radix(hex, 16).ok())
            .map(Checksum)
            .ok_or_else(|| format!("{s:?} is no checksum (xxh64: and 16 lower-case hexadecimal digits)"))
    }
}

/// Running XXH64 over a stream of byte slices.
#[derive(Clone)]
pub struct Hasher {
    acc: [u64; 4],
    tail: [u8; STRIPE],
    tail_len: usize,
    total: u64,
}

impl Default for Hasher {
    fn default() -> Hasher {
        Hasher::new()
    }
}

impl Hasher {
    /// An empty stream.
    pub fn new() -> Hasher {
        let acc = [P1.wrapping_add(P2), P2, 0, 0u64.wrapping_sub(P1)];
        Hasher { acc, tail: [0; STRIPE], tail_len: 0, total: 0 }
    }

    /// Takes the next bytes; how the stream is cut does not matter.
    pub fn update(&mut self, mut bytes: &[u8]) {
        self.total = self.total.wrapping_add(bytes.len() as u64);
        if self.tail_len > 0 {
            let take = bytes.len().min(STRIPE - self.tail_len);
            self.tail[self.tail_len..self.tail_len + take].copy_from_slice(&bytes[..take]);
            self.tail_len += take;
            bytes = &bytes[take..];
            if self.tail_len < STRIPE {
                return;
            }
            stripe(&mut self.acc, &self.tail);
            self.tail_len = 0;
        }
        let (stripes, rest) = bytes.as_chunks::<STRIPE>();
        for s in stripes {
            stripe(&mut self.acc, s);
        }
        self.tail[..rest.len()].copy_from_slice(rest);
        self.tail_len = rest.len();
    }

    /// The checksum of all bytes so far.
    pub fn finish(&self) -> Checksum {
        let mut h = if self.total >= STRIPE as u64 {
            let [a, b, c, d] = self.acc;
            let mut h = a
                .rotate_left(1)
                .wrapping_add(b.rotate_left(7))
                .wrapping_add(c.rotate_left(12))
                .wrapping_add(d.rotate_left(18));
            for v in self.acc {
                h = (h ^ round(0, v)).wrapping_mul(P1).wrapping_add(P4);
            }
            h
        } else {
            P5
        };
        h = h.wrapping_add(self.total);
        let (words, rest) = self.tail[..self.tail_len].as_chunks::<8>();
        for w in words {
            h = (h ^ round(0, u64::from_le_bytes(*w))).rotate_left(27).wrapping_mul(P1).wrapping_add(P4);
        }
        let (words, rest) = rest.as_chunks::<4>();
        for w in words {
            h ^= u64::from(u32::from_le_bytes(*w)).wrapping_mul(P1);
            h = h.rotate_left(23).wrapping_mul(P2).wrapping_add(P3);
        }
        for &b in rest {
            h = (h ^ u64::from(b).wrapping_mul(P5)).rotate_left(11).wrapping_mul(P1);
        }
        h = (h ^ (h >> 33)).wrapping_mul(P2);
        h = (h ^ (h >> 29)).wrapping_mul(P3);
        Checksum(h ^ (h >> 32))
    }
}

fn round(acc: u64, lane: u64) -> u64 {
    acc.wrapping_add(lane.wrapping_mul(P2)).rotate_left(31).wrapping_mul(P1)
}

fn stripe(acc: &mut [u64; 4], bytes: &[u8; STRIPE]) {
    let (lanes, _) = bytes.as_chunks::<8>();
    for (a, lane) in acc.iter_mut().zip(lanes) {
        *a = round(*a, u64::from_le_bytes(*lane));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of the reference implementation (Python's `xxhash.xxh64(...).hexdigest()`); all branches: no stripe,
    /// stripes, 8-, 4- and 1-byte tails.
    #[test]
    fn equals_the_reference() {
        let counting: Vec<u8> = (0..=255u8).chain(0..=44).collect(); // 301 = 9 stripes, one word, one half word, 1 byte
        for (bytes, want) in [
            (&b""[..], 0xef46_db37_51d8_e999),
            (b"a", 0xd24e_c4f1_a98c_6e5b),
            (b"abc", 0x44bc_2cf5_ad77_0999),
            (&counting, 0x8937_0ce9_5599_f8e7),
        ] {
            assert_eq!(Checksum::of(bytes).0, want, "{} bytes", bytes.len());
        }
    }

    #[test]
    fn cutting_does_not_matter() {
        let bytes: Vec<u8> = (0..1000u32).map(|i| ((i * 7919) >> 3) as u8).collect();
        let whole = Checksum::of(&bytes);
        for cut in [1, 3, 31, 32, 33, 100] {
            let mut h = Hasher::new();
            bytes.chunks(cut).for_each(|c| h.update(c));
            assert_eq!(h.finish(), whole, "cut every {cut}");
        }
    }

    #[test]
    fn text_form_round_trips() {
        let c = Checksum(0x00ab_cdef_0123_4567);
        assert_eq!(c.to_string().parse(), Ok(c));
        for bad in ["", "xxh64:", "xxh64:00abcdef0123456", "xxh64:00ABCDEF01234567", "crc32:00abcdef01234567"] {
            assert!(bad.parse::<Checksum>().is_err(), "{bad}");
        }
    }
}
