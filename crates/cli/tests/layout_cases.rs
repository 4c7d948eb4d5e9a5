//! Reports of users about parallel layouts, by id: what went wrong elsewhere, and what is said or done here.
#![allow(clippy::unwrap_used)] // a test that cannot go on stops

mod common;

use common::{Temp, fail, losses, succeed, tiny};

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

/// Where each loss was printed, and the loss.
fn points(log: &str) -> Vec<(String, f64)> {
    let point = |l: &String| {
        let loss = l.split('|').find(|f| f.contains("lm loss")).unwrap_or_default();
        let loss = loss.rsplit(' ').find(|w| !w.is_empty()).unwrap_or_default().parse().unwrap();
        (l.split('|').next().unwrap_or_default().trim().to_string(), loss)
    };
    losses(log).iter().map(point).collect()
}

/// The losses that `ranks` thread ranks print, from the first that `want` has, are within 1e-5 of them: f32 sums in another
/// order, and seven printed digits.
fn agrees(want: &[(String, f64)], ranks: usize, flags: &str) {
    let got = points(&succeed(tiny(&format!("--thread-ranks {ranks} {flags}")).env("OMP_NUM_THREADS", "1")));
    assert!(!got.is_empty() && got.len() <= want.len(), "{flags}: {got:?}");
    for ((place, a), (same, b)) in got.iter().zip(&want[want.len() - got.len()..]) {
        assert!(place == same && (a - b).abs() <= 1e-5 * b, "{flags}: {place} {a}, not {same} {b}");
    }
}

/// The same vocabulary under any tensor-parallel size.
const PADDED: &str = "--make-vocab-size-divisible-by 16";

/// Two KV groups over four tensor-parallel ranks train what one rank trains; the checkpoint holds each group once, so one
/// rank goes on from it.
#[test]
fn lay_05_fewer_kv_groups_than_ranks() {
    let t = Temp::new("lay-05");
    let model = format!("{PADDED} --num-attention-heads 8 --group-query-attention --num-query-groups 2");
    let one = points(&succeed(&mut tiny(&model)));
    let split = format!("{model} --tensor-model-parallel-size 4");
    agrees(&one, 4, &split);
    let dir = t.path("ckpt").display().to_string();
    succeed(tiny(&format!("--thread-ranks 4 {split} --save {dir} --exit-interval 6")).env("OMP_NUM_THREADS", "1"));
    agrees(&one, 1, &format!("{model} --load {dir}"));
}

/// One, two and four KV groups under tensor and pipeline parallelism, alone and together.
#[test]
fn lay_06_kv_groups_under_any_layout() {
    for groups in [1, 2, 4] {
        let heads = "--num-attention-heads 4 --group-query-attention --train-iters 4";
        let model = format!("{PADDED} {heads} --num-query-groups {groups}");
        let one = points(&succeed(&mut tiny(&model)));
        for (ranks, layout) in [
            (2, "--pipeline-model-parallel-size 2"),
            (2, "--tensor-model-parallel-size 2"),
            (4, "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2"),
        ] {
            agrees(&one, ranks, &format!("{model} {layout}"));
        }
    }
}
