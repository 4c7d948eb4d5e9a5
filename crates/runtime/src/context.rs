//! Context parallelism: which tokens of a micro-batch a rank holds, and what its attention needs to know of the others.
//!
//! A sample of S tokens is cut in 2c chunks for c ranks; rank i holds chunks i and 2c-1-i, so that all ranks have the
//! same number of (query, key) pairs below the diagonal (megatron/core/utils.py, `get_batch_on_this_cp_rank`). A rank's
//! rows are first the front chunks of all samples, then the back chunks: each half is one attention call of queries that
//! lie one after the other, over keys and values gathered from all ranks (Dubey et al., The Llama 3 Herd of Models,
//! 2024, §3.3.2). Position, sample and offset of a token stay what they are in the whole sample.

use std::ops::Range;
use std::sync::Arc;

use ferrotron_device::{DType, Device, Error, Pool, Result, Stream, Tensor, host};

use crate::MicroHost;

/// One half of a rank's queries against all keys, as packed sequences whose queries are aligned at the end of their keys.
/// Keys that no query of the half sees are sequences without queries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HalfHost {
    /// First query row of each sequence, and their number.
    pub cu_q: Vec<i32>,
    /// First key row of each sequence, and their number.
    pub cu_k: Vec<i32>,
}

/// What context-parallel attention knows beside the rank's own rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContextHost {
    /// Row in the ranks' rows, one rank after the other, of each token in the order of the micro-batch, `[T]`.
    pub place: Vec<i32>,
    /// The inverse: token of each of those rows, `[T]`.
    pub token: Vec<i32>,
    /// Offset of each token in its sample, `[T]`.
    pub offset: Vec<i32>,
    /// Front and back chunks.
    pub halves: [HalfHost; 2],
}

/// The same on the device.
pub struct Context {
    /// `I32[T]`
    pub place: Tensor,
    /// `I32[T]`
    pub token: Tensor,
    /// `I32[T]`
    pub offset: Tensor,
    /// Front and back chunks.
    pub halves: [Half; 2],
}

/// One half of a rank's queries.
pub struct Half {
    /// `I32[B+1]`
    pub cu_q: Tensor,
    /// `I32[B+1]`
    pub cu_k: Tensor,
    /// Both, on the host.
    pub host: HalfHost,
    /// Longest sequence, of queries or keys.
    pub max_len: usize,
}

/// Longest of packed sequences.
pub(crate) fn longest(cu: &[i32]) -> usize {
    cu.windows(2).map(|w| (w[1] - w[0]).max(0) as usize).max().unwrap_or(0)
}

impl MicroHost {
    /// The part of a whole micro-batch that rank `rank` of `size` context-parallel ranks computes. Losses keep their
    /// weights: over the ranks they sum to the whole's.
    ///
    /// # Errors
    /// When a sample's length is not a multiple of 2 x `size`.
    pub fn context_part(&self, rank: usize, size: usize) -> Result<MicroHost> {
        if size == 1 {
            return Ok(self.clone());
        }
        let samples = self.samples();
        if let Some(s) = samples.iter().find(|s| !s.len().is_multiple_of(2 * size)) {
            let want = format!("a multiple of 2 x {size}");
            return Err(Error::mismatch("context parallel", "tokens of a sample", want, s.len()));
        }
        let chunks = |rank: usize| -> [Vec<Range<usize>>; 2] {
            [rank, 2 * size - 1 - rank].map(|i| {
                let chunk = |s: &Range<usize>| {
                    let n = s.len() / (2 * size);
                    s.start + i * n..s.start + (i + 1) * n
                };
                samples.iter().map(chunk).collect()
            })
        };
        let token: Vec<i32> =
            (0..size).flat_map(|r| chunks(r).into_iter().flatten().flatten()).map(|t| t as i32).collect();
        let mut place = vec![0; token.len()];
        for (row, &t) in token.iter().enumerate() {
            place[t as usize] = row as i32;
        }
        let mine = chunks(rank);
        let ints = |v: &[i32]| -> Vec<i32> { mine.iter().flatten().flat_map(|r| &v[r.clone()]).copied().collect() };
        let floats = |v: &[f32]| -> Vec<f32> { mine.iter().flatten().flat_map(|r| &v[r.clone()]).copied().collect() };
        Ok(MicroHost {
            ids: ints(&self.ids),
            labels: ints(&self.labels),
            positions: ints(&self.positions),
            sample: ints(&self.sample),
            offset: ints(&self.offset),
            mask: floats(&self.mask),
            weight: floats(&self.weight),
            aux_weight: self.aux_weight,
            cu_seqlens: self.cu_seqlens.clone(),
            context: Some(ContextHost {
                place,
                token,
                offset: self.offset.clone(),
                halves: [0, 1].map(|h| half(&self.cu_seqlens, &mine[h])),
            }),
        })
    }

    /// Rows of each sample: offsets count from 0 in each.
    fn samples(&self) -> Vec<Range<usize>> {
        let starts: Vec<usize> = (0..self.offset.len()).filter(|&t| self.offset[t] == 0).collect();
        let ends = starts.iter().skip(1).copied().chain([self.offset.len()]);
        starts.iter().zip(ends).map(|(&a, b)| a..b).collect()
    }
}

/// Queries in `chunks`, one a sample, against the keys before them in their sequences.
fn half(cu_seqlens: &[i32], chunks: &[Range<usize>]) -> HalfHost {
    let mut out = HalfHost { cu_q: vec![0], cu_k: vec![0] };
    let (mut queries, mut keys) = (0, 0);
    let mut push = |q: usize, k: usize| {
        if q + k > 0 {
            (queries, keys) = (queries + q as i32, keys + k as i32);
            out.cu_q.push(queries);
            out.cu_k.push(keys);
        }
    };
    // Keys that wait for the end of a sequence without queries.
    let mut unseen = 0;
    for w in cu_seqlens.windows(2) {
        let (start, end) = (w[0] as usize, w[1] as usize);
        // A sequence lies in one sample, so at most one chunk meets it.
        let Some(c) = chunks.iter().find(|c| c.start < end && start < c.end) else {
            unseen += end - start;
            continue;
        };
        push(0, unseen);
        let last = c.end.min(end);
        push(last - c.start.max(start), last - start);
        unseen = end - last;
    }
    push(0, unseen);
    out
}

impl Context {
    /// Uploads in stream order.
    pub(crate) fn upload(device: &dyn Device, s: &Stream, pool: &Arc<Pool>, h: &ContextHost) -> Result<Context> {
        let ints = |v: &[i32]| {
            let mut t = pool.alloc(DType::I32, [v.len()])?;
            host::write_i32(device, s, v, &mut t)?;
            Ok::<Tensor, Error>(t)
        };
        let half = |h: &HalfHost| {
            let max_len = longest(&h.cu_q).max(longest(&h.cu_k));
            Ok::<Half, Error>(Half { cu_q: ints(&h.cu_q)?, cu_k: ints(&h.cu_k)?, host: h.clone(), max_len })
        };
        Ok(Context {
            place: ints(&h.place)?,
            token: ints(&h.token)?,
            offset: ints(&h.offset)?,
            halves: [half(&h.halves[0])?, half(&h.halves[1])?],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two samples of 12 tokens; the first holds documents of 1, 7 and 4 tokens, the second is one.
    fn whole() -> MicroHost {
        let t: Vec<i32> = (0..24).collect();
        MicroHost {
            ids: t.clone(),
            labels: t.iter().map(|i| i + 1).collect(),
            positions: [0..1, 0..7, 0..4, 0..12].into_iter().flatten().collect(),
            sample: t.iter().map(|i| i / 12).collect(),
            offset: t.iter().map(|i| i % 12).collect(),
            mask: t.iter().map(|i| (i % 3) as f32).collect(),
            weight: t.iter().map(|i| *i as f32).collect(),
            aux_weight: 1.0,
            cu_seqlens: vec![0, 1, 8, 12, 24],
            context: None,
        }
    }

    #[test]
    fn front_and_back_chunks() {
        let (front, back) = (whole().context_part(0, 2).unwrap(), whole().context_part(1, 2).unwrap());
        // Chunks of 3: rank 0 has the first and the last of each sample.
        assert_eq!(front.ids, [0, 1, 2, 12, 13, 14, 9, 10, 11, 21, 22, 23]);
        assert_eq!(back.ids, [3, 4, 5, 15, 16, 17, 6, 7, 8, 18, 19, 20]);
        assert_eq!(front.positions[..3], [0, 0, 1]);
        assert_eq!(front.offset[3..9], [0, 1, 2, 9, 10, 11]);
        assert_eq!(back.weight[..2], [3.0, 4.0]);
        let c = front.context.unwrap();
        assert_eq!(c.token[..12], front.ids);
        assert_eq!(c.token[12..], back.ids);
        assert!((0..24).all(|t| c.token[c.place[t] as usize] as usize == t));
        // Front half of rank 0: token 0 is a document; 1 and 2 see keys 1 and 2; then unseen keys; then sample 1.
        assert_eq!(c.halves[0].cu_q, [0, 1, 3, 3, 6, 6]);
        assert_eq!(c.halves[0].cu_k, [0, 1, 3, 12, 15, 24]);
        // Back half: 9..12 of the document that began at 8; all of sample 1 before its end.
        assert_eq!(c.halves[1].cu_q, [0, 0, 3, 6]);
        assert_eq!(c.halves[1].cu_k, [0, 8, 12, 24]);
        // Rank 1 sees nothing of the first document.
        let c = back.context.unwrap();
        assert_eq!(c.halves[0].cu_q, [0, 0, 3, 3, 6, 6]);
        assert_eq!(c.halves[0].cu_k, [0, 1, 6, 12, 18, 24]);
        // 6, 7 end a document, 8 begins the next.
        assert_eq!(c.halves[1].cu_q, [0, 0, 2, 3, 3, 6, 6]);
        assert_eq!(c.halves[1].cu_k, [0, 1, 8, 9, 12, 21, 24]);
    }

    #[test]
    fn every_pair_below_the_diagonal_once_and_in_balance() {
        let whole = whole();
        let sequence = |t: usize| whole.cu_seqlens.partition_point(|c| *c as usize <= t);
        for size in [2, 3, 6] {
            let mut seen = vec![false; 24 * 24];
            for rank in 0..size {
                let part = whole.context_part(rank, size).unwrap();
                let c = part.context.as_ref().unwrap();
                for (h, half) in c.halves.iter().enumerate() {
                    for (q, k) in half.cu_q.windows(2).zip(half.cu_k.windows(2)) {
                        for row in q[0]..q[1] {
                            let query = part.ids[h * 12 / size + row as usize] as usize;
                            // Aligned at the end of the keys.
                            let last = k[1] - (q[1] - row) + 1;
                            for key in k[0]..last {
                                let at = &mut seen[query * 24 + key as usize];
                                assert!(!std::mem::replace(at, true));
                            }
                        }
                    }
                }
                let pairs: usize = part.offset.iter().map(|o| *o as usize + 1).sum();
                assert_eq!(pairs * size, 2 * 12 * 13 / 2, "balanced for whole samples");
            }
            for q in 0..24 {
                for k in 0..24 {
                    assert_eq!(seen[q * 24 + k], k <= q && sequence(q) == sequence(k), "{size}: query {q}, key {k}");
                }
            }
        }
    }

    #[test]
    fn a_length_that_does_not_divide_is_named() {
        let e = whole().context_part(0, 4).unwrap_err().to_string();
        assert!(e.contains("a multiple of 2 x 4") && e.contains("12"), "{e}");
        assert_eq!(whole().context_part(0, 1).unwrap(), whole());
    }
}
