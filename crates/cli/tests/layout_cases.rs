//! Reports of users about parallel layouts, by id: what went wrong elsewhere, and what is said or done here.
#![allow(clippy::unwrap_used)] // a test that cannot go on stops

mod common;

use common::{fail, losses, succeed, tiny};

/// What is printed when nothing may start: exit code 2 and no word of a rank.
fn refused(ranks: usize, flags: &str) -> String {
    let mut c = tiny(&format!("--thread-ranks {ranks} {flags}"));
    let out = c.output().unwrap();
    assert_eq!(out.status.code(), Some(2), "{flags}");
    assert!(out.stdout.is_empty(), "no rank starts: {}", common::text(&out.stdout));
    fail(&mut c).1
}

/// 6 layers over 4 stages are not 4 layers: refused, with the legal numbers of stages; an uneven division trains them all.
#[test]
fn lay_01_no_layer_vanishes() {
    let text = refused(4, "--num-layers 6 --pipeline-model-parallel-size 4");
    assert!(text.contains("6 layers") && text.contains("1, 2, 3, 6"), "{text}");
    assert!(text.contains("--pipeline-model-parallel-layout") || text.contains("--decoder-first"), "{text}");
    let uneven = "--num-layers 6 --pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 1";
    let last = "--decoder-last-pipeline-num-layers 1";
    let one = losses(&succeed(&mut tiny("--num-layers 6 --clip-grad 0")));
    let many = losses(&succeed(&mut tiny(&format!("--thread-ranks 4 --clip-grad 0 {uneven} {last}"))));
    assert_eq!(many, one, "all six are trained");
    let wrong = refused(4, &format!("{uneven} --decoder-last-pipeline-num-layers 4"));
    assert!(wrong.contains("--decoder-last-pipeline-num-layers"), "{wrong}");
}

/// 10 layers over 4 stages in chunks of one: the arithmetic is shown.
#[test]
fn lay_02_chunks_that_do_not_divide_are_refused() {
    let text = refused(4, "--num-layers 10 --pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 1");
    for part in ["10", "4", "= 2"] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let large = "--num-layers 80 --pipeline-model-parallel-size 16 --num-layers-per-virtual-pipeline-stage 2";
    let text = refused(16, large);
    assert!(text.contains("80"), "{text}");
}
