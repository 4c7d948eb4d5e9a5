//! Length of the run, learning-rate and weight-decay schedules (Megatron: `validate_args`, `OptimizerParamScheduler`).

use super::NoticeKind;
use super::checker::Checker;
use crate::settings::{LrConfig, LrDecayStyle, RunLength, Warmup, WdIncrStyle, WeightDecay, WsdDecay, WsdDecayStyle};
use crate::value::Value;

/// Megatron-DeepSpeed's lengths in tokens become those of the unit that the run is counted by. Sequences have one length
/// here, so a token is a part of a sample, and an iteration has as many as its batch. (Its `training.py`: training ends at
/// `train_tokens`, whatever `train_samples` or `train_iters` say; its `AnnealingLR` takes the decay and the warm-up in tokens
/// before those in samples.)
pub(super) fn tokens(c: &mut Checker, global_batch: usize) {
    let Some(seq) = c.args.int("seq_length").and_then(|n| u64::try_from(n).ok()).filter(|n| *n > 0) else { return };
    let by_iters = c.args.is_set("train_iters");
    let (unit, per) = if by_iters { ("iters", seq.saturating_mul(global_batch as u64)) } else { ("samples", seq) };
    let wanted: Vec<(&str, u64)> = ["train_tokens", "lr_decay_tokens", "lr_warmup_tokens"]
        .into_iter()
        .filter_map(|dest| Some((dest, c.tokens_from(dest, 1)?)))
        .collect();
    let grows = ["rampup_batch_size", "step_batch_size_schedule"].iter().any(|d| !c.args.value(d).is_none());
    if by_iters && grows && !wanted.is_empty() {
        let flags = ["--train-tokens", "--lr-decay-tokens", "--lr-warmup-tokens"];
        let v = c.invalid(&flags, "lengths in tokens do not go with iterations of a growing batch");
        v.legal = Some("--train-samples in place of --train-iters".into());
        return;
    }
    for (dest, tokens) in wanted {
        let target = format!("{}_{unit}", dest.trim_end_matches("_tokens"));
        let flag = format!("--{}", dest.replace('_', "-"));
        // a run ends with the step that reaches its tokens; points of a schedule go to the nearest
        let n = if dest == "train_tokens" { tokens.div_ceil(per) } else { tokens.saturating_add(per / 2) / per };
        let stated = c.args.int(&target).and_then(|n| u64::try_from(n).ok());
        if dest == "train_tokens" && stated.is_some_and(|stated| stated <= n) {
            continue; // which is reached first
        }
        if let Some(stated) = stated {
            let target = c.args.spelling(&target);
            c.notice(
                NoticeKind::Adjusted,
                format!("{flag} {tokens} counts, not {target} {stated}: {n} {unit} of {per} tokens"),
            );
        }
        c.derive(&target, Value::Int(i64::try_from(n.max(1)).unwrap_or(i64::MAX)), &flag);
    }
}

/// `--train-iters` or `--train-samples`; zero iterations when neither is there.
pub(super) fn length(c: &mut Checker) -> RunLength {
    let iters = c.long_from("train_iters", if c.args.flag("skip_train") { 0 } else { 1 });
    let samples = c.long_from("train_samples", 1);
    if iters.is_some() && samples.is_some() {
        c.invalid(
            &["--train-iters", "--train-samples"],
            "--train-iters and --train-samples both state the length; give one",
        );
    }
    match (iters, samples) {
        (Some(n), _) => RunLength::Iterations(n),
        (None, Some(n)) => RunLength::Samples(n),
        (None, None) => {
            let broken = c.args.is_broken("train_iters") || c.args.is_broken("train_samples");
            if !c.args.flag("skip_train") && !broken {
                c.missing("train_iters", "--train-iters", "length of the run (or --train-samples)");
            }
            RunLength::Iterations(0)
        }
    }
}

pub(super) fn check(c: &mut Checker, length: RunLength) -> (LrConfig, WeightDecay) {
    let skip = c.args.flag("skip_train");
    let (unit, other) = match length {
        RunLength::Iterations(_) => ("iters", "samples"),
        RunLength::Samples(_) => ("samples", "iters"),
    };
    for what in ["lr_decay", "lr_warmup", "lr_wsd_decay"] {
        let dest = format!("{what}_{other}");
        let set = c.args.int(&dest).is_some_and(|n| n != 0);
        if set && !skip {
            let (wrong, right) = (c.args.spelling(&dest), c.args.spelling(&format!("{what}_{unit}")));
            let run = format!("--train-{unit}");
            let v = c.invalid(&[&wrong, &run], format!("{wrong} does not go with a run counted by {run}"));
            v.legal = Some(right);
        }
    }
    let lr = match c.real_from("lr", 0.0) {
        Some(lr) => lr,
        None => {
            if c.args.value("lr").is_none() && !skip {
                c.missing("lr", "--lr", "peak learning rate");
            }
            0.0
        }
    };
    let min_lr = c.real_from("min_lr", 0.0).unwrap_or(0.0);
    let readable = c.args.float("lr").is_some() && !c.args.is_broken("lr") && !skip;
    if readable && min_lr > lr {
        let v = c.invalid(&["--min-lr", "--lr"], "the learning rate's floor is above its peak");
        v.arithmetic = Some(format!("--min-lr {min_lr:e} > --lr {lr:e}"));
    }
    let warmup_init = c.real_from("lr_warmup_init", 0.0).unwrap_or(0.0);
    if readable && warmup_init > lr {
        let v = c.invalid(&["--lr-warmup-init", "--lr"], "the warm-up starts above the peak");
        v.arithmetic = Some(format!("--lr-warmup-init {warmup_init:e} > --lr {lr:e}"));
    }
    let total = match length {
        RunLength::Iterations(n) | RunLength::Samples(n) => n,
    };
    let decay_dest = format!("lr_decay_{unit}");
    let decay = match c.long_from(&decay_dest, 1) {
        Some(n) => n,
        None => {
            if total > 0 {
                c.derive(&decay_dest, Value::Int(i64::try_from(total).unwrap_or(i64::MAX)), "length of the run");
            }
            total
        }
    };
    let warmup = warmup(c, unit, decay, skip);
    flat_tail(c, unit, decay, total, skip);
    let decay_style = match c.args.text("lr_decay_style") {
        Some("constant") => LrDecayStyle::Constant,
        Some("cosine") => LrDecayStyle::Cosine,
        Some("inverse-square-root") => LrDecayStyle::InverseSquareRoot,
        Some("WSD") => LrDecayStyle::Wsd,
        _ => LrDecayStyle::Linear,
    };
    let wsd = if decay_style == LrDecayStyle::Wsd { wsd(c, unit, decay, skip) } else { None };
    (LrConfig { lr, min_lr, warmup_init, warmup, decay_style, decay, wsd }, weight_decay(c))
}

/// `--lr-decay-samples 80` of 100 is often meant as "80 after the warm-up", but it counts the warm-up.
fn flat_tail(c: &mut Checker, unit: &str, decay: u64, total: u64, skip: bool) {
    let falls = !matches!(c.args.text("lr_decay_style"), Some("constant" | "inverse-square-root"));
    let Some(tail) = total.checked_sub(decay).filter(|tail| *tail > 0 && falls && !skip) else { return };
    let percent = 100.0 * tail as f64 / total as f64;
    // Round lengths that end a little early are common, and meant.
    if percent >= 1.0 {
        c.warn(format!(
            "the learning rate is constant for the last {percent:.0}% of training: it reaches --min-lr at {decay} of {total} \
             {unit} (--lr-decay-{unit} counts the warm-up)"
        ));
    }
}

fn warmup(c: &mut Checker, unit: &str, decay: u64, skip: bool) -> Warmup {
    let dest = format!("lr_warmup_{unit}");
    let count = c.long_from(&dest, 0).unwrap_or(0);
    let fraction = c.real("lr_warmup_fraction", "0 <= fraction < 1", |f| (0.0..1.0).contains(&f));
    let flag = c.args.spelling(&dest);
    if fraction.is_some() && count > 0 {
        c.invalid(
            &["--lr-warmup-fraction", &flag],
            format!("--lr-warmup-fraction and {flag} both state the warm-up; give one"),
        );
    }
    if fraction.is_none() && count > 0 && count >= decay && decay > 0 && !skip {
        let v = c.invalid(&[&flag], "the warm-up is not shorter than the decay");
        v.arithmetic = Some(format!("{flag} {count} >= {decay} (--lr-decay-{unit}, or the length of the run)"));
        v.legal = Some(format!("{flag} {} or less, or a longer --lr-decay-{unit}", decay - 1));
        v.why = Some("the decay length counts the warm-up, and what follows it would be empty".into());
    }
    match fraction {
        Some(fraction) => Warmup::Fraction(fraction),
        None => Warmup::Count(count),
    }
}

fn wsd(c: &mut Checker, unit: &str, decay: u64, skip: bool) -> Option<WsdDecay> {
    let dest = format!("lr_wsd_decay_{unit}");
    let flag = c.args.spelling(&dest);
    let style = match c.args.text("lr_wsd_decay_style") {
        Some("linear") => WsdDecayStyle::Linear,
        Some("cosine") => WsdDecayStyle::Cosine,
        Some("minus_sqrt") => WsdDecayStyle::MinusSqrt,
        _ => WsdDecayStyle::Exponential,
    };
    let Some(length) = c.long_from(&dest, 0) else {
        if !c.args.is_broken(&dest) && !skip {
            c.missing(&dest, &flag, "length of the annealing, required by --lr-decay-style WSD");
        }
        return None;
    };
    if length > decay && decay > 0 && !skip {
        let v = c.invalid(&[&flag], "the annealing is longer than the whole decay");
        v.arithmetic = Some(format!("{flag} {length} > {decay} (--lr-decay-{unit}, or the length of the run)"));
    }
    let start = decay.saturating_sub(length);
    if c.args.int(&format!("lr_warmup_{unit}")).is_some_and(|w| w > 0 && w as u64 > start) {
        c.warn(format!("the warm-up ends after WSD's annealing begins at {start}: warm-up goes first, the rate then jumps onto the annealing curve"));
    }
    Some(WsdDecay { length, style })
}

fn weight_decay(c: &mut Checker) -> WeightDecay {
    const STYLE: &str = "--weight-decay-incr-style";
    let constant = c.real_from("weight_decay", 0.0).unwrap_or(0.0);
    let start = c.real_from("start_weight_decay", 0.0);
    let end = c.real_from("end_weight_decay", 0.0);
    let incr_style = match c.args.text("weight_decay_incr_style") {
        Some("linear") => WdIncrStyle::Linear,
        Some("cosine") => WdIncrStyle::Cosine,
        _ => WdIncrStyle::Constant,
    };
    let flags = ["--start-weight-decay", "--end-weight-decay", STYLE];
    match (incr_style, start, end) {
        (WdIncrStyle::Constant, None, None) => {
            for dest in ["start_weight_decay", "end_weight_decay"] {
                c.derive(dest, Value::Float(constant), "--weight-decay");
            }
        }
        (WdIncrStyle::Constant, ..) => {
            c.invalid(&flags, format!("--start-weight-decay and --end-weight-decay need a growing {STYLE}")).legal =
                Some(format!("{STYLE} linear or cosine; or --weight-decay alone"));
        }
        (_, Some(s), Some(e)) if e < s => {
            c.invalid(&flags, format!("weight decay grows, but {e} is below {s}"));
        }
        (_, Some(_), Some(_)) => {}
        _ => {
            c.invalid(&flags, format!("a growing {STYLE} needs both --start-weight-decay and --end-weight-decay"));
        }
    }
    if let Some("apply_wd_to_qk_layernorm") = c.args.text("no_weight_decay_cond_type") {
        c.derive("apply_wd_to_qk_layernorm", Value::Bool(true), "--no-weight-decay-cond-type");
    }
    WeightDecay {
        start: start.unwrap_or(constant),
        end: end.unwrap_or(constant),
        incr_style,
        qk_layernorm: c.args.flag("apply_wd_to_qk_layernorm"),
    }
}
