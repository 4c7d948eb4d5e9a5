#!/usr/bin/env bash
# A script as it was written for torchrun and Python, unchanged below the line; the two lines above it make it run here.
set -euo pipefail

shims=$(mktemp -d)
trap 'rm -rf "$shims"' EXIT
ferrotron shims "$shims" >/dev/null
export PATH="$shims/bin:$PATH"

# ---------------------------------------------------------------------------------------------------------------------
GPUS_PER_NODE=${GPUS_PER_NODE:-2}
DISTRIBUTED_ARGS="--nproc_per_node $GPUS_PER_NODE --nnodes 1 --node_rank 0 --master_addr localhost --master_port ${MASTER_PORT:-6000}"

torchrun $DISTRIBUTED_ARGS pretrain_gpt.py \
    --num-layers 4 --hidden-size 64 --num-attention-heads 4 \
    --seq-length 64 --max-position-embeddings 64 \
    --micro-batch-size 1 --global-batch-size 8 \
    --train-iters 20 --lr 1e-3 --log-interval 5 --eval-iters 1 --eval-interval 20 \
    --tokenizer-type NullTokenizer --vocab-size 255 --mock-data "$@"
