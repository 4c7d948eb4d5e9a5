//! DeepSpeed's batch triangle (deepspeed/runtime/config.py, `_configure_train_batch_size`): global batch T, micro-batch M,
//! steps of accumulation G and W data-parallel ranks, T = M·G·W. Of the three the file may leave any two open.

use super::merge::{Merge, same, stated_by_user};
use super::stated::FLAG;
use crate::validate::checker::Checker;
use crate::value::Value;

const TOTAL: &str = "train_batch_size";
const MICRO: &str = "train_micro_batch_size_per_gpu";
const STEPS: &str = "gradient_accumulation_steps";

/// Global batch, micro-batch and steps of accumulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Triangle {
    /// Sequences of one optimizer step.
    pub total: i64,
    /// Sequences of one forward pass of a rank.
    pub micro: i64,
    /// Forward passes of a rank in a step.
    pub steps: i64,
}

/// Why there is no triangle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoTriangle {
    /// Neither the global batch nor the micro-batch is stated.
    Neither,
    /// The three do not multiply, for so many ranks.
    Unequal(Triangle),
}

/// Completes the triangle for `ranks` data-parallel ranks as DeepSpeed does, dividing whole numbers downwards.
///
/// # Errors
/// Too little is stated, or the numbers are not equal, or one of them is 0.
pub fn triangle(
    total: Option<i64>,
    micro: Option<i64>,
    steps: Option<i64>,
    ranks: i64,
) -> Result<Triangle, NoTriangle> {
    let ranks = ranks.max(1);
    let over = |a: i64, b: i64| a.checked_div(b).unwrap_or(0);
    let product = |a: i64, b: i64| a.saturating_mul(b);
    let t = match (total, micro, steps) {
        (Some(total), Some(micro), Some(steps)) => Triangle { total, micro, steps },
        (Some(total), Some(micro), None) => Triangle { total, micro, steps: over(over(total, micro), ranks) },
        (Some(total), None, Some(steps)) => Triangle { total, micro: over(over(total, ranks), steps), steps },
        (None, Some(micro), Some(steps)) => Triangle { total: product(product(micro, steps), ranks), micro, steps },
        (Some(total), None, None) => Triangle { total, micro: over(total, ranks), steps: 1 },
        (None, Some(micro), None) => Triangle { total: product(micro, ranks), micro, steps: 1 },
        (None, None, _) => return Err(NoTriangle::Neither),
    };
    let positive = t.total > 0 && t.micro > 0 && t.steps > 0;
    let equal = t.micro.checked_mul(t.steps).and_then(|n| n.checked_mul(ranks)) == Some(t.total);
    if positive && equal { Ok(t) } else { Err(NoTriangle::Unequal(t)) }
}

/// The first look, before the ranks are known: what both state must be the same.
pub(super) fn compare(m: &mut Merge, c: &mut Checker) {
    for (key, dest) in [(TOTAL, "global_batch_size"), (MICRO, "micro_batch_size")] {
        if let Some(n) = m.int(key)
            && stated_by_user(c, dest)
        {
            m.put(c, key, dest, Value::Int(n));
        }
    }
}

/// The second look: completes the triangle from the file, and from the command line where the file is silent.
pub(super) fn merge(m: &mut Merge, c: &mut Checker, ranks: usize) {
    let (total, micro, steps) = (m.int(TOTAL), m.int(MICRO), m.int(STEPS));
    let nothing = total.is_none() && micro.is_none() && steps.is_none();
    if nothing {
        return;
    }
    // Ranks that do not divide, or a mismatch, were reported already; what the file states is not missing.
    if ranks == 0 || !agree(c, total, "global_batch_size") || !agree(c, micro, "micro_batch_size") {
        c.args.mark_broken("micro_batch_size");
        return;
    }
    let both = |stated: Option<i64>, c: &Checker, dest: &str| stated.or_else(|| c.args.int(dest));
    let (t, mb) = (both(total, c, "global_batch_size"), both(micro, c, "micro_batch_size"));
    if t.is_none() && mb.is_none() && ["global_batch_size", "micro_batch_size"].iter().any(|d| c.args.is_broken(d)) {
        return;
    }
    match triangle(t, mb, steps, i64::try_from(ranks).unwrap_or(i64::MAX)) {
        Ok(done) => {
            for (key, stated, dest, n) in
                [(TOTAL, total, "global_batch_size", done.total), (MICRO, micro, "micro_batch_size", done.micro)]
            {
                if stated.is_some() {
                    m.fill(c, key, dest, Value::Int(n));
                } else if !stated_by_user(c, dest) {
                    c.args.derive(dest, Value::Int(n), &format!("batch sizes of {}", m.file()));
                }
            }
        }
        Err(why) => {
            refuse(m, c, why, ranks as i64);
            // One mistake, one message.
            for dest in ["global_batch_size", "micro_batch_size"] {
                c.args.derive(dest, Value::None, "the batch sizes contradict each other");
                c.args.mark_broken(dest);
            }
        }
    }
}

fn agree(c: &Checker, stated: Option<i64>, dest: &str) -> bool {
    stated.is_none_or(|n| !stated_by_user(c, dest) || same(c.args.value(dest), &Value::Int(n)))
}

fn refuse(m: &Merge, c: &mut Checker, why: NoTriangle, ranks: i64) {
    let file = m.file();
    let stated: Vec<String> =
        [TOTAL, MICRO, STEPS].into_iter().filter(|key| m.states(key)).map(|key| m.shown(key)).collect();
    let t = match why {
        NoTriangle::Neither => {
            let v = c.invalid(&[FLAG], format!("{file}: either {TOTAL} or {MICRO} needs to be provided"));
            v.arithmetic = Some(stated.join(", "));
            v.legal = Some(format!("{TOTAL} or {MICRO} in the file, or --global-batch-size or --micro-batch-size"));
            return;
        }
        NoTriangle::Unequal(t) => t,
    };
    let v = c.invalid(
        &[FLAG, "--global-batch-size", "--micro-batch-size"],
        format!(
            "{file}: {TOTAL} is not equal to micro_batch_per_gpu * gradient_acc_step * world_size {} != {} * {} * {ranks}",
            t.total, t.micro, t.steps
        ),
    );
    v.arithmetic = Some(format!("{}; {}", stated.join(", "), plural(ranks, "data-parallel rank")));
    v.legal = Some(fixes(t, ranks).join("; or "));
    v.why =
        Some("every rank runs the same number of equal micro-batches; what is left open is divided downwards".into());
}

/// One number changed so that the others hold.
fn fixes(t: Triangle, ranks: i64) -> Vec<String> {
    let (micro, steps) = (t.micro.max(1), t.steps.max(1));
    let mut out = vec![format!("{TOTAL} {}", micro.saturating_mul(steps).saturating_mul(ranks))];
    let whole = |by: i64| (by > 0 && t.total > 0 && t.total % by == 0).then(|| t.total / by);
    if let Some(n) = whole(micro.saturating_mul(ranks)).filter(|n| *n != t.steps) {
        out.push(format!("{STEPS} {n}"));
    }
    if let Some(n) = whole(steps.saturating_mul(ranks)).filter(|n| *n != t.micro) {
        out.push(format!("{MICRO} {n}"));
    }
    out.push(format!("no {TOTAL}, but {MICRO} {micro} and {STEPS} {steps}"));
    if let Some(n) = whole(micro.saturating_mul(steps)).filter(|n| *n != ranks) {
        out.push(plural(n, "data-parallel rank"));
    }
    out
}

fn plural(n: i64, noun: &str) -> String {
    crate::validate::checker::plural(usize::try_from(n).unwrap_or(0), noun)
}
