//! Sample rows: where in the stream of shuffled documents each sample begins, as (document index entry, offset).
//!
//! Source: `build_sample_idx` of Megatron's `helpers.cpp`, which walks the documents once. Row k (k > 0) points at the
//! last token that sample k - 1 reads: with an extra token that is stream token k S, which sample k reads again; without
//! one it is just behind token k S - 1. Row k therefore depends on nothing but the document that holds stream token
//! k S + extra - 1, and blocks of documents can be walked independently once their lengths are summed.

use std::ops::Range;
use std::path::Path;

use rayon::prelude::*;

use super::plan::Plan;
use crate::error::{Result, reserve};
use crate::indexed::Tokens;
use crate::npy::{Array, Element};

/// Entries of the document index that one task walks.
const BLOCK: usize = 1 << 14;

/// `[samples + 1, 2]`, flat.
pub(crate) enum Rows {
    Narrow(Array<i32>),
    Wide(Array<i64>),
}

/// The two widths of a row.
trait RowElement: Element {
    /// The caller has chosen a width that holds every value.
    fn from_i64(v: i64) -> Self;
    fn to_i64(self) -> i64;
}

impl RowElement for i32 {
    fn from_i64(v: i64) -> i32 {
        v as i32
    }
    fn to_i64(self) -> i64 {
        self.into()
    }
}

impl RowElement for i64 {
    fn from_i64(v: i64) -> i64 {
        v
    }
    fn to_i64(self) -> i64 {
        self
    }
}

impl Rows {
    pub fn build(plan: &Plan, tokens: &dyn Tokens, documents: &Array<i32>) -> Result<Rows> {
        let blocks = Blocks::new(plan, tokens, documents);
        Ok(match wide(plan) {
            true => Rows::Wide(build::<i64>(&blocks)?.into()),
            false => Rows::Narrow(build::<i32>(&blocks)?.into()),
        })
    }

    pub fn open(path: &Path, plan: &Plan) -> Result<Rows> {
        Ok(match wide(plan) {
            true => Rows::Wide(Array::open(path, 2)?),
            false => Rows::Narrow(Array::open(path, 2)?),
        })
    }

    pub fn save(&self, path: &Path) -> Result<()> {
        match self {
            Rows::Narrow(a) => a.save(path, 2),
            Rows::Wide(a) => a.save(path, 2),
        }
    }

    pub fn row(&self, i: usize) -> Option<(i64, i64)> {
        match self {
            Rows::Narrow(a) => row(a, i),
            Rows::Wide(a) => row(a, i),
        }
    }

    /// Compares every row with what the documents say.
    pub fn check(&self, plan: &Plan, tokens: &dyn Tokens, documents: &Array<i32>) -> Result<(), String> {
        let blocks = Blocks::new(plan, tokens, documents);
        match self {
            Rows::Narrow(a) => check(a, &blocks),
            Rows::Wide(a) => check(a, &blocks),
        }
    }
}

/// Offsets are below 2^31 because lengths are; entries need more only in very long runs.
fn wide(plan: &Plan) -> bool {
    plan.entries > i32::MAX as u64
}

fn row<T: RowElement>(a: &Array<T>, i: usize) -> Option<(i64, i64)> {
    Some((a.get(i.checked_mul(2)?)?.to_i64(), a.get(2 * i + 1)?.to_i64()))
}

fn build<T: RowElement>(blocks: &Blocks) -> Result<Vec<T>> {
    let flat = 2 * (blocks.plan.samples + 1);
    let mut rows = reserve(flat, "the sample index")?;
    rows.resize(flat as usize, T::default());
    // Row 0 stays (0, 0). The blocks' row ranges follow each other without gaps, from row 1.
    let mut rest = &mut rows[2..];
    let mut parts = Vec::with_capacity(blocks.len());
    for b in 0..blocks.len() {
        let count = blocks.rows(b).count();
        let (part, tail) = rest.split_at_mut(2 * count);
        parts.push((b, part));
        rest = tail;
    }
    parts.into_par_iter().for_each(|(b, part)| {
        let mut pairs = part.chunks_exact_mut(2);
        blocks.walk(b, |_, entry, offset| {
            if let Some(pair) = pairs.next() {
                pair.copy_from_slice(&[T::from_i64(entry), T::from_i64(offset)]);
            }
            true
        });
    });
    let (entry, offset) = blocks.end_row();
    for pair in rest.chunks_exact_mut(2) {
        pair.copy_from_slice(&[T::from_i64(entry), T::from_i64(offset)]);
    }
    Ok(rows)
}

fn check<T: RowElement>(rows: &Array<T>, blocks: &Blocks) -> Result<(), String> {
    let expected = blocks.plan.samples + 1;
    if rows.len() as u64 != 2 * expected {
        return Err(format!("has {} rows, but {expected} were expected", rows.len() / 2));
    }
    let wrong = |k: u64, expected: (i64, i64)| {
        let found = row(rows, k as usize);
        (found != Some(expected)).then(|| format!("row {k} is {found:?}, but {expected:?} was expected"))
    };
    let in_block = |b: usize| {
        let mut problem = None;
        blocks.walk(b, |k, entry, offset| {
            problem = wrong(k, (entry, offset));
            problem.is_none()
        });
        problem
    };
    let beyond = blocks.beyond();
    let problem = wrong(0, (0, 0))
        .or_else(|| (0..blocks.len()).into_par_iter().find_map_first(in_block))
        .or_else(|| beyond.into_iter().find_map(|k| wrong(k, blocks.end_row())));
    problem.map_or(Ok(()), Err)
}

/// The document index cut into blocks whose place in the token stream is known.
struct Blocks<'a> {
    plan: &'a Plan,
    tokens: &'a dyn Tokens,
    documents: &'a Array<i32>,
    /// Stream position where each block begins; one more for the end.
    starts: Vec<u64>,
}

impl<'a> Blocks<'a> {
    fn new(plan: &'a Plan, tokens: &'a dyn Tokens, documents: &'a Array<i32>) -> Blocks<'a> {
        let mut blocks = Blocks { plan, tokens, documents, starts: Vec::new() };
        let count = documents.len().div_ceil(BLOCK);
        let sum = |b| blocks.entries(b).map(|entry| blocks.length(entry)).sum();
        let sums: Vec<u64> = (0..count).into_par_iter().map(sum).collect();
        let mut position = 0;
        let ends = sums.into_iter().map(|sum| {
            position += sum;
            position
        });
        blocks.starts = std::iter::once(0).chain(ends).collect();
        blocks
    }

    fn len(&self) -> usize {
        self.starts.len() - 1
    }

    fn entries(&self, b: usize) -> Range<usize> {
        b * BLOCK..self.documents.len().min((b + 1) * BLOCK)
    }

    fn length(&self, entry: usize) -> u64 {
        let document = self.documents.get(entry).and_then(|d| usize::try_from(d).ok());
        document.map_or(0, |d| self.tokens.length(d) as u64)
    }

    /// The first row whose deciding token, k S + extra - 1, is at `position` or later.
    fn first_row(&self, position: u64) -> u64 {
        let k = (position + 1 - self.plan.extra).div_ceil(self.plan.sequence_length as u64);
        k.clamp(1, self.plan.samples + 1)
    }

    /// Rows that block `b` decides.
    fn rows(&self, b: usize) -> Range<u64> {
        self.first_row(self.starts[b])..self.first_row(self.starts[b + 1])
    }

    /// Rows past the end of the stream: only an incomplete last sample has one.
    fn beyond(&self) -> Range<u64> {
        self.first_row(self.starts[self.len()])..self.plan.samples + 1
    }

    /// Where rows past the end of the stream point: at the last token, or behind it when nothing is read twice.
    fn end_row(&self) -> (i64, i64) {
        match self.documents.len().checked_sub(1) {
            Some(entry) => (entry as i64, self.length(entry) as i64 - self.plan.extra as i64),
            None => (0, 0),
        }
    }

    /// Calls `visit(row, entry, offset)` for the rows of block `b`, in order, until it returns false.
    fn walk(&self, b: usize, mut visit: impl FnMut(u64, i64, i64) -> bool) {
        let Range { start: mut k, end } = self.rows(b);
        let s = self.plan.sequence_length as u64;
        let mut position = self.starts[b];
        for entry in self.entries(b) {
            let next = position + self.length(entry);
            while k < end && k * s + self.plan.extra - 1 < next {
                if !visit(k, entry as i64, (k * s - position) as i64) {
                    return;
                }
                k += 1;
            }
            position = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpt::plan::Plan;
    use proptest::prelude::*;

    struct Lengths(Vec<usize>);

    impl Tokens for Lengths {
        fn sequences(&self) -> usize {
            self.0.len()
        }
        fn length(&self, i: usize) -> usize {
            self.0[i]
        }
        fn read(&self, _: usize, _: usize, _: usize, _: &mut Vec<i32>) -> Result<()> {
            Ok(())
        }
        fn name(&self) -> &str {
            "lengths"
        }
    }

    /// Megatron's walk, document by document and sample by sample.
    fn reference(lengths: &[usize], documents: &[i32], s: i64, extra: i64, samples: u64) -> Vec<(i64, i64)> {
        let (mut d, mut offset) = (0usize, 0i64);
        let mut rows = vec![(0, 0)];
        for _ in 0..samples {
            let mut need = s + extra;
            loop {
                let length = lengths[documents[d] as usize] as i64 - offset;
                need -= length;
                if need <= 0 {
                    offset += need + length - extra;
                    break;
                }
                if d == documents.len() - 1 {
                    offset = lengths[documents[d] as usize] as i64 - extra;
                    break;
                }
                d += 1;
                offset = 0;
            }
            rows.push((d as i64, offset));
        }
        rows
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn rows_equal_the_sequential_walk(
            lengths in prop::collection::vec(prop_oneof![Just(0usize), 1usize..40], 1..30),
            s in 1usize..50, extra in 0u64..2, epochs in 1u64..4, partial: bool, copies in prop_oneof![Just(1usize), Just(2000)],
        ) {
            let lengths = lengths.repeat(copies);
            let per_epoch: usize = lengths.iter().sum();
            prop_assume!(per_epoch > 0);
            let documents: Vec<i32> = (0..epochs).flat_map(|_| 0..lengths.len() as i32).collect();
            let reads = epochs * per_epoch as u64 - extra;
            let samples = if partial { reads.div_ceil(s as u64) } else { reads / s as u64 };
            let plan = Plan {
                documents: 0..lengths.len(), sequence_length: s, extra, tokens_per_epoch: per_epoch as u64, epochs,
                entries: documents.len() as u64, samples, separate_at: None, seed: 0,
            };
            let expected = reference(&lengths, &documents, s as i64, extra as i64, samples);
            let tokens = Lengths(lengths);
            let documents = Array::from(documents);
            let blocks = Blocks::new(&plan, &tokens, &documents);
            let narrow = Array::from(build::<i32>(&blocks)?);
            let wide = Array::from(build::<i64>(&blocks)?);
            for (k, expected) in expected.iter().enumerate() {
                prop_assert_eq!(row(&narrow, k), Some(*expected));
            }
            prop_assert_eq!(narrow.len() as u64, 2 * (samples + 1));
            prop_assert!(narrow.iter().map(i64::from).eq(wide.iter()));
            prop_assert_eq!(check(&narrow, &blocks), Ok(()));
            let mut broken: Vec<i64> = wide.iter().collect();
            let at = broken.len() / 2;
            broken[at] += 1;
            prop_assert!(check(&Array::from(broken), &blocks).is_err());
        }
    }
}
