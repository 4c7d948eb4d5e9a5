//! The three index arrays of a GPT dataset: built, checked, saved and mapped.
//!
//! One generator serves all shuffles in the order documents, then samples. The rows between them need no random
//! numbers, so they are computed on all cores while the samples are being shuffled.

use ferrotron_base::mt19937::Mt19937;

use super::plan::Plan;
use super::rows::Rows;
use crate::cache::CacheFiles;
use crate::error::{Error, Result, reserve};
use crate::indexed::Tokens;
use crate::npy::{Array, Element};

/// From here on Megatron's shuffle index is 64 bits wide.
const WIDE_SHUFFLE: u64 = u32::MAX as u64 - 1;

/// Document index, sample rows and shuffle index.
pub(crate) struct GptIndex {
    pub documents: Array<i32>,
    pub rows: Rows,
    pub shuffle: Shuffle,
}

/// Sample numbers in shuffled order.
pub(crate) enum Shuffle {
    Narrow(Array<u32>),
    Wide(Array<i64>),
}

impl Shuffle {
    pub fn len(&self) -> usize {
        match self {
            Shuffle::Narrow(a) => a.len(),
            Shuffle::Wide(a) => a.len(),
        }
    }

    pub fn get(&self, i: usize) -> Option<usize> {
        match self {
            Shuffle::Narrow(a) => a.get(i).map(|v| v as usize),
            Shuffle::Wide(a) => a.get(i).and_then(|v| usize::try_from(v).ok()),
        }
    }
}

impl GptIndex {
    /// Shuffles documents, cuts the stream into samples and shuffles those.
    pub fn build(plan: &Plan, tokens: &dyn Tokens) -> Result<GptIndex> {
        let mut random = Mt19937::new(plan.seed);
        let documents = Array::from(document_index(plan, &mut random)?);
        let (rows, shuffle) =
            rayon::join(|| Rows::build(plan, tokens, &documents), || shuffle_index(plan, &mut random));
        Ok(GptIndex { rows: rows?, shuffle: shuffle?, documents })
    }

    /// Maps the arrays of a cache and proves that they are an index of this plan: every document as often as there
    /// are epochs, every sample once, every row where the documents put it.
    pub fn open(files: &CacheFiles, plan: &Plan, tokens: &dyn Tokens) -> Result<GptIndex> {
        let [documents_path, rows_path, shuffle_path] =
            ["document_index.npy", "sample_index.npy", "shuffle_index.npy"].map(|name| files.path(name));
        let documents = Array::open(&documents_path, 1)?;
        let rows = Rows::open(&rows_path, plan)?;
        let shuffle = match plan.samples >= WIDE_SHUFFLE {
            true => Shuffle::Wide(Array::open(&shuffle_path, 1)?),
            false => Shuffle::Narrow(Array::open(&shuffle_path, 1)?),
        };
        let (sound_documents, (sound_rows, sound_shuffle)) = rayon::join(
            || check_documents(plan, &documents),
            || rayon::join(|| rows.check(plan, tokens, &documents), || check_shuffle(plan, &shuffle)),
        );
        // Rows follow from documents: damage there is reported as what it is.
        for (path, sound) in [(documents_path, sound_documents), (rows_path, sound_rows), (shuffle_path, sound_shuffle)]
        {
            sound.map_err(|problem| Error::format(&path, "elements", problem))?;
        }
        Ok(GptIndex { documents, rows, shuffle })
    }

    /// Writes the three arrays under Megatron's names.
    pub fn save(&self, files: &CacheFiles) -> Result<()> {
        self.documents.save(&files.path("document_index.npy"), 1)?;
        self.rows.save(&files.path("sample_index.npy"))?;
        let path = files.path("shuffle_index.npy");
        match &self.shuffle {
            Shuffle::Narrow(a) => a.save(&path, 1),
            Shuffle::Wide(a) => a.save(&path, 1),
        }
    }
}

/// The documents of each epoch, all shuffled together; a separate last epoch is shuffled on its own.
fn document_index(plan: &Plan, random: &mut Mt19937) -> Result<Vec<i32>> {
    let mut index = reserve(plan.entries, "the document index")?;
    for _ in 0..plan.epochs {
        // Document numbers were checked to fit an i32.
        index.extend(plan.documents.clone().map(|d| d as i32));
    }
    let last_epoch = index.len() - plan.documents.len();
    if plan.separate_at.is_some() {
        let (most, last) = index.split_at_mut(last_epoch);
        random.shuffle(most);
        random.shuffle(last);
    } else {
        random.shuffle(&mut index);
    }
    Ok(index)
}

fn shuffle_index(plan: &Plan, random: &mut Mt19937) -> Result<Shuffle> {
    if plan.samples >= WIDE_SHUFFLE {
        let numbers = shuffled(plan, random, |i| i as i64)?;
        Ok(Shuffle::Wide(numbers.into()))
    } else {
        let numbers = shuffled(plan, random, |i| i as u32)?;
        Ok(Shuffle::Narrow(numbers.into()))
    }
}

/// The sample numbers, those of a separate last epoch shuffled on their own and put last.
fn shuffled<T: Element>(plan: &Plan, random: &mut Mt19937, number: impl Fn(u64) -> T) -> Result<Vec<T>> {
    let mut index = reserve(plan.samples, "the shuffle index")?;
    index.extend((0..plan.samples).map(number));
    let (most, last) = index.split_at_mut(first_section(plan));
    random.shuffle(most);
    random.shuffle(last);
    Ok(index)
}

/// Samples that are shuffled together at the front. The vector that is split there has `plan.samples` elements, so
/// the conversion cannot lose anything.
fn first_section(plan: &Plan) -> usize {
    plan.separate_at.unwrap_or(plan.samples).min(plan.samples) as usize
}

fn check_documents(plan: &Plan, index: &Array<i32>) -> Result<(), String> {
    if index.len() as u64 != plan.entries {
        return Err(format!("holds {} documents, but {} were expected", index.len(), plan.entries));
    }
    let n = plan.documents.len();
    let last_epoch = index.len() - n;
    let mut sections = vec![(0..index.len(), plan.epochs)];
    if plan.separate_at.is_some() {
        sections = vec![(0..last_epoch, plan.epochs - 1), (last_epoch..index.len(), 1)];
    }
    for (section, times) in sections {
        let mut seen = vec![0u64; n];
        for d in section.filter_map(|i| index.get(i)) {
            let slot = usize::try_from(d).ok().and_then(|d| d.checked_sub(plan.documents.start));
            match slot.and_then(|slot| seen.get_mut(slot)) {
                Some(count) => *count += 1,
                None => return Err(format!("holds document {d}, which is not in {:?}", plan.documents)),
            }
        }
        if let Some(slot) = seen.iter().position(|&count| count != times) {
            let d = plan.documents.start + slot;
            return Err(format!("holds document {d} {} times instead of {times}", seen[slot]));
        }
    }
    Ok(())
}

fn check_shuffle(plan: &Plan, index: &Shuffle) -> Result<(), String> {
    if index.len() as u64 != plan.samples {
        return Err(format!("holds {} samples, but {} were expected", index.len(), plan.samples));
    }
    let first = first_section(plan);
    let mut seen = vec![0u64; index.len().div_ceil(64)];
    for i in 0..index.len() {
        let section = if i < first { 0..first } else { first..index.len() };
        let Some(j) = index.get(i).filter(|j| section.contains(j)) else {
            return Err(format!("entry {i} is not one of samples {section:?}"));
        };
        let (word, bit) = (j / 64, 1 << (j % 64));
        if seen[word] & bit != 0 {
            return Err(format!("holds sample {j} twice"));
        }
        seen[word] |= bit;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The widths differ, the order does not: the golden runs are all narrow.
    #[test]
    fn wide_and_narrow_shuffles_agree_and_keep_the_sections_apart() {
        let plan = Plan {
            documents: 0..3,
            sequence_length: 2,
            extra: 1,
            tokens_per_epoch: 100,
            epochs: 3,
            entries: 9,
            samples: 149,
            separate_at: Some(99),
            seed: 5,
        };
        let narrow = shuffled(&plan, &mut Mt19937::new(5), |i| i as u32).unwrap();
        let wide = shuffled(&plan, &mut Mt19937::new(5), |i| i as i64).unwrap();
        assert!(narrow.iter().map(|&i| i64::from(i)).eq(wide.iter().copied()));
        assert!(narrow[..99].iter().all(|&i| i < 99) && narrow[99..].iter().all(|&i| i >= 99));
        let check = |a: Vec<i64>| check_shuffle(&plan, &Shuffle::Wide(a.into()));
        assert_eq!(check(wide.clone()), Ok(()));
        let mut crossed = wide.clone();
        crossed.swap(0, 148);
        assert!(check(crossed).is_err());
        let mut twice = wide;
        twice[0] = twice[1];
        assert!(check(twice).unwrap_err().contains("twice"));
    }
}
