# One launcher a node, as Megatron's example scripts have it; the variables have their names there.
set -- --nproc-per-node "${GPUS_PER_NODE:-auto}" pretrain_gpt "$@"
if [ "${NNODES:-${NUM_NODES:-1}}" -gt 1 ]; then
    set -- --nnodes "${NNODES:-$NUM_NODES}" "$@"
    if [ -n "${NODE_RANK:-}" ]; then set -- --node-rank "$NODE_RANK" "$@"; fi
fi
if [ -n "${MASTER_ADDR:-}" ]; then set -- --master-addr "$MASTER_ADDR" "$@"; fi
if [ -n "${MASTER_PORT:-}" ]; then set -- --master-port "$MASTER_PORT" "$@"; fi
run ferrotron launch "$@"
