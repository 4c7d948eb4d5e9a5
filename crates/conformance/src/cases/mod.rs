//! The cases, one file per op family.

mod activation;
mod attention;
mod cross_entropy;
mod dropout;
mod elementwise;
mod embedding;
mod gemm;
mod layout;
mod moe;
mod norm;
mod optimizer;
mod refusals;
mod rope;

use ferrotron_device::{DType, Result};

use crate::{Case, Rig};

/// Storage dtypes of activations and weights.
const STORAGE: [DType; 3] = [DType::F32, DType::BF16, DType::F16];

/// A growing list of cases.
#[derive(Default)]
struct Cases(Vec<Case>);

impl Cases {
    fn add(&mut self, op: &'static str, name: String, body: impl Fn(&Rig) -> Result<()> + Send + Sync + 'static) {
        self.0.push(Case { op, name, body: Box::new(body) });
    }
}

/// Largest absolute value, a magnitude for bounds.
fn largest(values: &[f64]) -> f64 {
    values.iter().fold(0.0, |m, v| v.abs().max(m))
}

pub(crate) fn all() -> Vec<Case> {
    let mut cases = Cases::default();
    gemm::cases(&mut cases);
    gemm::activated(&mut cases);
    norm::cases(&mut cases);
    rope::cases(&mut cases);
    layout::cases(&mut cases);
    attention::cases(&mut cases);
    activation::cases(&mut cases);
    dropout::cases(&mut cases);
    embedding::cases(&mut cases);
    cross_entropy::cases(&mut cases);
    moe::cases(&mut cases);
    optimizer::cases(&mut cases);
    elementwise::cases(&mut cases);
    refusals::cases(&mut cases);
    cases.0
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_case_has_its_own_name() {
        let mut names: Vec<String> = super::all().iter().map(|c| format!("{} {}", c.op, c.name)).collect();
        let n = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), n);
    }

    /// Ops and rows of the table are the same, in both directions.
    #[test]
    fn every_op_has_a_row_in_the_docs() {
        let table = include_str!("../../../../docs/ops.md");
        let mut rows: Vec<&str> = table.lines().filter_map(|l| l.strip_prefix("| `")?.split('`').next()).collect();
        let mut ops: Vec<&str> = super::all().iter().map(|c| c.op).filter(|op| *op != "refusals").collect();
        ops.sort();
        ops.dedup();
        rows.sort();
        assert_eq!(rows, ops);
    }
}
