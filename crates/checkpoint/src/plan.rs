//! From "these elements are wanted" to a list of file reads that covers each of them exactly once.

use std::ops::Range;

use ferrotron_base::{DType, ShardBox, ShardSpec};

use crate::geometry::common_runs;

/// Part of a tensor that one shard file holds.
#[derive(Debug)]
pub(crate) struct Piece {
    /// Number of the shard in the manifest.
    pub shard: usize,
    /// First byte in the data section of the shard's file.
    pub offset: u64,
    pub dtype: DType,
    pub spec: ShardSpec,
    /// Elements of the local copy that lie in the file.
    pub range: Range<usize>,
}

/// `len` elements from element `at` of a piece go to element `out` of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub out: usize,
    pub len: usize,
    /// `None`: rows that the checkpoint does not have and that the caller allowed to be absent.
    pub piece: Option<usize>,
    pub at: usize,
}

/// Segments that cover `range` of the wanted copy: sorted, without overlap. `Err`: the first position (in the local
/// copy) that no piece has.
///
/// Rows of the wanted tensor beyond `saved_rows` count as covered.
pub(crate) fn cover(
    wanted: &ShardSpec,
    range: &Range<usize>,
    pieces: &[Piece],
    saved_rows: usize,
) -> Result<Vec<Segment>, usize> {
    let mut found = vec![];
    for (i, p) in pieces.iter().enumerate() {
        common_runs(wanted, range, &p.spec, &p.range, |out, at, len| {
            found.push(Segment { out, len, piece: Some(i), at });
        });
    }
    if let Some(&rows) = wanted.global.first()
        && rows > saved_rows
    {
        let absent = ShardBox::rows(&wanted.global, saved_rows, rows - saved_rows);
        let all = 0..absent.numel();
        let absent = ShardSpec { name: String::new(), global: wanted.global.clone(), boxes: vec![absent] };
        common_runs(wanted, range, &absent, &all, |out, _, len| found.push(Segment { out, len, piece: None, at: 0 }));
    }
    found.sort_unstable_by_key(|s| (s.out, s.piece));
    let mut cover: Vec<Segment> = vec![];
    let mut done = 0;
    for s in found {
        let end = s.out + s.len;
        if s.out > done {
            return Err(range.start + done);
        }
        if end <= done {
            continue; // a replica
        }
        let skip = done - s.out;
        let s = Segment { out: done, len: end - done, piece: s.piece, at: s.at + skip };
        match cover.last_mut() {
            Some(last) if last.piece == s.piece && (s.piece.is_none() || last.at + last.len == s.at) => {
                last.len += s.len
            }
            _ => cover.push(s),
        }
        done = end;
    }
    if done < range.len() { Err(range.start + done) } else { Ok(cover) }
}
