//! Upstream's cross-flag rules, what becomes of each here, and a command line that shows it.
//!
//! The rules are those of Megatron-LM main (`validate_args`, `TransformerConfig`, `num_microbatches_calculator`), of
//! Megatron-DeepSpeed and of MindSpeed. The table is the index of the files beside it: every row is run by a test, and
//! `docs/flags-rules.md` is printed from it.

/// What becomes of a rule of upstream's here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tag {
    /// Holds here as there.
    Applies,
    /// Protects another vendor's software: at most a warning here.
    VendorOnly,
    /// This program deliberately does otherwise.
    Overridden,
}

/// What the command line of a row meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Refused (or asked for, when missing), with this in the message.
    Refused(&'static str),
    /// Accepted or planned, with this among the notices.
    Noticed(&'static str),
    /// Accepted or planned; the value of a dest becomes this.
    Becomes(&'static str, &'static str),
}

/// One rule.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Heading.
    pub topic: &'static str,
    /// The rule, in a line.
    pub text: &'static str,
    /// What becomes of it.
    pub tag: Tag,
    /// Flags to add to a small command line that trains. A word `-x-y` takes `--x-y` and its values out first.
    pub example: &'static str,
    /// Ranks.
    pub ranks: usize,
    /// Environment variables of the example.
    pub env: &'static [(&'static str, &'static str)],
    /// What happens.
    pub outcome: Outcome,
}

use Outcome::{Becomes, Noticed, Refused};
use Tag::{Applies, Overridden, VendorOnly};

const fn rule(
    topic: &'static str,
    text: &'static str,
    tag: Tag,
    example: &'static str,
    ranks: usize,
    outcome: Outcome,
) -> Rule {
    Rule { topic, text, tag, example, ranks, env: &[], outcome }
}

const fn with(rule: Rule, env: &'static [(&'static str, &'static str)]) -> Rule {
    Rule { env, ..rule }
}

/// All rules, by topic.
#[rustfmt::skip]
pub const RULES: &[Rule] = &[
    // parsing
    rule("parsing", "abbreviated flags are refused", Applies, "--tensor-model-parallel 1", 1, Refused("abbreviations are not accepted")),
    rule("parsing", "unknown flags are refused", Applies, "--hiden-size 64", 1, Refused("did you mean --hidden-size?")),
    rule("parsing", "a repeated flag: the last one wins", Applies, "--seed 1 --seed 2", 1, Becomes("seed", "2")),
    rule("parsing", "integers may have underscores", Applies, "--seed 1_000", 1, Becomes("seed", "1000")),
    rule("parsing", "an integer flag takes no exponent", Applies, "--seed 1e6", 1, Refused("'1e6' is not an int")),
    rule("parsing", "--rotary-base is an integer in Megatron, a float in MindSpeed: both are read", Overridden, "--position-embedding-type rope --rotary-base 1e6", 1, Becomes("rotary_base", "1000000.0")),
    rule("parsing", "list expressions have digits , [ ] ( ) + * only", Applies, "--moe-layer-freq __import__", 1, Refused("--moe-layer-freq: '__import__'")),
    rule("parsing", "--rampup-batch-size takes exactly three values", Applies, "--rampup-batch-size 2 2", 1, Refused("expected 3 values, got 2")),
    rule("parsing", "--use-checkpoint-args needs a checkpoint", Applies, "--use-checkpoint-args", 1, Refused("needs --load or --pretrained-checkpoint")),
    rule("parsing", "--use-checkpoint-args does not read local checkpoints", Applies, "--use-checkpoint-args --load l --non-persistent-ckpt-type local --non-persistent-local-ckpt-dir d", 1, Refused("cannot read non-persistent local checkpoints")),
    // removed
    rule("removed flags", "--batch-size is refused with its successor", Applies, "--batch-size 4", 1, Refused("--micro-batch-size")),
    rule("removed flags", "--warmup is refused with its successor", Applies, "--warmup 4", 1, Refused("--lr-warmup-fraction")),
    rule("removed flags", "--model-parallel-size is refused with its successor", Applies, "--model-parallel-size 2", 1, Refused("--tensor-model-parallel-size")),
    rule("removed flags", "--checkpoint-activations is refused by main, and runs in Megatron-DeepSpeed: it runs here", Overridden, "--checkpoint-activations", 1, Noticed("--recompute-granularity full --recompute-method uniform --recompute-num-layers 1")),
    rule("removed flags", "--recompute-activations means selective recomputation", Applies, "--recompute-activations", 1, Becomes("recompute_granularity", "selective")),
    rule("removed flags", "--use-rotary-position-embeddings means rope", Applies, "--use-rotary-position-embeddings", 1, Becomes("position_embedding_type", "rope")),
    rule("removed flags", "--no-position-embedding goes with rope only", Applies, "--no-position-embedding", 1, Refused("goes with rope")),
    rule("removed flags", "--use-mcore-models and its like change nothing", Applies, "--use-mcore-models --use-dist-ckpt --ckpt-fully-parallel-save", 1, Noticed("no effect: ")),
    rule("removed flags", "main parses --rampup-batch-size and ignores it; the ramp runs here", Overridden, "-train-iters --train-samples 100 --global-batch-size 8 --rampup-batch-size 2 2 60", 1, Becomes("rampup_batch_size", "[2, 2, 60]")),
    rule("removed flags", "the ramp reaches the global batch in whole increments", Applies, "--rampup-batch-size 1 2 60", 1, Refused("(4 - 1) / 2 is no whole number")),
    rule("removed flags", "a ramp with --train-iters was refused; it runs here, with a warning", Overridden, "--rampup-batch-size 2 2 60", 1, Noticed("the run sees fewer samples")),
    rule("removed flags", "every size of the ramp divides into micro-batches", Applies, "--global-batch-size 8 --rampup-batch-size 3 5 60", 2, Refused("global batch 3 % (micro batch 1 x data parallel 2 = 2) = 1")),
    rule("removed flags", "--enable-cuda-graph means --cuda-graph-impl local", Applies, "--enable-cuda-graph", 1, Becomes("cuda_graph_impl", "local")),
    rule("removed flags", "--external-cuda-graph means transformer_engine", Applies, "--external-cuda-graph", 1, Becomes("cuda_graph_impl", "transformer_engine")),
    rule("removed flags", "CUDA graphs are asked for in one way", Applies, "--enable-cuda-graph --external-cuda-graph", 1, Refused("in two ways")),
    rule("removed flags", "--cuda-graph-scope excludes --cuda-graph-modules", Applies, "--cuda-graph-scope full --cuda-graph-modules attn", 1, Refused("give one")),
    rule("removed flags", "--use-glm-rope rotates neighbours, as --rotary-interleaved", Applies, "--position-embedding-type rope --rotary-percent 0.5 --use-glm-rope", 1, Becomes("rotary_interleaved", "True")),
    rule("removed flags", "--enable-recompute-layers-per-pp-rank counts the layers of --recompute-method block", Overridden, "--enable-recompute-layers-per-pp-rank", 1, Noticed("no effect: --enable-recompute-layers-per-pp-rank")),
    rule("removed flags", "--spec of MindSpeed-LLM's Qwen 3: its layers are those of the flags", Overridden, "--qk-layernorm --spec mindspeed_llm.tasks.models.spec.qwen3_spec layer_spec", 1, Noticed("no effect: --spec (the layers are those that the other flags state)")),
    rule("removed flags", "--glu-activation is BigScience's --swiglu and --geglu", Applies, "--glu-activation swiglu", 1, Becomes("swiglu", "True")),
    rule("removed flags", "one activation only, also in BigScience's spelling", Applies, "--squared-relu --glu-activation swiglu", 1, Refused("one activation only")),
    rule("removed flags", "CUDA graphs are of CUDA devices", Applies, "--device cpu --cuda-graph-impl local", 1, Noticed("no effect: --cuda-graph-impl (CUDA graphs are of CUDA devices)")),
    rule("removed flags", "graphs of parts of a layer, which upstream makes with experts, are not there", Overridden, "--device cuda --cuda-graph-impl transformer_engine --disable-bias-linear --num-experts 2", 1, Noticed("no effect: --cuda-graph-impl (with experts")),
    rule("removed flags", "steps before the first graph", Applies, "--device cuda --cuda-graph-impl local --cuda-graph-warmup-steps 0", 1, Noticed("the first step of a run is never a graph")),
    rule("removed flags", "--no-weight-decay-cond-type has one value", Applies, "--no-weight-decay-cond-type apply_wd_to_qk_layernorm", 1, Becomes("apply_wd_to_qk_layernorm", "True")),
    rule("removed flags", "--no-weight-decay-cond-type has no other value", Applies, "--no-weight-decay-cond-type length", 1, Refused("is no choice of it")),
    // parallel sizes
    rule("parallel sizes", "ranks divide into tensor x pipeline x context groups", Applies, "--tensor-model-parallel-size 2", 3, Refused("3 ranks % (tensor 2 x pipeline 1 x context 1 = 2) = 1")),
    with(rule("parallel sizes", "CUDA_DEVICE_MAX_CONNECTIONS is 1 with tensor or context parallelism", VendorOnly, "--device cuda --tensor-model-parallel-size 2", 2, Noticed("CUDA_DEVICE_MAX_CONNECTIONS is 8")), &[("CUDA_DEVICE_MAX_CONNECTIONS", "8")]),
    with(rule("parallel sizes", "CUDA_DEVICE_MAX_CONNECTIONS is not 1 with FSDP", VendorOnly, "--use-torch-fsdp2", 1, Noticed("CUDA_DEVICE_MAX_CONNECTIONS=1 with FSDP")), &[("CUDA_DEVICE_MAX_CONNECTIONS", "1")]),
    rule("parallel sizes", "heads divide over tensor-parallel ranks", Applies, "--tensor-model-parallel-size 8", 8, Refused("4 heads % tensor 8 = 4")),
    rule("parallel sizes", "query groups are a multiple or a divisor of the tensor-parallel ranks", Applies, "--num-attention-heads 12 --hidden-size 96 --group-query-attention --num-query-groups 6 --tensor-model-parallel-size 4", 4, Refused("6 groups, 4 ranks")),
    rule("parallel sizes", "with more tensor-parallel ranks than query groups, ranks share a group", Applies, "--group-query-attention --num-query-groups 2 --tensor-model-parallel-size 4", 4, Becomes("num_query_groups", "2")),
    rule("parallel sizes", "--sequence-parallel is off at tensor parallel size 1", Applies, "--sequence-parallel", 1, Becomes("sequence_parallel", "False")),
    rule("parallel sizes", "--tp-comm-overlap needs --sequence-parallel", Applies, "--tp-comm-overlap", 1, Refused("needs --sequence-parallel")),
    rule("parallel sizes", "experts over tensor-parallel ranks want --sequence-parallel", Applies, "--disable-bias-linear --num-experts 2 --expert-model-parallel-size 2 --tensor-model-parallel-size 2", 4, Noticed("without --sequence-parallel")),
    rule("parallel sizes", "levels of context parallelism multiply to its size", Applies, "--context-parallel-size 4 --hierarchical-context-parallel-sizes 2 3", 4, Refused("product of 2, 3 = 6, not 4")),
    rule("parallel sizes", "--cp-comm-type a2a+p2p needs the levels", Applies, "--context-parallel-size 4 --cp-comm-type a2a+p2p", 4, Refused("needs --hierarchical-context-parallel-sizes")),
    rule("parallel sizes", "--cp-comm-type p2p, a2a: the ranks gather keys and values", Overridden, "--context-parallel-size 2", 2, Noticed("--cp-comm-type p2p: the 2 context-parallel ranks gather keys and values here")),
    rule("parallel sizes", "MindSpeed's --context-parallel-algo likewise", Overridden, "--context-parallel-size 2 --context-parallel-algo ulysses_cp_algo", 2, Noticed("--context-parallel-algo ulysses_cp_algo: the 2 context-parallel ranks gather")),
    rule("parallel sizes", "sequence parallelism divides a rank's tokens over the tensor-parallel ranks", Applies, "--num-attention-heads 6 --hidden-size 48 --tensor-model-parallel-size 3 --sequence-parallel", 3, Refused("32 % tensor 3 = 2")),
    rule("parallel sizes", "the sequence divides into 2 x context chunks", Applies, "--context-parallel-size 3", 3, Refused("32 % (2 x 3) = 2")),
    rule("parallel sizes", "--zero-stage 2 keeps gradients whole, as 1 does", Overridden, "--zero-stage 2", 2, Noticed("--zero-stage 2: gradients are whole on every rank here")),
    rule("parallel sizes", "--hybrid-context-parallel has five conditions", Applies, "--hybrid-context-parallel --dataloader-type cyclic", 1, Refused("--hybrid-context-parallel needs --dataloader-type single, --calculate-per-token-loss")),
    rule("parallel sizes", "without Gloo groups a distributed optimizer wants a distributed format", VendorOnly, "--disable-gloo-process-groups --use-distributed-optimizer --ckpt-format torch", 1, Noticed("without Gloo groups")),
    // batch
    rule("batch", "--micro-batch-size is required", Applies, "-micro-batch-size", 1, Refused("--micro-batch-size")),
    rule("batch", "--micro-batch-size is at least 1", Applies, "--micro-batch-size 0", 1, Refused("--micro-batch-size 0 is out of range")),
    rule("batch", "--global-batch-size is micro-batch x data parallel by default", Applies, "-global-batch-size --micro-batch-size 3", 2, Becomes("global_batch_size", "6")),
    rule("batch", "the global batch divides into micro-batches", Applies, "--micro-batch-size 3", 1, Refused("= 3) = 1")),
    rule("batch", "--decrease-batch-size-if-needed rounds it down", Applies, "--micro-batch-size 3 --decrease-batch-size-if-needed", 1, Becomes("global_batch_size", "4")),
    rule("batch", "the evaluation batch divides as well", Applies, "--eval-micro-batch-size 3", 1, Refused("the evaluation batch does not divide")),
    rule("batch", "--step-batch-size-schedule states the sizes alone", Applies, "--step-batch-size-schedule 0:4", 1, Refused("already states the batch sizes")),
    rule("batch", "--step-batch-size-schedule excludes --decrease-batch-size-if-needed", Applies, "-global-batch-size --step-batch-size-schedule 0:4 --decrease-batch-size-if-needed", 1, Refused("do not combine")),
    // schedule
    rule("schedule", "Megatron-DeepSpeed's tokens end a run that is counted by samples", Applies, "-train-iters --train-samples 100 --train-tokens 1000", 1, Becomes("train_samples", "32")),
    rule("schedule", "or leave it as it is when they are more", Applies, "-train-iters --train-samples 100 --train-tokens 100000000000000000", 1, Becomes("train_samples", "100")),
    rule("schedule", "tokens alone are a length", Overridden, "-train-iters --train-tokens 3200", 1, Becomes("train_samples", "100")),
    rule("schedule", "--lr-decay-tokens and --lr-warmup-tokens count before samples", Applies, "-train-iters --train-samples 100 --lr-decay-samples 50 --lr-decay-tokens 2560 --lr-warmup-tokens 320", 1, Becomes("lr_decay_samples", "80")),
    rule("schedule", "tokens of iterations are those of their batches", Applies, "--lr-warmup-tokens 256", 1, Becomes("lr_warmup_iters", "2")),
    rule("schedule", "tokens do not count iterations of a growing batch", Applies, "--rampup-batch-size 2 2 60 --lr-warmup-tokens 256", 1, Refused("lengths in tokens do not go with iterations of a growing batch")),
    rule("schedule", "a length is required", Applies, "-train-iters", 1, Refused("--train-iters")),
    rule("schedule", "one unit of length", Applies, "--train-samples 100", 1, Refused("--train-iters and --train-samples both")),
    rule("schedule", "iterations exclude --lr-decay-samples", Applies, "--lr-decay-samples 100", 1, Refused("--lr-decay-samples does not go with a run counted by --train-iters")),
    rule("schedule", "iterations exclude --lr-warmup-samples", Applies, "--lr-warmup-samples 5", 1, Refused("--lr-warmup-samples does not go")),
    rule("schedule", "samples exclude --lr-decay-iters", Applies, "-train-iters --train-samples 100 --lr-decay-iters 5", 1, Refused("--lr-decay-iters does not go with a run counted by --train-samples")),
    rule("schedule", "samples exclude --lr-warmup-iters", Applies, "-train-iters --train-samples 100 --lr-warmup-iters 5", 1, Refused("--lr-warmup-iters does not go")),
    rule("schedule", "a warm-up is stated once", Applies, "--lr-warmup-fraction 0.1 --lr-warmup-iters 2", 1, Refused("both state the warm-up")),
    rule("schedule", "a warm-up in samples is stated once", Applies, "-train-iters --train-samples 100 --lr-warmup-fraction 0.1 --lr-warmup-samples 2", 1, Refused("both state the warm-up")),
    rule("schedule", "samples become iterations", Applies, "-train-iters --train-samples 100", 1, Becomes("train_iters", "25")),
    rule("schedule", "the decay is as long as the run by default", Applies, "--seed 1", 1, Becomes("lr_decay_iters", "10")),
    rule("schedule", "the warm-up is shorter than the decay", Applies, "--lr-warmup-iters 10", 1, Refused("--lr-warmup-iters 10 >= 10")),
    rule("schedule", "WSD needs the length of its annealing", Applies, "--lr-decay-style WSD", 1, Refused("required by --lr-decay-style WSD")),
    rule("schedule", "--min-lr is at most --lr", Applies, "--min-lr 1", 1, Refused("floor is above its peak")),
    rule("schedule", "--skip-train lifts the checks and loads no optimizer", Applies, "-lr --skip-train --min-lr 1", 1, Becomes("no_load_optim", "True")),
    rule("schedule", "constant weight decay has no start and end", Applies, "--start-weight-decay 0.1", 1, Refused("need a growing --weight-decay-incr-style")),
    rule("schedule", "growing weight decay has both", Applies, "--weight-decay-incr-style linear --start-weight-decay 0.1", 1, Refused("needs both")),
    // model shape
    rule("model shape", "--num-layers is required", Applies, "-num-layers", 1, Refused("--num-layers")),
    rule("model shape", "--hidden-size is required", Applies, "-hidden-size", 1, Refused("--hidden-size")),
    rule("model shape", "--num-attention-heads is required", Applies, "-num-attention-heads", 1, Refused("--num-attention-heads")),
    rule("model shape", "--max-position-embeddings is required; the sequence length completes it here", Overridden, "-max-position-embeddings", 1, Becomes("max_position_embeddings", "32")),
    rule("model shape", "--num-layers excludes --encoder-num-layers", Applies, "--encoder-num-layers 4", 1, Refused("say the same")),
    rule("model shape", "--seq-length excludes --encoder-seq-length", Applies, "--encoder-seq-length 4", 1, Refused("say the same")),
    rule("model shape", "one of them is required", Applies, "-seq-length", 1, Refused("--seq-length")),
    rule("model shape", "sequences fit the positions", Applies, "--seq-length 64", 1, Refused("sequence length 64 > 32 positions")),
    rule("model shape", "--ffn-hidden-size is 4 x hidden by default", Applies, "--seed 1", 1, Becomes("ffn_hidden_size", "256")),
    rule("model shape", "with SwiGLU int(8 x hidden / 3 / 64) x 64", Applies, "--swiglu", 1, Becomes("ffn_hidden_size", "128")),
    rule("model shape", "--kv-channels is hidden / heads by default", Applies, "--seed 1", 1, Becomes("kv_channels", "16")),
    rule("model shape", "hidden divides over the heads", Applies, "--hidden-size 65", 1, Refused("65 % 4 heads = 1")),
    rule("model shape", "biases everywhere include the QKV projection", Applies, "--seed 1", 1, Becomes("add_qkv_bias", "True")),
    rule("model shape", "mrope needs its sections", Applies, "--position-embedding-type mrope", 1, Refused("needs --mrope-section")),
    rule("model shape", "--squared-relu excludes --swiglu", Applies, "--swiglu --squared-relu", 1, Refused("one activation only")),
    rule("model shape", "--quick-geglu excludes --swiglu", Applies, "--swiglu --quick-geglu", 1, Refused("one activation only")),
    rule("model shape", "latent attention excludes grouped queries", Applies, "--multi-latent-attention --group-query-attention", 1, Refused("exclude each other")),
    rule("model shape", "latent attention excludes interleaved rotation", Applies, "--multi-latent-attention --position-embedding-type rope --rotary-interleaved", 1, Refused("exclude each other")),
    rule("model shape", "latent attention with fused rotation needs yarn", VendorOnly, "--multi-latent-attention --position-embedding-type rope", 1, Becomes("multi_latent_attention", "True")),
    rule("model shape", "scaling by layer number computes the softmax in fp32", Applies, "--apply-query-key-layer-scaling", 1, Becomes("attention_softmax_in_fp32", "True")),
    rule("model shape", "multi-token prediction needs rotary positions or none", Applies, "--mtp-num-layers 1", 1, Refused("needs rotary positions or none")),
    rule("model shape", "--attention-backend local needs --spec local", VendorOnly, "--attention-backend local", 1, Noticed("needs --spec local upstream")),
    rule("model shape", "0 experts are none", Applies, "--num-experts 0", 1, Becomes("num_experts", "None")),
    // pipeline
    rule("pipeline", "one way to state virtual stages", Applies, "--num-layers-per-virtual-pipeline-stage 1 --num-virtual-stages-per-pipeline-rank 2", 1, Refused("at most one of")),
    rule("pipeline", "layers divide into stages", Applies, "--num-layers 6 --pipeline-model-parallel-size 4", 4, Refused("6 layers % 4 stages = 2")),
    rule("pipeline", "embedding and loss may count as layers", Applies, "--num-layers 4 --pipeline-model-parallel-size 4 --account-for-loss-in-pipeline-split", 4, Refused("4 layers + 1 for embedding and loss % 4 stages = 1")),
    rule("pipeline", "layers of a stage divide into chunks", Applies, "--num-layers 12 --pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 2", 4, Refused("3 % 2 = 1")),
    rule("pipeline", "interleaving needs two stages", Applies, "--num-layers-per-virtual-pipeline-stage 1", 1, Refused("1 stage, at least 2 needed")),
    rule("pipeline", "and three without overlapped transfers", Applies, "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1 --no-overlap-p2p-communication", 2, Refused("2 stages, at least 3 needed")),
    rule("pipeline", "chunks by layers need equal stages", Applies, "--pipeline-model-parallel-size 2 --decoder-last-pipeline-num-layers 1 --num-layers-per-virtual-pipeline-stage 1", 2, Refused("needs equal stages")),
    rule("pipeline", "the other stages share the rest equally", Applies, "--num-layers 8 --pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 1", 4, Refused("8 layers - 1 = 7 for 3 stages")),
    rule("pipeline", "uneven stages exclude counted embeddings", Applies, "--pipeline-model-parallel-size 2 --decoder-first-pipeline-num-layers 1 --account-for-embedding-in-pipeline-split", 2, Refused("do not combine with")),
    rule("pipeline", "a layout states everything", Applies, "--pipeline-model-parallel-layout Et|tL --decoder-last-pipeline-num-layers 1", 1, Refused("already says how many layers")),
    rule("pipeline", "--defer-embedding-wgrad-compute needs stages and fused accumulation", Applies, "--defer-embedding-wgrad-compute", 1, Refused("needs several pipeline stages")),
    rule("pipeline", "offloaded activations exclude recomputation", Applies, "--cpu-offloading-num-layers 1 --recompute-activations", 1, Refused("does not go with pipeline stages or recomputation")),
    rule("pipeline", "micro-batches fill the groups of the interleaved schedule", Applies, "--global-batch-size 3 --pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1", 2, Refused("3 micro-batches % 2 (pipeline size 2) = 1")),
    // precision
    rule("precision", "--fp16 excludes --bf16", Applies, "--fp16 --bf16", 1, Refused("exclude each other")),
    rule("precision", "dynamic loss scaling switches the NaN check off", Applies, "--fp16", 1, Becomes("check_for_nan_in_loss_and_grad", "False")),
    rule("precision", "--fp16-lm-cross-entropy needs --fp16", Applies, "--fp16-lm-cross-entropy", 1, Refused("needs --fp16")),
    rule("precision", "--fp32-residual-connection needs 16 bits", Applies, "--fp32-residual-connection", 1, Refused("needs --fp16 or --bf16")),
    rule("precision", "--fp8-format excludes --fp4-format", Applies, "--fp8-format e4m3 --fp4-format e2m1", 1, Refused("exclude each other")),
    rule("precision", "--fp8-param-gather needs fp8 and sharded parameters", Applies, "--fp8-param-gather", 1, Refused("--fp8-param-gather needs")),
    rule("precision", "--first-last-layers-bf16 excludes the delayed recipe", Applies, "--fp8-format hybrid --fp8-recipe delayed --first-last-layers-bf16", 1, Refused("does not go with --fp8-recipe delayed")),
    rule("precision", "fused cross-entropy of Transformer Engine is refused by main", VendorOnly, "--cross-entropy-loss-fusion --cross-entropy-fusion-impl te", 1, Noticed("here it chooses nothing")),
    // recomputation
    rule("recomputation", "granularity is full or selective", Applies, "--recompute-granularity none", 1, Refused("full, selective")),
    rule("recomputation", "selective has no method", Applies, "--recompute-activations --recompute-method uniform", 1, Refused("belong to --recompute-granularity full")),
    rule("recomputation", "full has both", Applies, "--recompute-granularity full", 1, Refused("needs --recompute-method and --recompute-num-layers")),
    rule("recomputation", "--distribute-saved-activations needs tensor parallelism and full", Applies, "--distribute-saved-activations", 1, Refused("needs tensor parallelism")),
    rule("recomputation", "moe_act needs grouped products", Applies, "--num-experts 2 --recompute-granularity selective --recompute-modules moe_act", 1, Refused("needs --moe-grouped-gemm")),
    rule("recomputation", "mla_up_proj needs latent attention", Applies, "--recompute-granularity selective --recompute-modules mla_up_proj", 1, Refused("needs --multi-latent-attention")),
    rule("recomputation", "shared_experts excludes their overlap", Applies, "--num-experts 2 --moe-token-dispatcher-type alltoall --moe-shared-expert-overlap --recompute-granularity selective --recompute-modules shared_experts", 1, Refused("excludes --moe-shared-expert-overlap")),
    // optimizer
    rule("optimizer", "--overlap-param-gather needs a distributed optimizer", Applies, "--overlap-param-gather --overlap-grad-reduce", 1, Refused("needs --use-distributed-optimizer")),
    rule("optimizer", "and --overlap-grad-reduce", Applies, "--overlap-param-gather --use-distributed-optimizer", 1, Refused("needs --overlap-grad-reduce")),
    rule("optimizer", "overlap with the optimizer step needs that and virtual stages", Applies, "--overlap-param-gather-with-optimizer-step", 1, Refused("needs --overlap-param-gather and virtual stages")),
    rule("optimizer", "--use-torch-fsdp2 excludes other sharding", Applies, "--use-torch-fsdp2 --use-distributed-optimizer", 1, Refused("--use-torch-fsdp2 excludes")),
    rule("optimizer", "--optimizer-cpu-offload needs the precision-aware optimizer", Applies, "--optimizer-cpu-offload", 1, Refused("needs --use-precision-aware-optimizer")),
    rule("optimizer", "optimizers other than adam and sgd are planned", Applies, "--optimizer muon", 1, Refused("muon is not there yet")),
    // experts
    rule("experts", "expert parallelism needs experts", Applies, "--expert-model-parallel-size 2", 2, Refused("without --num-experts")),
    rule("experts", "experts divide over the ranks", Applies, "--expert-model-parallel-size 4 --num-experts 6", 4, Refused("6 experts % 4 = 2")),
    rule("experts", "--moe-ffn-hidden-size needs experts", Applies, "--moe-ffn-hidden-size 64", 1, Refused("without --num-experts")),
    rule("experts", "one expert a token needs scores before the choice", Applies, "--num-experts 4 --moe-router-topk 1", 1, Refused("would not learn")),
    rule("experts", "several balancing losses need as many coefficients", Applies, "--num-experts 4 --moe-router-load-balancing-type aux_loss seq_aux_loss --moe-aux-loss-coeff 0.1", 1, Refused("2 losses, 1 coefficients")),
    rule("experts", "a capacity factor below 0 is none", Applies, "--num-experts 4 --moe-expert-capacity-factor=-1", 1, Becomes("moe_expert_capacity_factor", "None")),
    rule("experts", "sinkhorn has no capacity factor", Applies, "--num-experts 4 --moe-router-load-balancing-type sinkhorn --moe-expert-capacity-factor 1", 1, Refused("does not go with --moe-router-load-balancing-type sinkhorn")),
    rule("experts", "padding needs a capacity factor", Applies, "--num-experts 4 --moe-pad-expert-input-to-capacity", 1, Refused("needs --moe-expert-capacity-factor")),
    rule("experts", "the expert bias needs sigmoid scores", Applies, "--num-experts 4 --moe-router-enable-expert-bias", 1, Refused("--moe-router-score-function sigmoid or sqrtsoftplus")),
    rule("experts", "groups: number, divisor, choice", Applies, "--num-experts 4 --moe-router-group-topk 2", 1, Refused("needs --moe-router-num-groups")),
    rule("experts", "experts divide over the groups", Applies, "--num-experts 4 --moe-router-group-topk 2 --moe-router-num-groups 3", 1, Refused("4 experts % 3 groups = 1")),
    rule("experts", "no more groups than there are", Applies, "--num-experts 4 --moe-router-group-topk 3 --moe-router-num-groups 2", 1, Refused("3 > 2 groups")),
    rule("experts", "split experts have no biases", Applies, "--num-experts 4 --tensor-model-parallel-size 2", 2, Refused("experts with biases")),
    rule("experts", "overlapped shared experts need an all-to-all", Applies, "--num-experts 4 --moe-shared-expert-overlap", 1, Refused("needs an all-to-all")),
    rule("experts", "DeepEP goes with the flex dispatcher", VendorOnly, "--num-experts 4 --moe-enable-deepep", 1, Noticed("the transport does not depend on it")),
    rule("experts", "allgather needs equal sequences", Applies, "--num-experts 4 --variable-seq-lengths", 1, Refused("cannot be gathered")),
    rule("experts", "overlapped expert communication has seven conditions", Applies, "--num-experts 4 --overlap-moe-expert-parallel-comm", 1, Refused("needs an expert parallel size above 1, the alltoall or flex dispatcher, --bf16 or --fp16")),
    rule("experts", "upcycling saves", Applies, "--num-experts 4 --moe-use-upcycling", 1, Refused("needs --save")),
    rule("experts", "grouped products need a recent GPU", VendorOnly, "--num-experts 4 --moe-grouped-gemm", 1, Noticed("no effect: --moe-grouped-gemm")),
    // data
    rule("data", "--split has a default", Applies, "-split", 1, Becomes("split", "969, 30, 1")),
    rule("data", "--data-path excludes --data-args-path", Applies, "-mock-data --data-path a --data-args-path f", 1, Refused("both name the corpora")),
    rule("data", "per-split paths stand in one place", Applies, "-mock-data --train-data-path a --per-split-data-args-path f", 1, Refused("not in both")),
    rule("data", "one source of data", Applies, "--data-path a", 1, Refused("one source of data only")),
    rule("data", "--dataloader-type is single by default", Applies, "--seed 1", 1, Becomes("dataloader_type", "single")),
    rule("data", "GPT2BPETokenizer, upstream's default, needs its files", Applies, "--tokenizer-type GPT2BPETokenizer", 1, Refused("required by GPT2BPETokenizer")),
    rule("data", "NullTokenizer needs --vocab-size", Applies, "-vocab-size", 1, Refused("required by NullTokenizer")),
    rule("data", "the vocabulary is padded to 128 x tensor parallel size", Applies, "--make-vocab-size-divisible-by 0", 1, Refused("--make-vocab-size-divisible-by 0 is out of range")),
    // checkpoints
    rule("checkpoints", "--save needs --save-interval; here the run is saved at its end", Overridden, "--save s", 1, Noticed("saved at its end only")),
    rule("checkpoints", "--save-interval is at least 1", Applies, "--save s --save-interval 0", 1, Refused("--save-interval 0 is out of range")),
    rule("checkpoints", "kept checkpoints are saved ones", Applies, "--save s --save-interval 4 --save-retain-interval 6", 1, Refused("6 % 4 = 2")),
    rule("checkpoints", "--async-save excludes the torch format", VendorOnly, "--async-save --ckpt-format torch", 1, Noticed("here saves are synchronous")),
    rule("checkpoints", "torch_dcp needs FSDP2", Applies, "--ckpt-format torch_dcp", 1, Refused("needs --use-torch-fsdp2")),
    rule("checkpoints", "fsdp_dtensor needs Megatron FSDP", Applies, "--ckpt-format fsdp_dtensor", 1, Refused("needs --use-megatron-fsdp")),
    rule("checkpoints", "--finetune excludes --override-ckpt-iteration", Applies, "--finetune --override-ckpt-iteration 5", 1, Refused("--finetune starts at iteration 0")),
    rule("checkpoints", "the schedule comes from one place", Applies, "--override-opt_param-scheduler --use-checkpoint-opt_param-scheduler", 1, Refused("not from both")),
    rule("checkpoints", "local checkpoints need a folder", Applies, "--non-persistent-ckpt-type local", 1, Refused("needs --non-persistent-local-ckpt-dir")),
    rule("checkpoints", "replication needs a jump", Applies, "--replication", 1, Refused("needs --replication-jump")),
    rule("checkpoints", "memory is logged with a log line", Applies, "--log-interval 4 --log-memory-interval 6", 1, Refused("6 % 4 = 2")),
    // forks
    rule("forks", "Megatron-DeepSpeed's sequence parallelism excludes stages", Applies, "--ds-sequence-parallel-size 2 --pipeline-model-parallel-size 2", 4, Refused("needs one pipeline stage")),
    rule("forks", "Megatron-DeepSpeed clamps tensor and pipeline sizes to the ranks; here too large is refused", Overridden, "--tensor-model-parallel-size 4", 1, Refused("1 rank % (tensor 4")),
    rule("forks", "key-value heads divide the heads", Applies, "--num-key-value-heads 3", 1, Refused("4 heads % 3 groups = 1")),
    rule("forks", "MindSpeed's layers of the stages add up", Applies, "--pipeline-model-parallel-size 2 --num-layer-list 1,2", 2, Refused("3 layers of 4")),
    rule("forks", "MindSpeed's alibi is a known name", Applies, "--position-embedding-type alibi", 1, Refused("alibi is not there yet")),
    // DeepSpeed's file, here as base64
    rule("DeepSpeed's file", "the file is there", Applies, "--deepspeed --deepspeed_config ds.json", 1, Refused("--deepspeed_config ds.json: no files here")),
    rule("DeepSpeed's file", "it is read with --deepspeed only", Applies, "--deepspeed_config ds.json", 1, Noticed("is not read: without --deepspeed")),
    rule("DeepSpeed's file", "file and command line, which both engines go by, agree: {train_batch_size: 8}", Overridden, "--deepspeed --deepspeed_config eyJ0cmFpbl9iYXRjaF9zaXplIjo4fQ==", 1, Refused("command line: --global-batch-size 4")),
    rule("DeepSpeed's file", "the three batch sizes multiply: {gradient_accumulation_steps: 2}", Applies, "--deepspeed --deepspeed_config eyJncmFkaWVudF9hY2N1bXVsYXRpb25fc3RlcHMiOjJ9", 1, Refused("is not equal to micro_batch_per_gpu * gradient_acc_step * world_size 4 != 1 * 2 * 1")),
    rule("DeepSpeed's file", "what is left open is worked out: {gradient_accumulation_steps: 2}", Applies, "-global-batch-size --deepspeed --deepspeed_config eyJncmFkaWVudF9hY2N1bXVsYXRpb25fc3RlcHMiOjJ9", 2, Becomes("global_batch_size", "4")),
    rule("DeepSpeed's file", "auto is the command line's value: {gradient_clipping: auto}", Applies, "--deepspeed --deepspeed_config eyJncmFkaWVudF9jbGlwcGluZyI6ImF1dG8ifQ==", 1, Noticed("auto is the command line's value or the default: gradient_clipping")),
    rule("DeepSpeed's file", "a checked section has known names only: {fp16: {scale: 1}}", Applies, "--deepspeed --deepspeed_config eyJmcDE2Ijp7InNjYWxlIjoxfX0=", 1, Refused("unknown key fp16.scale")),
    rule("DeepSpeed's file", "an unknown section is passed over, in silence there: {fp61: {}}", Overridden, "--deepspeed --deepspeed_config eyJmcDYxIjp7fX0=", 1, Noticed("fp61 (did you mean fp16?)")),
    rule("DeepSpeed's file", "fp16 starts at a loss scale of 2^16, not at Megatron's 2^32: {fp16: {enabled: true}}", Applies, "--deepspeed --deepspeed_config eyJmcDE2Ijp7ImVuYWJsZWQiOnRydWV9fQ==", 1, Becomes("initial_loss_scale", "65536.0")),
    rule("DeepSpeed's file", "gradients are not prescaled under ZeRO: {zero_optimization: {stage: 1}, prescale_gradients: true}", Applies, "--deepspeed --deepspeed_config eyJ6ZXJvX29wdGltaXphdGlvbiI6eyJzdGFnZSI6MX0sInByZXNjYWxlX2dyYWRpZW50cyI6dHJ1ZX0=", 2, Refused("does not go with ZeRO stage 1")),
];
