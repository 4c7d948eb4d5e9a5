#!/usr/bin/env bash
# Pretrains a GPT, in the style of Megatron-LM's example of the same name. Flags given here come last and win:
#   bash examples/pretrain_gpt.sh --tensor-model-parallel-size 2 --num-layers 40 --hidden-size 5120 ...
# PRETRAIN_GPT names the program, for example "ferrotron launch --nproc-per-node 8 pretrain_gpt".
set -euo pipefail

PRETRAIN_GPT=${PRETRAIN_GPT:-pretrain_gpt}
DATA_PATH=${DATA_PATH:-}
TOKENIZER_MODEL=${TOKENIZER_MODEL:-}
CHECKPOINT_PATH=${CHECKPOINT_PATH:-}

ARGS=(
    --micro-batch-size 4
    --train-iters 500000
    --lr 1.5e-4
    --min-lr 1.0e-5
    --lr-decay-style cosine
    --lr-warmup-fraction .01
    --weight-decay 1e-2
    --clip-grad 1.0
    --log-interval 100
    --eval-interval 1000
    --eval-iters 10
)
if [ -n "$DATA_PATH" ]; then ARGS+=(--data-path "$DATA_PATH" --split 949,50,1); fi
if [ -n "$TOKENIZER_MODEL" ]; then ARGS+=(--tokenizer-type HuggingFaceTokenizer --tokenizer-model "$TOKENIZER_MODEL"); fi
if [ -n "$CHECKPOINT_PATH" ]; then ARGS+=(--save "$CHECKPOINT_PATH" --load "$CHECKPOINT_PATH" --save-interval 10000); fi

# shellcheck disable=SC2086 # the program may come with words of its own
exec $PRETRAIN_GPT "${ARGS[@]}" "$@"
