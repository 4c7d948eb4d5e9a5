//! How far each flag is honoured. A flag that stands in no list here is planned: it parses, and training refuses a
//! value other than the default, with the reason of its group.

use std::collections::HashMap;

use super::spec::{Flag, Group, Source, Status};

/// Flags that do what upstream does. Some of their *values* may still be planned; validation says which.
#[rustfmt::skip]
const ACTS: &[&str] = &[
    // model shape
    "--num-layers", "--encoder-num-layers", "--hidden-size", "--ffn-hidden-size", "--num-attention-heads",
    "--group-query-attention", "--num-query-groups", "--num-key-value-heads", "--kv-channels",
    "--max-position-embeddings", "--seq-length", "--encoder-seq-length",
    // norms, activations, biases
    "--normalization", "--norm-epsilon", "--layernorm-epsilon", "--apply-layernorm-1p", "--qk-layernorm", "--embed-layernorm",
    "--disable-bias-linear", "--add-qkv-bias", "--swiglu", "--geglu", "--glu-activation", "--squared-relu", "--openai-gelu",
    "--gelu-tanh", "--no-bias-gelu-fusion",
    // positions
    "--position-embedding-type", "--use-rotary-position-embeddings", "--no-position-embedding", "--rotary-base",
    "--rotary-position-embeddings-theta", "--rope-theta", "--rotary-percent", "--rotary-interleaved", "--use-glm-rope",
    "--rotary-seq-len-interpolation-factor", "--use-rope-scaling", "--rope-scaling-factor",
    "--rope-scaling-type", "--rope-scaling-original-max-position-embeddings", "--rope-scaling-beta-fast",
    "--rope-scaling-beta-slow", "--rope-scaling-mscale", "--rope-scaling-mscale-all-dim", "--beta-fast", "--beta-slow",
    "--low-freq-factor", "--high-freq-factor", "--original-max-position-embeddings",
    "--yarn-original-max-position-embeddings", "--yarn-beta-fast", "--yarn-beta-slow",
    "--yarn-correction-range-round-to-int", "--no-yarn-correction-range-round-to-int", "--rotary-scaling-factor",
    "--mscale", "--mscale-all-dim", "--window-size",
    // mixture of experts
    "--num-experts", "--moe-ffn-hidden-size", "--moe-router-topk", "--moe-router-pre-softmax", "--norm-topk-prob",
    "--moe-router-score-function", "--moe-router-dtype", "--moe-router-load-balancing-type", "--moe-aux-loss-coeff",
    "--moe-z-loss-coeff", "--moe-token-dispatcher-type", "--expert-tensor-parallel-size",
    // dropout, initial weights, vocabulary
    "--hidden-dropout", "--attention-dropout", "--init-method-std", "--embedding-init-method-std", "--seed",
    "--untie-embeddings-and-output-weights", "--make-vocab-size-divisible-by", "--padded-vocab-size",
    "--no-pad-vocab-size", "--pad-vocab-size-to", "--vocab-size",
    // sums in a fixed order, where the device does not give them anyway
    "--deterministic-mode", "--npu-deterministic", "--use-deter-comp",
    // CUDA graphs
    "--enable-cuda-graph", "--external-cuda-graph", "--cuda-graph-impl", "--cuda-graph-warmup-steps",
    // recomputation
    "--recompute-activations", "--recompute-granularity", "--recompute-method", "--recompute-num-layers",
    "--recompute-modules", "--activations-checkpoint-method", "--activations-checkpoint-num-layers",
    "--checkpoint-num-layers", "--checkpoint-activations", "--enable-recompute-layers-per-pp-rank",
    // batch and length of the run
    "--micro-batch-size", "--global-batch-size", "--rampup-batch-size", "--step-batch-size-schedule",
    "--decrease-batch-size-if-needed", "--train-iters", "--train-samples", "--train-tokens", "--skip-train",
    "--exit-interval", "--exit-duration-in-mins", "--exit-signal-handler", "--exit-signal",
    "--no-check-for-nan-in-loss-and-grad", "--loss-spike-threshold", "--grad-norm-skip-threshold",
    // optimizer and schedules
    "--optimizer", "--lr", "--min-lr", "--adam-beta1", "--adam-beta2", "--adam-eps", "--sgd-momentum", "--weight-decay",
    "--clip-grad", "--start-weight-decay",
    "--end-weight-decay", "--weight-decay-incr-style", "--lr-decay-style", "--lr-decay-iters", "--lr-decay-samples",
    "--lr-warmup-fraction", "--lr-warmup-iters", "--lr-warmup-samples", "--lr-decay-tokens", "--lr-warmup-tokens", "--lr-warmup-init", "--lr-wsd-decay-style",
    "--lr-wsd-decay-iters", "--lr-wsd-decay-samples", "--override-opt_param-scheduler",
    "--use-checkpoint-opt_param-scheduler", "--override-lr-scheduler", "--use-checkpoint-lr-scheduler",
    // precision
    "--fp16", "--bf16", "--loss-scale", "--initial-loss-scale", "--min-loss-scale", "--loss-scale-window", "--hysteresis",
    // parallel layout
    "--tensor-model-parallel-size", "--pipeline-model-parallel-size", "--context-parallel-size", "--cp-comm-type",
    "--context-parallel-algo",
    "--expert-model-parallel-size", "--sequence-parallel", "--num-layers-per-virtual-pipeline-stage",
    "--num-virtual-stages-per-pipeline-rank", "--decoder-first-pipeline-num-layers",
    "--decoder-last-pipeline-num-layers", "--pipeline-model-parallel-layout", "--num-layer-list",
    "--pp-partition-method",
    "--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split",
    "--microbatch-group-size-per-virtual-pipeline-stage", "--pipeline-schedule", "--enable-zbh1-pipeline",
    "--use-distributed-optimizer", "--num-distributed-optimizer-instances",
    "--zero-stage", "--ds-sequence-parallel-size",
    // data and tokenizer
    "--data-path", "--split", "--train-data-path", "--valid-data-path", "--test-data-path", "--data-args-path",
    "--per-split-data-args-path", "--data-cache-path", "--mock-data", "--dataloader-type", "--reset-position-ids",
    "--reset-attention-mask", "--eod-mask-loss", "--tokenizer-type", "--tokenizer-model", "--tokenizer-name-or-path",
    "--vocab-file", "--merge-file", "--null-tokenizer-eod-id", "--null-tokenizer-pad-id",
    "--tokenizer-special-tokens", "--eod-token", "--tokenizer-hf-no-include-special-tokens",
    "--tiktoken-pattern", "--tiktoken-num-special-tokens",
    // evaluation
    "--eval-iters", "--eval-interval", "--start-eval-at-iter", "--eval-global-batch-size", "--eval-micro-batch-size",
    // checkpoints
    "--save", "--save-interval", "--save-retain-interval", "--load", "--pretrained-checkpoint", "--finetune",
    "--ckpt-step", "--no-save-optim", "--no-load-optim", "--use-checkpoint-args",
    "--no-use-tokenizer-model-from-checkpoint-args", "--exit-on-missing-checkpoint", "--override-ckpt-iteration",
    "--ckpt-format",
    // logs
    "--log-interval", "--log-params-norm", "--log-throughput", "--log-progress", "--log-num-zeros-in-grad",
    "--timing-log-level", "--timing-log-option", "--tensorboard-dir", "--tensorboard-log-interval",
    "--log-timers-to-tensorboard", "--no-log-loss-scale-to-tensorboard",
    "--log-validation-ppl-to-tensorboard", "--log-memory-to-tensorboard", "--log-memory-interval",
    "--log-world-size-to-tensorboard",
    "--wandb-project", "--wandb-exp-name", "--wandb-save-dir", "--wandb-entity", "--profile", "--profile-step-start",
    "--profile-step-end", "--profile-ranks", "--profile-save-path", "--nvtx-ranges", "--report", "--prometheus-port", "--console",
    "--peak-tflops", "--mlflow-dir", "--mlflow-experiment",
    "--iterations-to-skip", "--full-validation", "--apply-wd-to-qk-layernorm",
    // ranks
    "--overlap-grad-reduce", "--overlap-param-gather", "--grad-reduce-in-bf16", "--ddp-bucket-size",
    "--calculate-per-token-loss", "--distributed-timeout-minutes", "--distributed-timeout-seconds-after-init",
    "--timeout-seconds", "--thread-ranks", "--interface",
    "--check-collectives",
    // this program
    "--device", "--dry-run", "--print-config", "--strict", "--config", "--yaml-cfg",
    // DeepSpeed's file
    "--deepspeed", "--deepscale", "--deepspeed_config", "--deepscale_config", "--deepspeed-config",
];

/// Flags that are accepted and change nothing, by reason.
#[rustfmt::skip]
const NO_EFFECT: &[(&str, &[&str])] = &[
    (
        "chooses a kernel of other back ends; here every device has one set of kernels",
        &[
            "--use-flash-attn", "--use-flash-attn-v2", "--use-flash-attn-triton", "--use-flash-attn-builder",
            "--flash-attn-backend", "--attention-backend", "--flash-attention-version", "--use-fused-rmsnorm",
            "--use-fused-swiglu", "--use-fused-rotary-pos-emb", "--use-fusion-attn-v2", "--use-fused-ring-attention-update",
            "--cross-entropy-loss-fusion", "--cross-entropy-fusion-impl", "--no-masked-softmax-fusion",
            "--no-scaled-masked-softmax-fusion", "--scaled-upper-triang-masked-softmax-fusion", "--no-bias-swiglu-fusion",
            "--no-bias-dropout-fusion", "--no-rope-fusion", "--no-persist-layer-norm", "--no-gradient-accumulation-fusion",
            "--gemm-gradient-accumulation-fusion", "--transformer-impl", "--disable-jit-fuser", "--fused-residual-rmsnorm",
            "--use-transformer-engine-op-fuser", "--use-te-activation-func", "--disable-mem-efficient-ln",
            "--abort-on-unmet-fused-kernel-constraints", "--jit-compile", "--shape-order", "--use-fused-lightning-indexer",
            "--te-rng-tracker", "--inference-rng-tracker", "--symmetric-ar-type",
            "--disable-bf16-reduced-precision-matmul", "--batch-invariant-mode", "--batch-invariant-backend",
            "--output-layer-slice-num", "--coc-fused-kernel", "--use-ascend-mc2", "--use-mc2", "--use-ascend-coc",
        ],
    ),
    (
        "a CUDA graph here is the forward and backward of a whole step",
        &["--cuda-graph-scope", "--cuda-graph-modules"],
    ),
    (
        "selects between upstream's code paths; there is one here",
        &[
            "--use-mcore-models", "--use-legacy-models", "--enable-experimental", "--ai-framework", "--legacy-tokenizer",
            "--lazy-mpu-init", "--use-cpu-initialization", "--no-initialization", "--init-model-with-meta-device",
            "--model-type-hf", "--moe-model-type", "--no-pipeline-parallel", "--local-rank",
            "--local_rank", "--config-logger-dir", "--adlr-autoresume", "--adlr-autoresume-interval",
            "--data-impl", "--DDP-impl", "--dataset-impl", "--hccl-op-mode",
            "--use-tp-pp-dp-mapping", "--sft-tokenizer-prompt-format", "--test-mode",
        ],
    ),
    (
        "softmax, norms and loss are computed in f32, main gradients are f32",
        &[
            "--attention-softmax-in-fp32", "--accumulate-allreduce-grads-in-fp32", "--fp32-allreduce",
            "--apply-query-key-layer-scaling", "--no-query-key-layer-scaling", "--fp16-lm-cross-entropy",
            "--ddp-reduce-scatter-with-fp32-accumulation",
            "--init-norm-weight-in-fp32",
        ],
    ),
    (
        "tunes communication of other back ends",
        &[
            "--overlap-p2p-communication", "--no-overlap-p2p-communication", "--overlap-p2p-communication-warmup-flush",
            "--overlap-param-gather-with-optimizer-step",
            "--no-align-grad-reduce", "--no-align-param-gather", "--delay-param-gather", "--no-delay-grad-reduce",
            "--tp-comm-overlap", "--no-tp-comm-bulk-wgrad", "--no-tp-comm-bulk-dgrad", "--no-tp-comm-overlap-ag",
            "--no-tp-comm-overlap-rs", "--tp-comm-overlap-rs-dgrad", "--no-tp-comm-split-ag", "--no-tp-comm-split-rs",
            "--tp-comm-bootstrap-backend", "--tp-comm-overlap-cfg", "--distributed-backend", 
            "--ddp-num-buckets", 
            "--ddp-pad-buckets-for-high-nccl-busbw", "--ddp-average-in-collective", "--use-nccl-ub", "--use-sharp",
            "--sharp-enabled-group", "--nccl-communicator-config-path", "--high-priority-stream-groups",
            "--disable-symmetric-registration", "--disable-gloo-process-groups", "--disable-gloo-group",
            "--use-ring-exchange-p2p",
            "--no-async-tensor-model-parallel-allreduce", "--disable-async-tensor-model-parallel-allreduce",
            "--no-contiguous-buffers-in-local-ddp", "--use-contiguous-buffers-in-ddp",
            "--no-scatter-gather-tensors-in-pipeline", "--pipeline-model-parallel-comm-backend",
            "--no-gradient-reduce-div-fusion", "--suggested-communication-unit-size",
            "--zero-reduce-scatter", "--zero-contigious-gradients", "--zero-reduce-bucket-size",
            "--zero-allgather-bucket-size", "--sync-tp-duplicated-parameters", "--data-parallel-random-init",
            "--flight-recorder-dump-path", "--flight-recorder-trace-buffer-size", "--no-flight-recorder-dump-on-timeout",
            "--flight-recorder-include-stack-trace", "--no-flight-recorder-include-only-active",
            "--no-flight-recorder-extra-dump-on-exec", "--no-use-layer-wise-param-layout", "--force-ds-sequence-parallel",
            "--no-barrier-with-level-1-timing",
        ],
    ),
    (
        "context-parallel ranks gather keys and values here: there is no ring or all-to-all to tune",
        &[
            "--hierarchical-context-parallel-sizes", "--use-cp-send-recv-overlap", "--kv-head-repeat-before-uly-alltoall",
            "--ulysses-degree-in-cp", "--cp-window-size", "--megatron-cp-in-bnsd", "--use-ulysses-allgather-kv",
        ],
    ),
    (
        "tunes Python, its data loaders or its allocator, which are not there",
        &[
            "--manual-gc", "--manual-gc-interval", "--no-manual-gc-eval", "--num-workers", "--valid-num-workers",
            "--num-dataset-builder-threads", "--empty-unused-memory-level", "--trust-remote-code", "--no-mmap-bin-files",
            "--mmap-warmup", "--no-create-attention-mask-in-dataloader", "--exit-signal-handler-for-dataloader",
            "--exit-signal-handler-for-training", "--no-shared-storage", "--dataloader-fast-cache-load",
            "--dataloader-defer-npy-index-mmap", "--tokenizer-hf-no-use-fast", "--tokenizer-not-use-fast",
            "--tokenizer-hf-use-fast", "--use-gigatoken", "--tokenizer-padding-side", "--use-pin-memory",
            "--no-pin-cpu-grads", "--no-pin-cpu-params", "--logging-level", "--no-data-sharding",
        ],
    ),
    (
        "random numbers are counted by step and sample here: there is no state to save or load",
        &["--no-save-rng", "--no-load-rng"],
    ),
    (
        "every point is written at once, and these curves always",
        &["--tensorboard-queue-size", "--log-batch-size-to-tensorboard"],
    ),
    (
        "there is one profiler here, which records named scopes",
        &[
            "--use-pytorch-profiler", "--pytorch-profiler-collect-shapes", "--pytorch-profiler-collect-callstack", "--record-shapes",
            "--profile-level", "--profile-with-cpu", "--profile-with-stack", "--profile-with-memory", "--profile-record-shapes",
            "--profile-export-type", "--profile-data-simplification",
        ],
    ),
    (
        "changes how upstream writes checkpoints; here saves are synchronous, crash-safe and in the native format",
        &[
            "--async-save", "--async-strategy", "--use-persistent-ckpt-worker", "--async-ckpt-cpu-priority",
            "--async-ckpt-io-priority", "--async-ckpt-use-cpu-shm", "--use-dist-ckpt", "--dist-ckpt-format",
            "--dist-ckpt-workers", "--ckpt-fully-parallel-save", "--no-ckpt-fully-parallel-save",
            "--disable-ckpt-fully-parallel-save", "--ckpt-fully-parallel-load", "--ckpt-fully-parallel-load-exchange-algo",
            "--ckpt-fully-parallel-load-per-rank-objects", "--ckpt-fully-parallel-save-process-group",
            "--ckpt-fully-parallel-load-process-group", "--ckpt-assume-constant-structure", "--ckpt-pg-tensors-cache-path",
            "--ckpt-pg-tensors-cache-create", "--no-ckpt-load-validate-sharding-integrity", "--dist-ckpt-strictness",
            "--dist-ckpt-save-pre-mcore-014", "--dist-ckpt-optim-fully-reshardable",
            "--distrib-optim-fully-reshardable-mem-efficient", "--auto-detect-ckpt-format", "--no-save-tokenizer-assets",
            "--ckpt-drop-redundant-extra-state", "--ckpt-convert-update-legacy-dist-opt-format", "--verify-integrity",
            "--use-mp-args-from-checkpoint-args", "--no-strict-fsdp-dtensor-load",
        ],
    ),
    (
        "watches hardware or reports to a service that is not there",
        &[
            "--no-one-logger", "--enable-one-logger", "--one-logger-project", "--one-logger-run-name", "--one-logger-async",
            "--one-logger-entity", "--app-tag-run-name", "--app-tag-run-version", "--log-straggler",
            "--straggler-ctrlr-port", "--straggler-minmax-count", "--disable-straggler-on-startup",
            "--run-workload-inspector-server", "--gpu-sniff-test-interval", "--log-device-memory-used", "--log-energy",
            "--rerun-mode", "--error-injection-rate", "--error-injection-type", "--otel-enabled", "--otel-service-name",
            "--otel-span-groups", "--log-optimizer-states-to-tensorboard", "--codecarbon-dir", "--train-sync-interval",
            "--check-weight-hash-across-dp-replicas-interval",
        ],
    ),
    (
        "concerns mixture-of-experts layers, and acts only with --num-experts",
        &[
            "--moe-layer-freq", "--moe-loss-coeff", "--moe-train-capacity-factor", "--moe-eval-capacity-factor",
            "--moe-min-capacity",
        ],
    ),
    (
        "chooses a kernel or the timing of mixture-of-experts layers; here there is one of each",
        &[
            "--moe-grouped-gemm", "--moe-permute-fusion", "--moe-permutation-async-comm", "--moe-alltoall-overlap-comm",
            "--moe-allgather-overlap-comm", "--moe-fb-overlap", "--use-fused-moe-token-permute-and-unpermute",
        ],
    ),
    (
        "saves device memory and changes no number; that memory stays in use here, and --dry-run reports it",
        &[
            "--reuse-fp32-param", "--swap-attention", "--swap-modules", "--swap-optimizer", "--recompute-in-advance",
            "--recompute-in-bubble", "--recompute-norm", "--recompute-norm-num-layers", "--moe-zero-memory",
            "--moe-zero-memory-num-layers",
        ],
    ),
    (
        "the activation of the MLP is never kept here, and computed again in every layer",
        &["--recompute-activation-function", "--recompute-activation-function-num-layers"],
    ),
    (
        "a Hugging Face folder is loaded as it is, by --load or --pretrained-checkpoint",
        &["--enable-hf2mg-convert"],
    ),
    ("names how raw text becomes data, which preprocess_data does; training reads .bin and .idx", &["--handler-name"]),
    ("levels of the logger of transformers, which is not there", &["--log-level", "--log-level-replica"]),
    ("the zero-bubble schedule has these semantics always", &["--enable-zbh1-exact-semantics"]),
    (
        "times the head's weight gradient, which changes no number",
        &["--defer-embedding-wgrad-compute", "--wgrad-deferral-limit"],
    ),
    (
        "chooses who recomputes; --checkpoint-activations or --recompute-granularity says whether and what",
        &["--deepspeed-activation-checkpointing"],
    ),
    (
        "chooses how a kernel is told the mask, which is causal; --reset-attention-mask keeps documents apart",
        &["--attention-mask-type", "--cp-attention-mask-type"],
    ),
];

/// Flags that upstream removed with an error, and what to write instead.
const REMOVED: &[(&str, &str)] = &[
    ("--batch-size", "--micro-batch-size"),
    ("--warmup", "--lr-warmup-fraction, or --lr-warmup-iters"),
    ("--model-parallel-size", "--tensor-model-parallel-size"),
];

/// The stated statuses by spelling.
pub(super) fn stated() -> HashMap<&'static str, Status> {
    let idle = NO_EFFECT.iter().flat_map(|(reason, names)| names.iter().map(|n| (*n, Status::NoEffect(reason))));
    let removed = REMOVED.iter().map(|(name, instead)| (*name, Status::Removed(instead)));
    ACTS.iter().map(|name| (*name, Status::Acts)).chain(idle).chain(removed).collect()
}

/// The status of a flag that is not in the lists.
pub(super) fn planned(flag: &Flag, group: &Group) -> Status {
    Status::Planned(planned_reason(flag.name, group))
}

fn planned_reason(name: &str, group: &Group) -> &'static str {
    let about = |words: &[&str]| words.iter().any(|w| name.contains(w));
    if about(&["moe-", "expert", "router"]) {
        "this part of mixture-of-experts layers is not there yet"
    } else if about(&[
        "mla",
        "lora-rank",
        "latent",
        "qk-head-dim",
        "qk-pos-emb",
        "v-head-dim",
        "rope-head-dim",
        "nope-head",
    ]) {
        "multi-head latent attention is not there yet"
    } else if about(&["mtp"]) {
        "multi-token prediction is not there yet"
    } else if about(&["fp8", "fp4"]) {
        "8- and 4-bit training is not there yet"
    } else if about(&["fsdp", "sharding-strategy"]) {
        "fully sharded data parallelism is not there yet"
    } else if about(&["offload", "swap", "nvme"]) {
        "offloading is not there yet"
    } else if about(&["muon", "lion", "precision-aware"]) {
        "this optimizer is not there yet; adam and sgd are"
    } else if about(&["mamba", "hybrid", "linear-", "gdp-", "dsa-", "index", "mhc"]) {
        "attention variants other than softmax attention are not there yet"
    } else if about(&["profile", "memory-snapshot", "memory-history"]) {
        "the profiler is not there yet"
    } else if about(&["sft", "instruction", "prompt-type", "lora"]) {
        "fine-tuning data and adapters are not there yet"
    } else if about(&["spec"]) {
        "Python model code is not supported"
    } else {
        match group.name {
            "rl" => "reinforcement learning is not there yet",
            "inference" => "inference options are not there yet",
            "vision" | "biencoder" => "this trains GPT models only",
            "modelopt" => "quantisation and distillation are not there yet",
            _ if group.source == Source::Legacy => "removed from Megatron, and not supported yet",
            _ => "not supported yet",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags::Table;

    #[test]
    fn every_overlay_row_names_a_flag_and_none_stands_twice() {
        let table = Table::pretrain();
        let mut seen = std::collections::BTreeSet::new();
        let no_effect = NO_EFFECT.iter().flat_map(|(_, names)| names.iter());
        for name in ACTS.iter().chain(no_effect).chain(REMOVED.iter().map(|(name, _)| name)) {
            assert!(table.find(name).is_some(), "{name} is in no table");
            assert!(seen.insert(name), "{name} stands twice");
        }
    }
}
