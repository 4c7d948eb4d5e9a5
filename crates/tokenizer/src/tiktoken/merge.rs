//! Byte pair encoding by ranks: the adjacent pair whose union has the lowest rank is joined first.
//!
//! Source: `byte_pair_merge` of tiktoken. Ranks are ids, and all ids of a word are at hand, so there is no merge list.

use crate::trie::Trie;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Words up to this many bytes are searched through for the lowest rank; longer ones keep a heap.
const SMALL: usize = 96;

/// Appends the ids of a word.
///
/// # Errors
/// The first byte that has no id of its own and cannot be joined.
pub(super) fn encode_word(ranks: &Trie, word: &[u8], out: &mut Vec<u32>) -> Result<(), u8> {
    if let Some(id) = ranks.get(word) {
        out.push(id);
        return Ok(());
    }
    let starts = if word.len() <= SMALL { join_small(ranks, word) } else { join_large(ranks, word) };
    for pair in starts.windows(2) {
        let part = &word[pair[0]..pair[1]];
        out.push(ranks.get(part).ok_or(part[0])?);
    }
    Ok(())
}

/// Where the parts begin, and the end.
fn join_small(ranks: &Trie, word: &[u8]) -> Vec<usize> {
    let mut starts: Vec<usize> = (0..=word.len()).collect();
    // Rank of the union of the part at `i` and the next.
    let union = |starts: &[usize], i: usize| match starts.get(i + 2) {
        Some(&end) => ranks.get(&word[starts[i]..end]).unwrap_or(u32::MAX),
        None => u32::MAX,
    };
    let mut unions: Vec<u32> = (0..starts.len()).map(|i| union(&starts, i)).collect();
    while let Some((i, &rank)) = unions.iter().enumerate().min_by_key(|&(_, &rank)| rank)
        && rank != u32::MAX
    {
        starts.remove(i + 1);
        unions.remove(i + 1);
        unions[i] = union(&starts, i);
        if i > 0 {
            unions[i - 1] = union(&starts, i - 1);
        }
    }
    starts
}

/// The same for long words, in time `n log n`.
fn join_large(ranks: &Trie, word: &[u8]) -> Vec<usize> {
    let n = word.len();
    // Parts are known by where they begin; `ends[i] == 0` says that none begins at `i` any more.
    let mut ends: Vec<usize> = (1..=n).collect();
    let mut begins_before: Vec<usize> = (0..=n).map(|i: usize| i.saturating_sub(1)).collect();
    let mut heap = BinaryHeap::new();
    let offer = |heap: &mut BinaryHeap<_>, begin: usize, end: usize| {
        if let Some(rank) = ranks.get(&word[begin..end]) {
            heap.push(Reverse((rank, begin, end)));
        }
    };
    for begin in 0..n - 1 {
        offer(&mut heap, begin, begin + 2);
    }
    while let Some(Reverse((_, begin, end))) = heap.pop() {
        let middle = ends[begin];
        if middle == 0 || middle >= end || ends[middle] != end {
            continue;
        }
        ends[begin] = end;
        ends[middle] = 0;
        begins_before[end] = begin;
        if end < n {
            offer(&mut heap, begin, ends[end]);
        }
        if begin > 0 {
            offer(&mut heap, begins_before[begin], end);
        }
    }
    let mut starts = vec![0];
    let mut at = 0;
    while at < n {
        at = ends[at];
        starts.push(at);
    }
    starts
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Both ways to join give the same parts, for any ranks.
        #[test]
        fn large_and_small_agree(
            words in proptest::collection::vec("[abc]{2,5}", 0..40),
            text in "[abc]{1,120}",
        ) {
            let ranks = Trie::new(words.iter().enumerate().map(|(i, w)| (w.as_bytes(), i as u32)));
            prop_assert_eq!(join_small(&ranks, text.as_bytes()), join_large(&ranks, text.as_bytes()));
        }
    }

    #[test]
    fn the_lowest_rank_is_joined_first_and_the_leftmost_of_equals() {
        let ranks = Trie::new([(&b"ab"[..], 1), (b"bc", 0), (b"aa", 2), (b"a", 10), (b"b", 11), (b"c", 12)]);
        let mut out = Vec::new();
        encode_word(&ranks, b"abc", &mut out).unwrap();
        encode_word(&ranks, b"aaa", &mut out).unwrap();
        assert_eq!(out, [10, 0, 2, 10]);
        assert_eq!(encode_word(&ranks, b"ax", &mut out), Err(b'x'));
    }
}
