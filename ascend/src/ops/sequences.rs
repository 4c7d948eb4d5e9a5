//! The sequences of an attention call, and which keys each row sees.

use std::ops::Range;

use ferrotron_device::ops::{AttentionArgs, AttentionDims};
use ferrotron_device::{Result, Stream, Tensor, error::expect};

use crate::stream::AscendStream;

/// Rows of one sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sequence {
    /// Query rows.
    pub q: Range<usize>,
    /// Key rows.
    pub k: Range<usize>,
}

impl Sequence {
    /// Keys that query row `r` sees, both counted in the sequence.
    pub fn keys(&self, d: &AttentionDims, r: usize) -> Range<usize> {
        // aligned at the end
        let (end, back) = (r + self.k.len() + 1, self.q.len());
        let end = end.saturating_sub(back);
        let first = d.window.map_or(0, |w| (r + self.k.len() + 1).saturating_sub(back.saturating_add(w)));
        let last = if d.causal { end } else { self.k.len() };
        first.min(last)..last
    }

    /// Query rows that see any key: neighbours, for both ends of what is seen only grow.
    pub fn seeing(&self, d: &AttentionDims) -> Range<usize> {
        let sees = |r: &usize| !self.keys(d, *r).is_empty();
        let first = (0..self.q.len()).find(sees).unwrap_or(self.q.len());
        let last = (first..self.q.len()).rfind(sees).map_or(first, |r| r + 1);
        first..last
    }

    /// The other query rows, among those of all sequences.
    pub fn blind(&self, d: &AttentionDims) -> Vec<Range<usize>> {
        let seeing = self.seeing(d);
        let sides = [self.q.start..self.q.start + seeing.start, self.q.start + seeing.end..self.q.end];
        sides.into_iter().filter(|r| !r.is_empty()).collect()
    }
}

/// The sequences that have queries or keys. From the caller's copy on the host; without one the host waits for the
/// device's.
pub fn sequences(s: &Stream, a: &AttentionArgs<'_>) -> Result<Vec<Sequence>> {
    let (q, k) = match a.host_cu {
        Some((q, k)) => (q.to_vec(), k.to_vec()),
        None => (read(s, a.cu_q)?, read(s, a.cu_k)?),
    };
    let heads = (a.dims.heads * a.dims.head_dim).max(1);
    let widths = (a.q.numel() / heads, a.k.numel() / (a.dims.groups * a.dims.head_dim).max(1));
    let whole = |cu: &[i32], rows: usize| {
        // views are made of these: they must be what was promised
        expect(
            "attention",
            "first and last of cu_seqlens",
            (Some(0), Some(rows as i64)),
            (at(cu.first()), at(cu.last())),
        )?;
        expect("attention", "order of cu_seqlens", true, cu.is_sorted())
    };
    whole(&q, widths.0)?;
    whole(&k, widths.1)?;
    let range = |w: &[i32]| w[0] as usize..w[1] as usize;
    let all = q.windows(2).zip(k.windows(2)).map(|(q, k)| Sequence { q: range(q), k: range(k) });
    Ok(all.filter(|s| !s.q.is_empty() || !s.k.is_empty()).collect())
}

fn at(value: Option<&i32>) -> Option<i64> {
    value.map(|&v| i64::from(v))
}

fn read(s: &Stream, t: &Tensor) -> Result<Vec<i32>> {
    let mut bytes = vec![0; t.bytes()];
    AscendStream::of(s)?.download(t.ptr().0, &mut bytes)?;
    Ok(bytes.chunks_exact(4).map(|b| i32::from_ne_bytes([b[0], b[1], b[2], b[3]])).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dims(causal: bool, window: Option<usize>) -> AttentionDims {
        AttentionDims { heads: 1, groups: 1, head_dim: 1, causal, window, scale: 1.0, max_len: 9, first_head: 0 }
    }

    /// The contract's words, row by row.
    fn seen(s: &Sequence, d: &AttentionDims, r: usize) -> Vec<usize> {
        let p = r as i64 + s.k.len() as i64 - s.q.len() as i64;
        let sees = |j: &i64| (!d.causal || *j <= p) && d.window.is_none_or(|w| *j > p - w as i64);
        (0..s.k.len() as i64).filter(sees).map(|j| j as usize).collect()
    }

    #[test]
    fn rows_see_what_the_contract_says() {
        for (lq, lk) in [(5, 5), (2, 7), (7, 2), (4, 0), (0, 4), (1, 1)] {
            for causal in [false, true] {
                for window in [None, Some(0), Some(1), Some(3), Some(usize::MAX)] {
                    let (s, d) = (Sequence { q: 10..10 + lq, k: 20..20 + lk }, dims(causal, window));
                    let mut rows = vec![];
                    for r in 0..lq {
                        let want = match window {
                            Some(usize::MAX) => seen(&s, &dims(causal, None), r),
                            _ => seen(&s, &d, r),
                        };
                        assert_eq!(s.keys(&d, r).collect::<Vec<_>>(), want, "{lq} {lk} {causal} {window:?} row {r}");
                        rows.extend((!want.is_empty()).then_some(r));
                    }
                    assert_eq!(s.seeing(&d).collect::<Vec<_>>(), rows);
                    let blind: usize = s.blind(&d).iter().map(|r| r.len()).sum();
                    assert_eq!(blind + rows.len(), lq);
                }
            }
        }
    }
}
