#!/usr/bin/env bash
# README's first command on a real model, then the recorded tokens and logits of two models, on the CPU
# and on the emulated card; with all features, as ci/test.sh has compiled them.
# The models are fetched into the cache (OTTAVA_CACHE) and never committed.
set -euo pipefail
cd "$(dirname "$0")/.."
. ci/nvcc.env
if ! python3 -m pip --version > /dev/null 2>&1; then
    apt-get update -qq && apt-get install -y -qq python3-pip > /dev/null
fi
answer=$(cargo run --release --all-features -- run "What is gravity?" --temp 0)
echo "ottava run: $answer"
[[ $answer == *force* ]] || { echo "expected an answer that speaks of a force"; exit 1; }
models=target/test-models
mkdir -p "$models"
ln -sf "$(cargo run --release --all-features --quiet -- pull smollm2-135m-instruct)" "$models/smollm2.gguf"
ln -sf "$(cargo run --release --all-features --quiet -- pull gemma3-270m)" "$models/gemma3.gguf"
OTTAVA_TEST_MODELS=$PWD/$models cargo test --release --all-features \
    --test golden --test text_golden --test engine_golden -- --nocapture --test-threads 1
# The CUDA backend with the real models, on the emulated card: logits, and greedy tokens as the CPU's.
OTTAVA_TEST_MODELS=$PWD/$models cargo test --release --all-features \
    --test cuda --test cuda_engine -- smollm2 gemma3 --nocapture --test-threads 1
# A prompt by Hopper's kernels.
CUDA_EMU_DEVICE=sm_90 OTTAVA_TEST_MODELS=$PWD/$models cargo test --release --all-features \
    --test cuda -- large_tiles --nocapture
