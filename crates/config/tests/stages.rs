//! Division of layers over stages and chunks, and the schedule that follows.

mod common;

use common::{TINY, faults, run, words};
use ferrotron_config::settings::ParallelConfig;

/// The tiny run on `ranks` pipeline stages.
fn pipeline(ranks: usize, more: &str) -> Result<ParallelConfig, String> {
    let argv = words(&format!("{TINY} --pipeline-model-parallel-size {ranks} --global-batch-size 24 {more}"));
    run(&argv, ranks).map(|r| r.config.parallel).map_err(|_| faults(&argv, ranks))
}

#[test]
fn every_way_to_divide_gives_the_layers_of_each_virtual_stage() {
    for (ranks, flags, layers, schedule) in [
        (2, "--num-layers 4", vec![2, 2], "1f1b"),
        (2, "--num-layers 8 --num-layers-per-virtual-pipeline-stage 2", vec![2, 2, 2, 2], "interleaved"),
        (2, "--num-layers 8 --num-virtual-stages-per-pipeline-rank 4", vec![1; 8], "interleaved"),
        (2, "--num-layers 4 --num-layers-per-virtual-pipeline-stage 2", vec![2, 2], "1f1b"),
        (4, "--num-layers 7 --decoder-first-pipeline-num-layers 1", vec![1, 2, 2, 2], "1f1b"),
        (
            3,
            "--num-layers 16 --decoder-first-pipeline-num-layers 4 --decoder-last-pipeline-num-layers 4 \
             --num-virtual-stages-per-pipeline-rank 2",
            vec![2, 4, 2, 2, 4, 2],
            "interleaved",
        ),
        (
            4,
            "--num-layers 6 --account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split",
            vec![1, 2, 2, 1],
            "1f1b",
        ),
        (
            2,
            "--num-layers 7 --account-for-loss-in-pipeline-split --num-layers-per-virtual-pipeline-stage 2",
            vec![2, 2, 2, 1],
            "interleaved",
        ),
        (2, "--num-layers 5 --pipeline-model-parallel-layout Et*2|(t|)*2tL", vec![2, 1, 1, 1], "interleaved"),
        (4, "--num-layers 4 --num-layer-list 1,1,2,0", vec![1, 1, 2, 0], "1f1b"),
        (4, "--num-layers 5 --deepspeed", vec![2, 1, 1, 1], "1f1b"),
        (4, "--num-layers 5 --pp-partition-method type:transformer", vec![2, 1, 1, 1], "1f1b"),
        // Embedding and the tied head, an embedding again, count as a layer each; an untied head does not.
        (4, "--num-layers 6 --pp-partition-method type:transformer|embedding", vec![1, 2, 2, 1], "1f1b"),
        (
            3,
            "--num-layers 5 --pp-partition-method type:Transformer|Embedding --untie-embeddings-and-output-weights",
            vec![1, 2, 2],
            "1f1b",
        ),
        // Embedding, five layers, norm, head: two a stage.
        (4, "--num-layers 5 --pp-partition-method uniform", vec![1, 2, 2, 0], "1f1b"),
        // 10,240 in the embedding, 49,984 in a layer (12 H^2 + 13 H), 8,320 in norm and head.
        (3, "--num-layers 8 --pp-partition-method parameters", vec![2, 3, 3], "1f1b"),
        // 128,000 rows weigh more than all layers.
        (3, "--num-layers 8 --pp-partition-method parameters --vocab-size 128000", vec![0, 8, 0], "1f1b"),
        (2, "--num-layers 4 --pipeline-schedule zb-h1", vec![2, 2], "zb-h1"),
        (2, "--num-layers 4 --enable-zbh1-pipeline", vec![2, 2], "zb-h1"),
        (2, "--num-layers 4 --num-virtual-stages-per-pipeline-rank 2 --pipeline-schedule gpipe", vec![1; 4], "gpipe"),
    ] {
        let p = pipeline(ranks, flags).unwrap_or_else(|e| panic!("{flags}: {e}"));
        assert_eq!((&p.stage_layers, p.schedule.to_string().as_str()), (&layers, schedule), "{flags}");
        assert_eq!(p.virtual_stages, layers.len() / ranks, "{flags}");
    }
}

#[test]
fn groups_of_micro_batches() {
    let virtual_stages = "--num-layers 4 --num-layers-per-virtual-pipeline-stage 1";
    let group = "--microbatch-group-size-per-virtual-pipeline-stage";
    assert_eq!(pipeline(2, virtual_stages).unwrap().microbatch_group, 2);
    assert_eq!(pipeline(2, &format!("{virtual_stages} {group} 4")).unwrap().microbatch_group, 4);
    let small = pipeline(2, &format!("{virtual_stages} {group} 1")).unwrap_err();
    assert!(small.contains("smaller than the pipeline") && small.contains(&format!("{group} 2 or more")), "{small}");
}

#[test]
fn contradictions_are_named() {
    for (ranks, flags, text) in [
        (2, "--num-layers 4 --pipeline-schedule interleaved", "interleaved needs virtual stages"),
        (
            2,
            "--num-layers 4 --num-layers-per-virtual-pipeline-stage 1 --enable-zbh1-pipeline",
            "zb-h1 runs one chunk a stage",
        ),
        (2, "--num-layers 4 --pipeline-schedule gpipe --enable-zbh1-pipeline", "contradicts --enable-zbh1-pipeline"),
        (2, "--num-layers 4 --pipeline-model-parallel-layout Et|tL", "2 counts with 2 layers in sum, for 4 layers"),
        (2, "--num-layers 4 --pipeline-model-parallel-layout Et|t|ttL", "3 counts"),
        (2, "--num-layers 4 --pipeline-model-parallel-layout Et|xL", "'x' at character 4"),
        (1, "--num-layers 4 --pipeline-model-parallel-layout Ett|ttL", "1 stage, at least 2 needed"),
        (
            2,
            "--num-layers 4 --pipeline-model-parallel-layout Ett|ttL --account-for-loss-in-pipeline-split",
            "not with --account-for",
        ),
        (2, "--num-layers 4 --pp-partition-method even", "'even' is no way to divide layers"),
        (2, "--num-layers 4 --pp-partition-method type:embedding", "counts no transformer layer"),
        (2, "--num-layers 4 --pp-partition-method type:trans.*", "regular expressions beyond words"),
        (
            2,
            "--num-layers 4 --pp-partition-method uniform --num-virtual-stages-per-pipeline-rank 2",
            "not with other flags that divide them",
        ),
        (2, "--num-layers 4 --num-layer-list 2,2 --num-layers-per-virtual-pipeline-stage 1", "not with virtual stages"),
        (
            2,
            "--num-layers 5 --decoder-first-pipeline-num-layers 3 --num-virtual-stages-per-pipeline-rank 2",
            "3 layers of a stage do not divide into 2 chunks",
        ),
    ] {
        match pipeline(ranks, flags) {
            Ok(p) => panic!("{flags} is accepted: {p:?}"),
            Err(found) => assert!(found.contains(text), "{flags}: {found}"),
        }
    }
}

/// Layers of multi-token prediction are legal upstream: not refused as a mistake.
#[test]
fn layouts_of_features_to_come_are_valid() {
    let argv = words(&format!(
        "{TINY} --pipeline-model-parallel-size 2 --num-layers 4 --mtp-num-layers 1 --position-embedding-type rope \
         --pipeline-model-parallel-layout Ett|ttmL"
    ));
    let refused = run(&argv, 2).err().map(|r| ferrotron_config::exit_code(&r.violations));
    assert_eq!(refused, Some(3), "{}", faults(&argv, 2));
}
