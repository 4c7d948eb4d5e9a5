#!/usr/bin/env bash
# Pretrains a GPT over several ranks, in the style of Megatron-LM's example of the same name: NNODES nodes with
# GPUS_PER_NODE ranks each, this one being NODE_RANK.
set -euo pipefail

export GPUS_PER_NODE=${GPUS_PER_NODE:-8}
export NNODES=${NNODES:-1}
export NODE_RANK=${NODE_RANK:-0}
export MASTER_ADDR=${MASTER_ADDR:-localhost}
export MASTER_PORT=${MASTER_PORT:-6000}

PRETRAIN_GPT=${PRETRAIN_GPT:-"ferrotron launch --nproc-per-node $GPUS_PER_NODE --nnodes $NNODES --node-rank $NODE_RANK \
    --master-addr $MASTER_ADDR --master-port $MASTER_PORT pretrain_gpt"}
export PRETRAIN_GPT
exec bash "$(dirname "$0")/pretrain_gpt.sh" "$@"
