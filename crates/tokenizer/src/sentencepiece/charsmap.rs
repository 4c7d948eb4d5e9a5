//! `precompiled_charsmap`: normalization rules as a Darts-clone double array and the texts that they produce.
//!
//! Layout: u32 length of the array in bytes, the array (u32 units, little endian), then NUL-ended replacement texts.

/// Longest-match replacement of prefixes.
#[derive(Debug, Clone)]
pub(super) struct Charsmap {
    units: Vec<u32>,
    texts: Vec<u8>,
}

impl Charsmap {
    /// Reads the blob; `None` for an empty one, which means no rules.
    ///
    /// # Errors
    /// What is wrong with the blob, as a clause.
    pub fn parse(blob: &[u8]) -> Result<Option<Charsmap>, String> {
        if blob.is_empty() {
            return Ok(None);
        }
        let bad = || "its precompiled_charsmap is cut off".to_string();
        let (length, rest) = blob.split_first_chunk::<4>().ok_or_else(bad)?;
        let length = u32::from_le_bytes(*length) as usize;
        let (array, texts) = rest.split_at_checked(length).ok_or_else(bad)?;
        let (units, odd) = array.as_chunks::<4>();
        if units.is_empty() || !odd.is_empty() || texts.last() != Some(&0) {
            return Err(bad());
        }
        Ok(Some(Charsmap { units: units.iter().map(|u| u32::from_le_bytes(*u)).collect(), texts: texts.to_vec() }))
    }

    /// The longest rule that `input` begins with: its length and what it is replaced by.
    pub fn longest(&self, input: &[u8]) -> Option<(usize, &[u8])> {
        let offset = |unit: u32| ((unit >> 10) << ((unit & (1 << 9)) >> 6)) as usize;
        let has_leaf = |unit: u32| (unit >> 8) & 1 == 1;
        let label = |unit: u32| unit & ((1 << 31) | 0xff);
        let mut position = offset(*self.units.first()?);
        let mut longest = None;
        for (i, &byte) in input.iter().enumerate() {
            position ^= usize::from(byte);
            // A damaged array may point anywhere.
            let Some(&unit) = self.units.get(position) else { break };
            if label(unit) != u32::from(byte) {
                break;
            }
            position ^= offset(unit);
            if has_leaf(unit) {
                let Some(&leaf) = self.units.get(position) else { break };
                longest = Some((i + 1, (leaf & ((1 << 31) - 1)) as usize));
            }
        }
        let (length, text) = longest?;
        let text = self.texts.get(text..)?;
        Some((length, text.split(|&b| b == 0).next().unwrap_or_default()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_blobs_are_refused() {
        assert!(Charsmap::parse(b"").unwrap().is_none());
        for blob in [&b"abc"[..], &[4, 0, 0, 0, 1, 2], &[3, 0, 0, 0, 1, 2, 3, 0], &[4, 0, 0, 0, 1, 2, 3, 4, b'x']] {
            assert!(Charsmap::parse(blob).unwrap_err().contains("cut off"));
        }
    }
}
