//! Command lines that users type, whole: they parse, and what they lack or what is not there yet is said in one go.

mod common;

use common::{faults, run, words};
use ferrotron_config::Severity;

const A40: &str = "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --num-layers 40 --hidden-size 5120 \
    --num-attention-heads 40 --seq-length 4096 --micro-batch-size 4 --global-batch-size 128 --use-distributed-optimizer";
const DEEPSPEED: &str = "--tensor-model-parallel-size 8 --pipeline-model-parallel-size 4 --zero-stage 1 --num-layers 80 \
    --hidden-size 12288 --num-attention-heads 96 --seq-length 4096 --micro-batch-size 1 --global-batch-size 1024 \
    --train-iters 500000 --lr 1.5e-4 --use-flash-attn-v2";
const DISTRIBUTED: &str = "--tensor-model-parallel-size 4 --pipeline-model-parallel-size 2 --num-layers 40 --hidden-size 5120 \
    --num-attention-heads 32 --seq-length 8192 --max-position-embeddings 8192 --micro-batch-size 2 --global-batch-size 256 \
    --train-iters 100000 --lr 3e-4 --min-lr 3e-5 --lr-decay-style cosine --lr-warmup-iters 2000 --weight-decay 0.1 \
    --clip-grad 1.0 --bf16 --use-flash-attn --use-mcore-models --transformer-impl transformer_engine \
    --num-layers-per-virtual-pipeline-stage 2 --overlap-p2p-communication --distributed-backend nccl --save /ckpt --load /ckpt \
    --data-path /data/text_document --split 98,2,0 --log-interval 10 --save-interval 1000 --eval-interval 1000 --eval-iters 10";
const ASCEND: &str = "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --num-layers 40 --hidden-size 5120 \
    --num-attention-heads 32 --seq-length 4096 --micro-batch-size 4 --global-batch-size 256 --bf16 --use-flash-attn \
    --flash-attn-backend npu";

#[test]
fn they_parse_and_only_what_they_omit_is_asked_for() {
    for (line, ranks, asked) in [
        (A40, 8, &["--data-path", "--tokenizer-type", "--train-iters", "--lr"][..]),
        (DEEPSPEED, 64, &["--data-path", "--tokenizer-type"]),
        (DISTRIBUTED, 32, &["--tokenizer-type"]),
        (ASCEND, 8, &["--data-path", "--tokenizer-type", "--train-iters", "--lr"]),
    ] {
        let refused = run(&words(line), ranks).unwrap_err();
        let bad: Vec<_> = refused
            .violations
            .iter()
            .filter(|v| !matches!(v.severity, Severity::Missing | Severity::Planned))
            .collect();
        assert!(bad.is_empty(), "{line}: {bad:?}");
        let missing: Vec<_> = refused.violations.iter().filter(|v| v.severity == Severity::Missing).collect();
        assert_eq!(missing.len(), 1, "{line}");
        assert_eq!(missing[0].flags, asked, "{line}");
    }
}

#[test]
fn completed_they_train() {
    let more = "--train-iters 10 --lr 1e-4 --mock-data --vocab-size 32000";
    for (line, ranks, dp) in [(A40, 8, 2), (DEEPSPEED, 64, 2), (ASCEND, 8, 2)] {
        match run(&words(&format!("{line} {more}")), ranks) {
            Ok(r) => {
                assert_eq!(r.config.parallel.dp, dp, "{line}");
                assert_eq!(r.config.model.max_position_embeddings, 4096, "{line}");
            }
            Err(refused) => panic!("{line}: {:?}", refused.violations),
        }
    }
    let line = words(&format!("{DISTRIBUTED} --vocab-size 32000 --tokenizer-type NullTokenizer"));
    let r = match run(&line, 32) {
        Ok(r) => r,
        Err(refused) => panic!("{line:?}: {:?}", refused.violations),
    };
    let p = &r.config.parallel;
    // 40 layers on 2 stages in chunks of 2: ten virtual stages on each.
    assert_eq!((p.dp, p.virtual_stages, p.schedule.to_string().as_str()), (4, 10, "interleaved"));
    assert_eq!(p.stage_layers, vec![2; 20]);
}

#[test]
fn on_one_rank_the_same_model_trains() {
    let line = DISTRIBUTED
        .replace("--tensor-model-parallel-size 4 --pipeline-model-parallel-size 2", "")
        .replace("--num-layers-per-virtual-pipeline-stage 2", "");
    let r = run(&words(&format!("{line} --tokenizer-type Qwen3Tokenizer --tokenizer-model /data/qwen3")), 1).unwrap();
    assert_eq!(r.config.train.global_batch_size, 256);
    assert_eq!((r.config.optim.lr.lr, r.config.optim.lr.min_lr), (3e-4, 3e-5));
}

#[test]
fn without_a_launcher_the_arithmetic_is_shown() {
    let text = faults(&words(A40), 1);
    assert!(text.contains("1 rank % (tensor 2 x pipeline 2 x context 1 = 4) = 1"), "{text}");
    assert!(text.contains("a multiple of 4 ranks (4 are the next)"), "{text}");
}
