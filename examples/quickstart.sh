#!/usr/bin/env bash
# Trains a small Llama-style GPT on this repository's own text, on the CPU: about two minutes on two cores after the
# build. Needs Rust and nothing else. Everything it makes lies in runs/quickstart.
set -euo pipefail
cd "$(dirname "$0")/.."
RUN=${RUN:-runs/quickstart}
ITERS=${ITERS:-300}
BIN=${CARGO_TARGET_DIR:-target}/release

echo "== build"
cargo build --release --locked --package ferrotron-cli

rm -rf "$RUN"
mkdir -p "$RUN"

echo "== corpus: the repository's sources and documents, one document a file"
"$BIN/ferrotron" corpus --input crates docs examples configs xtask tests/src tests/tests README.md ARCHITECTURE.md \
    CONTRIBUTING.md --output "$RUN/corpus.jsonl"

echo "== tokens"
"$BIN/preprocess_data" --input "$RUN/corpus.jsonl" --tokenizer-type ByteLevelTokenizer --append-eod --workers 2 \
    --output-prefix "$RUN/corpus"

train() {
    "$BIN/pretrain_gpt" \
        --num-layers 4 --hidden-size 256 --ffn-hidden-size 688 --num-attention-heads 8 \
        --group-query-attention --num-query-groups 4 --seq-length 256 --max-position-embeddings 256 \
        --position-embedding-type rope --normalization RMSNorm --swiglu --disable-bias-linear \
        --untie-embeddings-and-output-weights --hidden-dropout 0 --attention-dropout 0 \
        --tokenizer-type ByteLevelTokenizer --data-path "$RUN/corpus_text_document" --split 90,10,0 \
        --data-cache-path "$RUN/cache" --micro-batch-size 8 --global-batch-size 8 --train-iters "$ITERS" \
        --lr 2e-3 --min-lr 2e-4 --lr-decay-style cosine --lr-warmup-iters 20 --weight-decay 0.1 \
        --adam-beta2 0.95 --clip-grad 1.0 --log-interval 10 --eval-interval 100 --eval-iters 8 \
        --save "$RUN/checkpoints" --load "$RUN/checkpoints" --save-interval 100 --seed 42 "$@"
}

echo "== train, stop after two thirds"
train --exit-interval $((ITERS * 2 / 3)) | tee "$RUN/train-1.log"
echo "== resume, to the end"
train | tee "$RUN/train-2.log"

echo "== loss"
"$BIN/ferrotron" curve --log "$RUN/train-1.log" "$RUN/train-2.log"

echo "== what it writes"
"$BIN/ferrotron" generate --load "$RUN/checkpoints" --prompt "pub fn " --tokens 200 --temperature 0.6 --seed 7
