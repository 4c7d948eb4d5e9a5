#!/usr/bin/env bash
# Several nodes, all started from this one. HOSTFILE has a line a node: `name slots=8`.
#   HOSTFILE=hosts bash multi_node_ssh.sh --pipeline-model-parallel-size 2
set -euo pipefail

# What HCCL or NCCL needs travels by name; other variables belong into .deepspeed_env.
export HCCL_CONNECT_TIMEOUT=${HCCL_CONNECT_TIMEOUT:-600}

exec ferrotron launch --hostfile "${HOSTFILE:?name a hostfile}" \
    --master-port "${MASTER_PORT:-29500}" \
    pretrain_gpt \
    --num-layers 4 --hidden-size 64 --num-attention-heads 4 \
    --seq-length 64 --max-position-embeddings 64 \
    --micro-batch-size 1 --global-batch-size "${GLOBAL_BATCH_SIZE:-64}" \
    --train-iters 20 --lr 1e-3 --log-interval 5 --eval-iters 1 --eval-interval 20 \
    --tokenizer-type NullTokenizer --vocab-size 255 --mock-data \
    --use-distributed-optimizer "$@"
