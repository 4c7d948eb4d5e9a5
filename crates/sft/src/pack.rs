//! Packing: several examples in one sample of S tokens, each seeing only itself.

use crate::{Error, Example, Result};

/// One sample of S tokens.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Packed {
    /// `[S]` input ids.
    pub tokens: Vec<u32>,
    /// `[S]` the id after each; 0 where nothing is learned.
    pub labels: Vec<u32>,
    /// `[S]` 1 where the label is a target.
    pub loss_mask: Vec<f32>,
    /// `[S]` positions, from 0 in each segment.
    pub position_ids: Vec<u32>,
    /// Bounds of the segments, strictly ascending from 0 to S. Padding at the end is a segment of its own.
    pub cu_seqlens: Vec<u32>,
    /// Examples in the sample, by their place in the input.
    pub examples: Vec<usize>,
}

/// Packs examples in order: each goes into the first of the open samples that has room (first fit), so examples of a
/// sample stay close in the input. Segments are padded to a multiple of `multiple` (context parallelism needs twice its
/// size); padding is masked by its position, whatever `pad` is.
///
/// # Errors
/// When S is not a multiple of `multiple`, or an example is longer than S.
pub fn pack(examples: &[Example], length: usize, multiple: usize, pad: u32) -> Result<Vec<Packed>> {
    if multiple == 0 || length == 0 || !length.is_multiple_of(multiple) {
        return Err(Error::Setting(format!(
            "--seq-length {length} is not a multiple of {multiple}, which every packed segment must have as a factor"
        )));
    }
    if u32::try_from(length).is_err() {
        return Err(Error::Setting(format!("--seq-length {length} is beyond 32 bits")));
    }
    /// Samples that are still looked at: a bound on the time, and on how far examples may move.
    const OPEN: usize = 64;
    let mut bins: Vec<(usize, Vec<usize>)> = Vec::new();
    for (i, example) in examples.iter().enumerate() {
        let size = example.ids.len().next_multiple_of(multiple);
        if size > length {
            let problem =
                format!("example {i} has {} ids, more than --seq-length {length}; truncate first", example.ids.len());
            return Err(Error::Setting(problem));
        }
        if size == 0 {
            continue;
        }
        let first_open = bins.len().saturating_sub(OPEN);
        match bins[first_open..].iter_mut().find(|(used, _)| used + size <= length) {
            Some((used, members)) => {
                *used += size;
                members.push(i);
            }
            None => bins.push((size, vec![i])),
        }
    }
    Ok(bins.into_iter().map(|(_, members)| sample(examples, members, length, multiple, pad)).collect())
}

fn sample(examples: &[Example], members: Vec<usize>, length: usize, multiple: usize, pad: u32) -> Packed {
    let mut packed = Packed { cu_seqlens: vec![0], ..Packed::default() };
    let segment = |packed: &mut Packed, ids: &[u32], mask: &[bool], size: usize| {
        for at in 0..size {
            packed.tokens.push(ids.get(at).copied().unwrap_or(pad));
            let learned = mask.get(at + 1).copied().unwrap_or(false);
            packed.labels.push(ids.get(at + 1).copied().filter(|_| learned).unwrap_or(0));
            packed.loss_mask.push(if learned { 1.0 } else { 0.0 });
            packed.position_ids.push(at as u32);
        }
        packed.cu_seqlens.push(packed.tokens.len() as u32);
    };
    for &i in &members {
        let Example { ids, mask } = &examples[i];
        segment(&mut packed, ids, mask, ids.len().next_multiple_of(multiple));
    }
    let left = length - packed.tokens.len();
    if left > 0 {
        segment(&mut packed, &[], &[], left);
    }
    packed.examples = members;
    packed
}

/// The order in which `count` examples are drawn from sets of the given sizes, so that after every draw each set has
/// given its share: `(set, example)`; a set that is through begins again.
///
/// # Errors
/// When a weight is not positive, or a set that is to give something has nothing.
pub fn mix(sizes: &[usize], weights: &[f64], count: usize) -> Result<Vec<(usize, usize)>> {
    if sizes.len() != weights.len() || sizes.is_empty() {
        return Err(Error::Setting(format!("{} weights are given for {} sets", weights.len(), sizes.len())));
    }
    for (k, (&size, &weight)) in sizes.iter().zip(weights).enumerate() {
        if !(weight.is_finite() && weight > 0.0) {
            return Err(Error::Setting(format!("weight {weight} of set {k} must be above 0")));
        }
        if size == 0 {
            return Err(Error::Setting(format!("set {k} has no examples")));
        }
    }
    let sum: f64 = weights.iter().sum();
    let mut taken = vec![0usize; sizes.len()];
    Ok((0..count)
        .map(|drawn| {
            let behind = |k: usize| weights[k] / sum * (drawn + 1) as f64 - taken[k] as f64;
            let mut best = 0;
            for k in 1..sizes.len() {
                if behind(k) > behind(best) {
                    best = k;
                }
            }
            taken[best] += 1;
            (best, (taken[best] - 1) % sizes[best])
        })
        .collect())
}
