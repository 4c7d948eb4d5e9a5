//! Batch sizes and how they grow (Megatron: `num_microbatches_calculator`).

use super::checker::Checker;
use crate::settings::{BatchPlan, BatchStep, EvalConfig, ParallelConfig, TrainConfig};

const MICRO: &str = "--micro-batch-size";
const GLOBAL: &str = "--global-batch-size";
const RAMP: &str = "--rampup-batch-size";
const STEPS: &str = "--step-batch-size-schedule";

/// Sizes and plan.
pub(super) struct Batch {
    pub micro: usize,
    pub global: usize,
    pub plan: BatchPlan,
    pub decrease: bool,
}

pub(super) fn check(c: &mut Checker, p: &ParallelConfig) -> Batch {
    let micro = c.required_size("micro_batch_size", "sequences of one forward pass on one rank");
    let decrease = c.args.flag("decrease_batch_size_if_needed");
    let steps = step_schedule(c, decrease);
    let unit = micro.saturating_mul(p.dp);
    let global = match (&steps, c.size("global_batch_size")) {
        (Some(steps), _) => steps.last().and_then(|s| usize::try_from(s.global_batch_size).ok()).unwrap_or(0),
        (None, Some(global)) => global,
        (None, None) if c.args.is_broken("global_batch_size") => 0,
        (None, None) => unit,
    };
    if c.args.value("global_batch_size").is_none() && global > 0 {
        let rule =
            if steps.is_some() { "last step of --step-batch-size-schedule" } else { "micro batch x data parallel" };
        c.derive_size("global_batch_size", global, rule);
    }
    let plan = match steps {
        Some(steps) => BatchPlan::Steps(steps),
        None => rampup(c, global),
    };
    if unit > 0 && global > 0 && !decrease {
        divides(c, &plan, micro, p.dp, global);
    }
    Batch { micro, global, plan, decrease }
}

/// Every size that the plan reaches must be a whole number of micro-batches on every data-parallel rank.
fn divides(c: &mut Checker, plan: &BatchPlan, micro: usize, dp: usize, global: usize) {
    let unit = (micro * dp) as u64;
    let (flag, sizes): (&str, Vec<u64>) = match plan {
        BatchPlan::Constant => (GLOBAL, vec![global as u64]),
        BatchPlan::Rampup { start, increment, .. } => {
            let last = global as u64;
            (RAMP, (*start..=last).step_by(usize::try_from(*increment).unwrap_or(usize::MAX).max(1)).collect())
        }
        BatchPlan::Steps(steps) => (STEPS, steps.iter().map(|s| s.global_batch_size).collect()),
    };
    let Some(size) = sizes.into_iter().find(|s| !s.is_multiple_of(unit)) else { return };
    let below = size / unit * unit;
    let above = below + unit;
    let near = if below > 0 { format!("{below} or {above}") } else { above.to_string() };
    let v = c.invalid(&[flag, MICRO], "the global batch does not divide into micro-batches");
    v.arithmetic =
        Some(format!("global batch {size} % (micro batch {micro} x data parallel {dp} = {unit}) = {}", size % unit));
    v.legal = Some(format!("{GLOBAL} {near}; or --decrease-batch-size-if-needed, which rounds down"));
    v.why = Some("every data-parallel rank runs the same number of equal micro-batches".into());
}

fn rampup(c: &mut Checker, global: usize) -> BatchPlan {
    let numbers: Option<Vec<u64>> =
        c.args.list("rampup_batch_size").iter().map(|v| v.to_string().parse::<u64>().ok()).collect();
    let [start, increment, samples] = match numbers.as_deref() {
        Some([]) => return BatchPlan::Constant,
        Some(&[a, b, s]) if a > 0 && b > 0 && s > 0 => [a, b, s],
        _ => {
            c.invalid(&[RAMP], format!("{RAMP} takes three whole numbers from 1: start, increment, samples"));
            return BatchPlan::Constant;
        }
    };
    if c.args.value("train_samples").is_none() && !c.args.value("train_iters").is_none() {
        // Releases up to core 0.17 refused this, main ignores the ramp; the meaning is plain, so it runs.
        c.warn(format!(
            "{RAMP} with --train-iters: iterations of the ramp are smaller, so the run sees fewer samples than iterations x \
             global batch, and schedules, which count samples, end later; --train-samples avoids both"
        ));
    }
    let global = global as u64;
    if global > 0 && (start >= global || !(global - start).is_multiple_of(increment)) {
        let v = c.invalid(&[RAMP, GLOBAL], "the ramp does not reach the global batch size");
        v.arithmetic = Some(format!("({global} - {start}) / {increment} is no whole number of increments from 1"));
        v.legal = Some("start below the global batch size, and increment dividing the difference".into());
        return BatchPlan::Constant;
    }
    // One entry per reached size is walked below; a ramp of a million sizes is a typing mistake.
    if global > 0 && (global - start) / increment > 1_000_000 {
        c.invalid(&[RAMP], format!("{RAMP} has more than a million increments"));
        return BatchPlan::Constant;
    }
    BatchPlan::Rampup { start, increment, samples }
}

fn step_schedule(c: &mut Checker, decrease: bool) -> Option<Vec<BatchStep>> {
    let text = c.args.text("step_batch_size_schedule")?.to_string();
    if c.args.is_set("global_batch_size") {
        c.invalid(&[STEPS, GLOBAL], format!("{STEPS} already states the batch sizes; give it or {GLOBAL}"));
    }
    if decrease {
        c.invalid(
            &[STEPS, "--decrease-batch-size-if-needed"],
            format!("{STEPS} and --decrease-batch-size-if-needed do not combine"),
        );
    }
    if !c.args.list("rampup_batch_size").is_empty() {
        c.invalid(&[STEPS, RAMP], format!("{STEPS} and {RAMP} do not combine"));
    }
    let seq = c.args.int("seq_length").and_then(|n| u64::try_from(n).ok()).filter(|n| *n > 0).unwrap_or(1);
    match steps(&text, seq) {
        Ok(steps) => Some(steps),
        Err(why) => {
            c.invalid(&[STEPS], format!("{STEPS} '{text}': {why}")).legal =
                Some("TOKENS:BATCH entries, for example \"0:256 100B:512\" (suffixes K, M, B, T), the first at 0, tokens increasing".into());
            None
        }
    }
}

/// `0:16 1K:32` in tokens to steps in samples.
fn steps(text: &str, seq_length: u64) -> Result<Vec<BatchStep>, String> {
    let mut out: Vec<BatchStep> = Vec::new();
    for entry in text.split([' ', ',', '\t', '\n']).filter(|e| !e.is_empty()) {
        let (at, size) = entry.split_once(':').ok_or_else(|| format!("'{entry}' has no ':'"))?;
        let tokens = tokens(at).ok_or_else(|| format!("'{at}' is no number of tokens"))?;
        let size = size.parse::<u32>().ok().filter(|s| *s > 0).ok_or_else(|| format!("'{size}' is no batch size"))?;
        let step = BatchStep { from_samples: tokens / seq_length, global_batch_size: size.into() };
        match out.last() {
            None if tokens != 0 => return Err(format!("the first entry starts at {at}, not at 0")),
            Some(last) if last.from_samples >= step.from_samples => {
                return Err(format!("'{entry}' does not come after its predecessor"));
            }
            _ => out.push(step),
        }
    }
    if out.is_empty() { Err("no entries".to_string()) } else { Ok(out) }
}

fn tokens(text: &str) -> Option<u64> {
    let scale = match text.chars().last()?.to_ascii_uppercase() {
        'K' => 1e3,
        'M' => 1e6,
        'B' => 1e9,
        'T' => 1e12,
        _ => return text.parse().ok(),
    };
    let number: f64 = text[..text.len() - 1].parse().ok()?;
    let tokens = (number * scale).round();
    (tokens.is_finite() && (0.0..1e18).contains(&tokens)).then_some(tokens as u64)
}

/// Evaluation: its batch sizes default to training's.
pub(super) fn check_eval(c: &mut Checker, p: &ParallelConfig, train: &TrainConfig) -> EvalConfig {
    let micro = c.size("eval_micro_batch_size").unwrap_or(train.micro_batch_size);
    let global = c.size("eval_global_batch_size").unwrap_or(train.global_batch_size);
    let unit = micro.saturating_mul(p.dp);
    if c.given_any(&["eval_micro_batch_size", "eval_global_batch_size"]) && unit > 0 && !global.is_multiple_of(unit) {
        let v = c.invalid(
            &["--eval-global-batch-size", "--eval-micro-batch-size"],
            "the evaluation batch does not divide into micro-batches",
        );
        v.arithmetic =
            Some(format!("{global} % (micro batch {micro} x data parallel {} = {unit}) = {}", p.dp, global % unit));
    }
    EvalConfig {
        interval: c.long_from("eval_interval", 0).filter(|n| *n > 0),
        iters: c.long_from("eval_iters", 0).unwrap_or(0),
        start_at_iter: c.long_from("start_eval_at_iter", 0),
        global_batch_size: global,
        micro_batch_size: micro,
        full_validation: c.args.flag("full_validation"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn step_schedules_match_megatron() {
        // Rows of Megatron main's own parser: text, sequence length, (samples, batch).
        for (text, seq, want) in [
            ("0:16 1K:32 5K:64", 1, &[(0, 16), (1000, 32), (5000, 64)][..]),
            ("0:8,100K:16 0.5M:32", 128, &[(0, 8), (781, 16), (3906, 32)]),
            ("0:4 250:8 300:12", 1, &[(0, 4), (250, 8), (300, 12)]),
        ] {
            let got: Vec<(u64, u64)> =
                steps(text, seq).unwrap().iter().map(|s| (s.from_samples, s.global_batch_size)).collect();
            assert_eq!(got, want, "{text}");
        }
        for bad in ["", "5", "1:4", "0:0", "0:4 1:x", "0:4 0:8", "0:4 é:8", "0:4 1eB:3"] {
            assert!(steps(bad, 1).is_err(), "{bad}");
        }
    }
}
