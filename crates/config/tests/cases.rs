//! Reports of users, by id: what went wrong elsewhere, and what is said or done here.

mod common;

use common::{TINY, faults, run, tiny, words};
use ferrotron_config::settings::{BatchPlan, BatchStep};
use ferrotron_config::show::notices_text;

fn with(flags: &str, ranks: usize) -> String {
    faults(&words(&format!("{TINY} {flags}")), ranks)
}

/// TINY with one flag and its value taken out.
fn without(flag: &str) -> String {
    let mut after_flag = false;
    let keep = |word: &String| -> bool {
        let keep = word != flag && !std::mem::take(&mut after_flag);
        after_flag = word == flag;
        keep
    };
    words(TINY).into_iter().filter(keep).collect::<Vec<_>>().join(" ")
}

/// Sequence parallelism at tensor parallel size 1 is switched off in one line that says it changes no numbers; experts over
/// tensor-parallel ranks without it are accepted, and the line says that it is about speed.
#[test]
fn arg_03_sequence_parallelism_says_what_it_affects() {
    let r = tiny("--sequence-parallel");
    assert_eq!(
        notices_text(&r.notices),
        "note: --sequence-parallel has no effect at tensor parallel size 1: disabled (numbers do not change)\n"
    );
    assert!(!r.config.parallel.sequence_parallel && !r.args.flag("sequence_parallel"));
    let flags = "--num-experts 2 --disable-bias-linear --tensor-model-parallel-size 2 --expert-model-parallel-size 2";
    let r = run(&words(&format!("{TINY} {flags}")), 4).unwrap();
    assert!(notices_text(&r.notices).contains("slower, the numbers do not change"));
}

/// A dense model at tensor parallel size 2 meets no rule about experts.
#[test]
fn arg_04_dense_models_meet_no_expert_rule() {
    let text = with("--tensor-model-parallel-size 2", 2);
    assert!(text.is_empty(), "{text}");
}

/// Three micro-batches over two interleaved stages: both numbers and the next batch sizes are named.
#[test]
fn arg_05_interleaving_names_micro_batches_and_stages() {
    let interleaved = "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1";
    let text = with(&format!("{interleaved} --global-batch-size 3"), 2);
    assert!(
        text.contains("3 micro-batches % 2 (pipeline size 2) = 1") && text.contains("--global-batch-size 2 or 4"),
        "{text}"
    );
    assert!(!with(&format!("{interleaved} --global-batch-size 4"), 2).contains("micro-batches %"));
    let wider = format!("{interleaved} --global-batch-size 6 --microbatch-group-size-per-virtual-pipeline-stage 4");
    assert!(!with(&wider, 2).contains("micro-batches %"), "a rest of 2 fills two stages");
}

/// Both pairings of expert flags are refused before anything starts, each with the one flag to change, and together.
#[test]
fn arg_07_expert_pairings_come_together() {
    let experts = "--num-experts 4 --moe-router-topk 2";
    let bias = "--moe-router-enable-expert-bias --moe-router-score-function softmax";
    let text = with(&format!("{experts} {bias} --moe-shared-expert-overlap"), 1);
    assert!(text.contains("legal: --moe-router-score-function sigmoid or sqrtsoftplus"), "{text}");
    assert!(text.contains("legal: --moe-token-dispatcher-type alltoall"), "{text}");
    let capacity = format!("{experts} --moe-expert-capacity-factor 1.0 --moe-token-dispatcher-type allgather");
    assert!(with(&capacity, 1).contains("valid, but"), "Megatron main takes this pair");
}

/// As many heads as the model is wide: a warning, and with rotary positions an error.
#[test]
fn arg_08_a_head_of_size_one_is_noticed() {
    let notes = notices_text(&tiny("--num-attention-heads 64").notices);
    assert!(notes.contains("head size 1 is unusual (64 heads on hidden size 64): were two flags swapped?"), "{notes}");
    let text = with("--num-attention-heads 64 --position-embedding-type rope", 1);
    assert!(text.contains("must be even") && text.contains("head size 1 x 1 = 1"), "{text}");
}

/// Warm-up and annealing that overlap are defined: the warm-up goes first, and the user is told.
#[test]
fn arg_12_overlapping_warm_up_and_annealing_are_defined() {
    let line = without("--lr-decay-style").replace("--train-iters 10", "--train-iters 5");
    let flags = "--lr-warmup-iters 3 --lr-wsd-decay-iters 4 --lr-decay-style WSD";
    let r = run(&words(&format!("{line} {flags}")), 1).unwrap();
    let notes = notices_text(&r.notices);
    assert!(notes.contains("the warm-up ends after WSD's annealing begins at 1: warm-up goes first"), "{notes}");
}

/// A recipe shortened to 10 iterations with 2000 of warm-up: refused in iterations; equality is no different.
#[test]
fn lrs_01_a_warm_up_longer_than_the_run_is_refused_in_the_users_unit() {
    for warmup in [2000, 10] {
        let text = with(&format!("--lr-warmup-iters {warmup} --lr-decay-style cosine"), 1);
        assert!(text.contains(&format!("--lr-warmup-iters {warmup} >= 10")) && text.contains("9 or less"), "{text}");
        assert!(!text.contains("samples"), "{text}");
    }
}

/// The decay counts the warm-up: 80 of 100 leaves a flat fifth.
#[test]
fn lrs_02_a_flat_tail_is_noticed() {
    let line = without("--train-iters").replace("--lr-decay-style constant", "--lr-decay-style linear");
    let flags = "--train-samples 100 --lr-warmup-samples 20 --lr-decay-samples 80";
    let r = run(&words(&format!("{line} {flags}")), 1).unwrap();
    let notes = notices_text(&r.notices);
    assert!(notes.contains("the learning rate is constant for the last 20% of training"), "{notes}");
    assert!(notes.contains("80 of 100 samples (--lr-decay-samples counts the warm-up)"), "{notes}");
    assert_eq!(r.config.optim.lr.decay, 80);
    for quiet in [
        "--lr-decay-iters 10 --lr-decay-style cosine",
        "--lr-decay-iters 5",
        "--lr-decay-iters 20 --lr-decay-style cosine",
    ] {
        assert!(!notices_text(&tiny(quiet).notices).contains("is constant for the last"), "{quiet}");
    }
}

/// Every size of a ramp is checked at launch, in both spellings.
#[test]
fn lrs_04_ramps_are_checked_at_launch() {
    let samples = without("--train-iters") + " --train-samples 100";
    let ramp = |start: usize, ranks| {
        let line = format!("{samples} --global-batch-size 8 --micro-batch-size 1 --rampup-batch-size {start} 2 12");
        run(&words(&line), ranks)
    };
    let text = |r: Result<_, Box<ferrotron_config::Refused>>| {
        r.err().map_or_else(String::new, |e| ferrotron_config::report("test", &e.violations))
    };
    assert!(!text(ramp(2, 2)).contains("divide"), "2, 4, 6, 8 over two ranks");
    let odd = text(ramp(3, 2));
    assert!(odd.contains("(8 - 3) / 2 is no whole number of increments"), "{odd}");
    let line = format!("{samples} --global-batch-size 9 --micro-batch-size 1 --rampup-batch-size 3 2 12");
    let between = faults(&words(&line), 2);
    assert!(between.contains("global batch 3 % (micro batch 1 x data parallel 2 = 2) = 1"), "{between}");
    let line = without("--global-batch-size") + " --step-batch-size-schedule 0:4,24:8";
    let steps = run(&words(&line.replace("--seq-length 32", "--seq-length 1")), 1).unwrap();
    let at = |from_samples, global_batch_size| BatchStep { from_samples, global_batch_size };
    assert_eq!(steps.config.train.batch_plan, BatchPlan::Steps(vec![at(0, 4), at(24, 8)]));
}

/// Norms of queries and keys decay only when asked for.
#[test]
fn opt_04_decay_of_query_and_key_norms_is_a_choice() {
    assert!(!tiny("--qk-layernorm").config.optim.weight_decay.qk_layernorm);
    let text = with("--qk-layernorm --apply-wd-to-qk-layernorm", 1);
    assert!(text.is_empty(), "{text}");
}
