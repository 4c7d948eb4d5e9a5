//! Pipelines: any schedule and any division of layers gives the losses of one rank, with dropout on.
//!
//! Without clipping, each printed digit is the same: every gradient is summed over micro-batches in one order under all
//! schedules. The norm that clips sums over stages, and a shared embedding's gradient over two of them, in an order of
//! their own: then the last printed digit may differ by one.
#![allow(clippy::unwrap_used)] // a test that cannot go on stops

mod common;

use std::process::Command;

use common::{TINY, Temp, fail, losses, program, succeed, tiny};

/// Where a loss was printed, and the loss in units of its last digit.
fn points(log: &str) -> Vec<(String, i64)> {
    let point = |l: &String| {
        let place = l.split('|').next().unwrap_or_default().trim().to_string();
        let loss = l.split('|').find(|f| f.contains("lm loss")).unwrap_or_default();
        let loss: f64 = loss.rsplit(' ').find(|w| !w.is_empty()).unwrap_or_default().parse().unwrap();
        (place, (loss * 1e6).round() as i64)
    };
    losses(log).iter().map(point).collect()
}

/// Runs `make` with no words, and with those of `layouts` on as many thread ranks as the number before each. Losses
/// (seven digits, all below 10) may be `units` of the last digit apart.
fn same_as_one_rank(units: i64, layouts: &[(usize, &str)], make: impl Fn(&str) -> Command) {
    let one = points(&succeed(&mut make("")));
    assert_eq!(one.iter().filter(|(place, _)| place.starts_with("iteration")).count(), 12, "{one:#?}");
    for (ranks, layout) in layouts {
        let words = format!("--thread-ranks {ranks} --pipeline-model-parallel-size {ranks} {layout}");
        let many = points(&succeed(make(&words).env("OMP_NUM_THREADS", "1")));
        assert_eq!(many.len(), one.len(), "{words}");
        for (many, one) in many.iter().zip(&one) {
            assert!(many.0 == one.0 && (many.1 - one.1).abs() <= units, "{words}: {many:?} is not {one:?}");
        }
    }
}

/// Four layers and four micro-batches.
const FOUR: &str = "--num-layers 4 --global-batch-size 8";

#[test]
fn schedules_print_the_losses_of_one_rank() {
    let layouts = [
        (2, ""),
        (4, ""),
        (2, "--pipeline-schedule gpipe"),
        (2, "--pipeline-schedule zb-h1"),
        (4, "--enable-zbh1-pipeline"),
        (2, "--num-layers-per-virtual-pipeline-stage 1"),
        (2, "--num-virtual-stages-per-pipeline-rank 2 --pipeline-schedule gpipe"),
        (2, "--num-virtual-stages-per-pipeline-rank 2 --microbatch-group-size-per-virtual-pipeline-stage 4"),
    ];
    same_as_one_rank(0, &layouts, |words| tiny(&format!("{FOUR} --clip-grad 0 {words}")));
}

#[test]
fn uneven_divisions_print_the_losses_of_one_rank() {
    let layouts = [
        (2, "--decoder-first-pipeline-num-layers 1"),
        (2, "--decoder-last-pipeline-num-layers 1 --pipeline-schedule zb-h1"),
        (3, "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split"),
        (2, "--num-layer-list 3,1"),
        (2, "--pipeline-model-parallel-layout Et|tt|t|L"),
        (2, "--pipeline-model-parallel-layout E|(t|)*4L"),
        (3, "--deepspeed"),
    ];
    same_as_one_rank(0, &layouts, |words| tiny(&format!("{FOUR} --clip-grad 0 {words}")));
}

#[test]
fn clipping_and_shared_embeddings_stay_within_the_last_digit() {
    let layouts = [
        (2, "--num-layers-per-virtual-pipeline-stage 1"),
        (
            2,
            "--pipeline-schedule zb-h1 --recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
        ),
        (4, "--pipeline-schedule gpipe"),
    ];
    same_as_one_rank(1, &layouts, |words| tiny(&format!("{FOUR} {words}")));
    // GPT-2's shape: first and last stage share the embedding.
    let tied = TINY.replace("--untie-embeddings-and-output-weights", "");
    same_as_one_rank(1, &layouts, |words| {
        let mut c = program();
        let more = format!("{FOUR} --position-embedding-type learned_absolute --normalization LayerNorm {words}");
        c.args(tied.split_whitespace()).args(more.split_whitespace());
        c
    });
}

/// All axes at once: tensor and sequence parallel, chunks, data parallel with a sharded optimizer. Sums over ranks run in
/// another order; 5 units are 1.3e-6 of the loss.
#[test]
fn with_tensor_and_data_parallel_ranks() {
    // Vocabulary padded alike: 128 = 2 * 64.
    let one = points(&succeed(&mut tiny(FOUR)));
    let words = format!(
        "{FOUR} --thread-ranks 8 --tensor-model-parallel-size 2 --sequence-parallel --make-vocab-size-divisible-by 64 \
         --pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1 --use-distributed-optimizer \
         --overlap-grad-reduce --overlap-param-gather --check-collectives"
    );
    let many = points(&succeed(tiny(&words).env("OMP_NUM_THREADS", "1")));
    assert_eq!(many.len(), one.len());
    for (many, one) in many.iter().zip(&one) {
        assert!(many.0 == one.0 && (many.1 - one.1).abs() <= 5, "{many:?} is not {one:?}");
    }
}

/// Names of parameters carry the layer's number in the model, so a checkpoint fits any division.
#[test]
fn a_checkpoint_moves_between_divisions() {
    let t = Temp::new("pipeline");
    let whole = points(&succeed(&mut tiny(&format!("{FOUR} --clip-grad 0"))));
    let interleaved = "--thread-ranks 2 --pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1";
    for (name, first, second) in [("down", interleaved, ""), ("up", "", interleaved)] {
        let dir = t.path(name);
        let run = |layout: &str, exit: &str| {
            let words = format!("{FOUR} --clip-grad 0 --save {0} --load {0} {layout} {exit}", dir.display());
            points(&succeed(tiny(&words).env("OMP_NUM_THREADS", "1")))
        };
        let mut both = run(first, "--exit-interval 5");
        both.extend(run(second, ""));
        assert_eq!(both, whole, "{name}");
    }
}

/// A growing batch passes sizes that the interleaved schedule cannot run: said before the first step.
#[test]
fn batch_sizes_on_the_way_are_checked_before_training() {
    // 6 / 2 = 3 micro-batches do not fill groups of 2.
    let ramp =
        "--num-layers 4 --global-batch-size 8 --rampup-batch-size 4 2 16 --train-samples 64 --lr-warmup-samples 8";
    let tiny = TINY.replace("--train-iters 12 ", "").replace("--lr-warmup-iters 3 ", "");
    let layout = "--thread-ranks 2 --pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1";
    let mut c = program();
    c.args(tiny.split_whitespace()).args(ramp.split_whitespace()).args(layout.split_whitespace());
    let (_, why) = fail(&mut c);
    assert!(why.contains("3 micro-batches in groups of 2 leave a last group of 1"), "{why}");
}
