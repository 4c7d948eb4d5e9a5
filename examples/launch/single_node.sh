#!/usr/bin/env bash
# One node, one rank on every device (without devices, on every processor). Words after the script go to pretrain_gpt:
#   bash single_node.sh --tensor-model-parallel-size 2
set -euo pipefail

exec ferrotron launch --nproc-per-node "${GPUS_PER_NODE:-auto}" \
    pretrain_gpt \
    --num-layers 4 --hidden-size 64 --num-attention-heads 4 \
    --seq-length 64 --max-position-embeddings 64 \
    --micro-batch-size 1 --global-batch-size "${GLOBAL_BATCH_SIZE:-32}" \
    --train-iters 20 --lr 1e-3 --log-interval 5 --eval-iters 1 --eval-interval 20 \
    --tokenizer-type NullTokenizer --vocab-size 255 --mock-data \
    --use-distributed-optimizer "$@"
