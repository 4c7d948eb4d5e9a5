//! What a run of the suite found.

use std::collections::BTreeMap;
use std::fmt;

/// One tensor of one case that is wrong, or an error of the device.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The op.
    pub op: &'static str,
    /// Shape, dtype and variant in words.
    pub case: String,
    /// Tensor, index, value got, value wanted and the bound; or the device's error.
    pub what: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.op, self.case, self.what)
    }
}

/// Figures of one op.
#[derive(Clone, Debug, Default)]
pub struct OpSummary {
    /// Cases run.
    pub cases: usize,
    /// Values compared.
    pub values: usize,
    /// Largest error, the output's rounding apart, as a fraction of its bound: at most 1 in a passing run.
    pub worst: f64,
    /// Where that was.
    pub worst_case: String,
}

/// What a run of the suite found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Figures by op.
    pub ops: BTreeMap<&'static str, OpSummary>,
    /// Everything that was wrong.
    pub failures: Vec<Failure>,
    /// A fingerprint of every output's bits, case by case: equal for devices that must agree to the bit.
    pub fingerprints: Vec<(String, u64)>,
}

impl Report {
    /// True when nothing was wrong.
    pub fn passed(&self) -> bool {
        self.failures.is_empty()
    }

    /// Panics with the whole report unless it passed: for tests.
    pub fn assert_passed(&self) {
        assert!(self.passed(), "{self}");
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 40;
        for (op, s) in &self.ops {
            writeln!(
                f,
                "{op:<24} {:>4} cases {:>8} values, worst error {:.3} of its bound ({})",
                s.cases, s.values, s.worst, s.worst_case
            )?;
        }
        for failure in self.failures.iter().take(SHOWN) {
            writeln!(f, "FAILED {failure}")?;
        }
        if self.failures.len() > SHOWN {
            writeln!(f, "and {} more", self.failures.len() - SHOWN)?;
        }
        Ok(())
    }
}
