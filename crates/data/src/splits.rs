//! `--split`: the shares of train, valid and test, as `[begin, end)` fractions of a dataset's documents.
//!
//! Source: `parse_and_normalize_split` and `convert_split_vector_to_split_matrix` of Megatron's
//! `blended_megatron_dataset_config.py`.

use crate::error::{Error, Result};

/// The three splits, in Megatron's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SplitName {
    /// Training.
    Train,
    /// Validation.
    Valid,
    /// Test.
    Test,
}

impl SplitName {
    /// All splits in order.
    pub const ALL: [SplitName; 3] = [SplitName::Train, SplitName::Valid, SplitName::Test];

    /// The name used in file names and descriptions.
    pub fn as_str(self) -> &'static str {
        match self {
            SplitName::Train => "train",
            SplitName::Valid => "valid",
            SplitName::Test => "test",
        }
    }
}

/// A share of the documents as fractions of one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SplitRange {
    /// Where the share begins.
    pub begin: f64,
    /// Where the share ends.
    pub end: f64,
}

impl SplitRange {
    /// Everything: the share of each file list given for one split alone.
    pub const WHOLE: SplitRange = SplitRange { begin: 0.0, end: 1.0 };

    /// Document numbers `begin..end` out of `count`. Halves are rounded to even, as Python's `round` does.
    pub fn documents(&self, count: usize) -> std::ops::Range<usize> {
        let at = |fraction: f64| (fraction * count as f64).round_ties_even() as usize;
        at(self.begin)..at(self.end)
    }
}

/// A parsed `--split`.
#[derive(Clone, Debug, PartialEq)]
pub struct Splits {
    /// The string as typed; part of the description of every dataset.
    pub text: String,
    /// The three shares; `None` for a share of zero.
    pub ranges: [Option<SplitRange>; 3],
}

impl Splits {
    /// Parses up to three numbers separated by anything that is neither digit nor dot, for example `969, 30, 1`.
    ///
    /// # Errors
    /// Without a positive number, with more than three, with a malformed one, and with a negative one. Megatron
    /// drops the minus sign of `-1,1,0` and takes the share as 1; here that is refused.
    ///
    /// ```
    /// let splits = ferrotron_data::Splits::parse("90,10,0").unwrap();
    /// assert_eq!(splits.ranges[1].unwrap().documents(50), 45..50);
    /// assert!(splits.ranges[2].is_none());
    /// ```
    pub fn parse(text: &str) -> Result<Splits> {
        let error = |problem: String| Error::Split { text: text.to_owned(), problem };
        let mut shares = Vec::new();
        let mut previous_end = 0;
        for (start, word) in words(text) {
            let between = text[previous_end..start].trim_start();
            if between.ends_with('-') && (shares.is_empty() || between.len() > 1) {
                return Err(error(format!("the share -{word} is negative; shares are numbers of at least 0")));
            }
            let share: f64 = word.parse().map_err(|_| error(format!("{word:?} is not a number")))?;
            if !share.is_finite() {
                return Err(error(format!("{word} is too large")));
            }
            shares.push(share);
            previous_end = start + word.len();
        }
        if shares.len() > 3 {
            return Err(error(format!("there are {} shares, but only train, valid and test", shares.len())));
        }
        shares.resize(3, 0.0);
        let sum: f64 = shares[0] + shares[1] + shares[2];
        if !(sum > 0.0 && sum.is_finite()) {
            return Err(error(format!(
                "the shares {} + {} + {} sum to {sum}; at least one must be above 0, for example 98,2,0",
                shares[0], shares[1], shares[2]
            )));
        }
        let mut edge = 0.0;
        let mut ranges = [None; 3];
        for (range, share) in ranges.iter_mut().zip(&shares) {
            let next = edge + share / sum;
            *range = (next > edge).then_some(SplitRange { begin: edge, end: next });
            edge = next;
        }
        Ok(Splits { text: text.to_owned(), ranges })
    }
}

/// The maximal runs of digits and dots, with their byte offsets.
fn words(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut begin = None;
    for (i, c) in text.char_indices().chain([(text.len(), ' ')]) {
        match (c == '.' || c.is_ascii_digit(), begin) {
            (true, None) => begin = Some(i),
            (false, Some(b)) => {
                found.push((b, &text[b..i]));
                begin = None;
            }
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_become_ranges() {
        let s = Splits::parse("969, 30, 1").unwrap();
        assert_eq!(s.ranges[0], Some(SplitRange { begin: 0.0, end: 0.969 }));
        assert_eq!(s.ranges[2].unwrap().documents(1000), 999..1000);
        assert_eq!(Splits::parse("1").unwrap().ranges, [Some(SplitRange::WHOLE), None, None]);
        assert_eq!(Splits::parse("0,.5,").unwrap().ranges[1], Some(SplitRange::WHOLE));
        assert!(Splits::parse("98-2-0").is_ok(), "a hyphen between numbers separates, as in Megatron");
    }

    #[test]
    fn halves_round_to_even() {
        let half = SplitRange { begin: 0.0, end: 0.5 };
        assert_eq!((half.documents(1).end, half.documents(3).end, half.documents(5).end), (0, 2, 2));
    }

    #[test]
    fn nonsense_is_refused_with_the_sum() {
        for (text, part) in [
            ("0,0,0", "sum to 0"),
            ("", "sum to 0"),
            ("-1,1,0", "-1 is negative"),
            ("98, -2, 0", "-2 is negative"),
            ("1.2.3", "not a number"),
            ("1,2,3,4", "4 shares"),
        ] {
            let message = Splits::parse(text).unwrap_err().to_string();
            assert!(message.contains(part) && message.contains("--split"), "{text}: {message}");
        }
    }
}
