//! Blends: one stream of samples from several datasets in fixed proportions.
//!
//! Source: `get_blend_from_list` (`megatron/core/datasets/utils.py`), `blended_dataset.py` and the two
//! `build_*blending_indices` of `helpers.cpp`. The order is not random: each sample comes from the member that is
//! furthest behind its share. Shuffling is the members' business.

use rayon::prelude::*;
use serde_json::{Value, json};

use crate::cache::CacheFiles;
use crate::description::{blend_description, python_json};
use crate::error::{Error, Result, reserve};
use crate::gpt::GptDataset;
use crate::npy::Array;
use crate::sample::{Dataset, Sample};
use crate::splits::SplitName;

/// A parsed list of prefixes, with or without weights.
#[derive(Clone, Debug, PartialEq)]
pub struct Blend {
    /// Prefixes of the datasets.
    pub prefixes: Vec<String>,
    /// One weight per prefix, as typed; `None` blends in proportion to the sizes.
    pub weights: Option<Vec<f64>>,
}

impl Blend {
    /// Parses the words after `--data-path` (or `--train-data-path` ..., named by `flag` in errors).
    ///
    /// An odd number of words are prefixes. An even number are weight-prefix pairs, unless no weight is a number: then
    /// they are prefixes too.
    ///
    /// # Errors
    /// Without words, when only some of the weights are numbers (Megatron takes some such lists as prefixes by
    /// accident), and when a weight is not positive.
    pub fn parse<S: AsRef<str>>(flag: &str, words: &[S]) -> Result<Blend> {
        let error = |problem: String| Error::Blend { flag: flag.to_owned(), problem };
        let words: Vec<&str> = words.iter().map(|w| w.as_ref().trim()).collect();
        if words.is_empty() {
            return Err(error("names no dataset".to_owned()));
        }
        let all_prefixes = || Blend { prefixes: words.iter().map(|w| w.to_string()).collect(), weights: None };
        if words.len() % 2 == 1 {
            return Ok(all_prefixes());
        }
        let pairs: Vec<(Option<f64>, &str, &str)> =
            words.chunks_exact(2).map(|w| (w[0].parse().ok(), w[0], w[1])).collect();
        if pairs.iter().all(|(weight, ..)| weight.is_none()) {
            return Ok(all_prefixes());
        }
        let mut weights = Vec::with_capacity(pairs.len());
        for (i, (weight, word, prefix)) in pairs.iter().enumerate() {
            let place = 2 * i + 1;
            let weight = weight.ok_or_else(|| {
                error(format!(
                    "word {place}, {word:?}, stands where others have a weight but is not a number; give either every \
                     prefix a weight or none"
                ))
            })?;
            if !(weight.is_finite() && weight > 0.0) {
                return Err(error(format!("the weight {word} of {prefix} (word {place}) must be above 0")));
            }
            weights.push(weight);
        }
        Ok(Blend { prefixes: pairs.iter().map(|(.., prefix)| prefix.to_string()).collect(), weights: Some(weights) })
    }
}

/// Weights divided by their sum.
pub(crate) fn normalize(weights: &[f64]) -> Vec<f64> {
    let sum = numpy_sum(weights);
    weights.iter().map(|w| w / sum).collect()
}

/// `numpy.sum` of doubles, whose rounding decides the last bits of normalised weights: from 8 elements on it adds in
/// eight lanes, from 129 on it halves the array first (`pairwise_sum` in numpy's `loops_utils.h`).
fn numpy_sum(x: &[f64]) -> f64 {
    let n = x.len();
    if n < 8 {
        return x.iter().fold(0.0, |sum, v| sum + v);
    }
    if n > 128 {
        let half = n / 2;
        let (left, right) = x.split_at(half - half % 8);
        return numpy_sum(left) + numpy_sum(right);
    }
    let (eights, rest) = x.as_chunks::<8>();
    let mut r = eights[0];
    for eight in &eights[1..] {
        for (lane, v) in r.iter_mut().zip(eight) {
            *lane += v;
        }
    }
    let sum = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]));
    rest.iter().fold(sum, |sum, v| sum + v)
}

/// Samples that a member of normalised weight supplies to `n` blended ones: `(target, to build)`; more are built than
/// needed, because the greedy order may take a few more from one member.
pub(crate) fn member_samples(n: u64, weight: f64, surplus: f64) -> (u64, u64) {
    let target = (n as f64 * weight).ceil();
    (target as u64, (target * (1.0 + surplus)).ceil() as u64)
}

/// How the members of a blend share it.
pub(crate) enum Shares {
    /// By weight, `size` samples in all.
    Weighted { weights: Vec<f64>, size: u64 },
    /// Everything that the members have.
    Exhaustive,
}

/// Members' samples in blended order.
pub struct BlendedDataset {
    members: Vec<GptDataset>,
    index: BlendIndex,
    description: Value,
}

/// For each blended sample its member and the sample there.
pub(crate) struct BlendIndex {
    member: Array<i16>,
    sample: Array<i64>,
}

impl BlendedDataset {
    pub(crate) fn new(
        members: Vec<GptDataset>,
        shares: Shares,
        split: SplitName,
        cache: impl FnOnce(&str) -> Option<CacheFiles>,
    ) -> Result<(BlendedDataset, Vec<String>)> {
        let error = |problem: String| Error::Blend { flag: format!("the {} blend", split.as_str()), problem };
        if members.len() >= i16::MAX as usize {
            return Err(error(format!("has {} members, but at most {} are possible", members.len(), i16::MAX - 1)));
        }
        let lengths: Vec<u64> = members.iter().map(|m| m.len() as u64).collect();
        let (weights, shown, size) = match shares {
            // Megatron normalises once more here, which can change the last bit.
            Shares::Weighted { weights, size } => {
                let weights = normalize(&weights);
                (weights.clone(), json!(weights), Some(size))
            }
            Shares::Exhaustive => {
                let total: u64 = lengths.iter().sum();
                (lengths.iter().map(|&l| l as f64 / total as f64).collect(), json!(lengths), None)
            }
        };
        let descriptions = members.iter().map(|m| m.description_value().clone()).collect();
        let description = blend_description(descriptions, split, shown, size);
        let text = python_json(&description);
        let count = size.unwrap_or_else(|| lengths.iter().sum());
        let build = || BlendIndex::build(&weights, count, size.is_none().then_some(&lengths[..]));
        let (index, notices) = match cache(&text) {
            Some(files) => {
                files.load_or_build(&text, |f| BlendIndex::open(f, members.len(), count), build, BlendIndex::save)?
            }
            None => (build()?, Vec::new()),
        };
        let mut taken = vec![0u64; members.len()];
        for k in index.member.iter().filter_map(|k| usize::try_from(k).ok()) {
            if let Some(count) = taken.get_mut(k) {
                *count += 1;
            }
        }
        if let Some(k) = (0..members.len()).find(|&k| taken[k] > lengths[k]) {
            return Err(error(format!("takes {} samples from member {k}, which has {}", taken[k], lengths[k])));
        }
        Ok((BlendedDataset { members, index, description }, notices))
    }

    /// The blended datasets.
    pub fn members(&self) -> &[GptDataset] {
        &self.members
    }

    /// Member and sample number there of blended sample `i`.
    pub fn source(&self, i: usize) -> Option<(usize, usize)> {
        let member = usize::try_from(self.index.member.get(i)?).ok()?;
        Some((member, usize::try_from(self.index.sample.get(i)?).ok()?))
    }
}

impl Dataset for BlendedDataset {
    fn len(&self) -> usize {
        self.index.member.len()
    }

    fn get(&self, i: usize, out: &mut Sample) -> Result<()> {
        let found = self.source(i).and_then(|(k, sample)| Some((k, self.members.get(k)?, sample)));
        let Some((k, member, sample)) = found else {
            let len = self.len();
            return Err(Error::OutOfRange { file: "blend".to_owned(), what: "sample", index: i, len });
        };
        member.get(sample, out)?;
        out.member = k;
        Ok(())
    }

    fn description(&self) -> String {
        python_json(&self.description)
    }
}

impl BlendIndex {
    /// Gives each of `size` samples to the member whose count is furthest below weight × samples so far; the first
    /// of equals. With `limits`, members that have given all they have no longer compete.
    fn build(weights: &[f64], size: u64, limits: Option<&[u64]>) -> Result<BlendIndex> {
        let mut member = reserve(size, "the blend's dataset index")?;
        let mut sample = reserve(size, "the blend's sample index")?;
        let mut taken = vec![0u64; weights.len()];
        for s in 0..size {
            let so_far = (s as f64).max(1.0);
            let (mut best, mut best_error) = (0, f64::NEG_INFINITY);
            for (k, weight) in weights.iter().enumerate() {
                let error = weight * so_far - taken[k] as f64;
                if error > best_error && limits.is_none_or(|limits| taken[k] < limits[k]) {
                    (best, best_error) = (k, error);
                }
            }
            // The number of members was checked to fit an i16.
            member.push(best as i16);
            sample.push(taken[best] as i64);
            taken[best] += 1;
        }
        Ok(BlendIndex { member: member.into(), sample: sample.into() })
    }

    /// Maps a cached index; each member's samples must be counted up from 0.
    fn open(files: &CacheFiles, members: usize, size: u64) -> Result<BlendIndex> {
        let (member_path, sample_path) = (files.path("dataset_index.npy"), files.path("dataset_sample_index.npy"));
        let index = BlendIndex { member: Array::open(&member_path, 1)?, sample: Array::open(&sample_path, 1)? };
        let (m, s) = (index.member.len(), index.sample.len());
        if m as u64 != size || s as u64 != size {
            return Err(Error::format(
                &member_path,
                "elements",
                format!("{m} members and {s} samples instead of {size}"),
            ));
        }
        let mut taken = vec![0i64; members];
        for (i, (k, sample)) in index.member.iter().zip(index.sample.iter()).enumerate() {
            let count = usize::try_from(k).ok().and_then(|k| taken.get_mut(k));
            match count {
                Some(count) if *count == sample => *count += 1,
                _ => {
                    let problem = format!(
                        "entry {i} is sample {sample} of member {k} (by {}), which is not that member's next",
                        member_path.display()
                    );
                    return Err(Error::format(&sample_path, "elements", problem));
                }
            }
        }
        Ok(index)
    }

    fn save(&self, files: &CacheFiles) -> Result<()> {
        self.member.save(&files.path("dataset_index.npy"), 1)?;
        self.sample.save(&files.path("dataset_sample_index.npy"), 1)
    }
}

/// Applies `make` to all members at once; the first member's error wins.
pub(crate) fn in_parallel<T: Send>(count: usize, make: impl Fn(usize) -> Result<T> + Sync) -> Result<Vec<T>> {
    let results: Vec<Result<T>> = (0..count).into_par_iter().map(&make).collect();
    results.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_as_megatron_reads_them() {
        let parse = |words: &[&str]| Blend::parse("--data-path", words);
        let plain =
            |prefixes: &[&str]| Blend { prefixes: prefixes.iter().map(|p| p.to_string()).collect(), weights: None };
        assert_eq!(parse(&["a"]).unwrap(), plain(&["a"]));
        assert_eq!(parse(&["a", "b"]).unwrap(), plain(&["a", "b"]));
        assert_eq!(parse(&["1", "b", "c"]).unwrap(), plain(&["1", "b", "c"]));
        let weighted = Blend { weights: Some(vec![0.3, 7e-1]), ..plain(&["a", "b"]) };
        assert_eq!(parse(&["0.3", " a ", "7e-1", "b"]).unwrap(), weighted);
        for (words, part) in [
            (&["0.3", "a", "x", "b"][..], "word 3, \"x\""),
            (&["x", "a", "0.3", "b"], "word 1, \"x\""),
            (&["-1", "a", "1", "b"], "weight -1 of a"),
            (&["1", "a", "0", "b"], "weight 0 of b"),
            (&["nan", "a"], "weight nan of a"),
            (&[], "names no dataset"),
        ] {
            let message = parse(words).unwrap_err().to_string();
            assert!(message.contains(part) && message.starts_with("--data-path"), "{message}");
        }
    }

    /// Expected: 0.1 added in numpy's lane order by hand. 8 lanes of one value each: ((.1+.1)+(.1+.1))*2 = 0.8 exactly
    /// rounded, while adding left to right gives 0.7999999999999999.
    #[test]
    fn eight_weights_are_summed_in_lanes() {
        assert_eq!(numpy_sum(&[0.1; 8]), 0.8);
        assert_eq!([0.1; 8].iter().sum::<f64>(), 0.799_999_999_999_999_9);
        assert_eq!(numpy_sum(&[0.1; 7]), [0.1; 7].iter().sum::<f64>());
        assert_eq!(numpy_sum(&vec![1.0; 1000]), 1000.0);
    }
}
