#!/usr/bin/env bash
# README's first command on a real model, then the recorded tokens and logits of two models: on the CPU, and, if code
# that computes has changed, on the emulated GPU. All features are enabled, as in ci/test.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
. ci/nvcc.env
on_cpu=(--test golden --test text_golden --test engine_golden) on_card=()
! ci/changed.sh --computes || on_card=(--test cuda --test cuda_engine)
# The models are fetched while the tests compile.
cargo build --release --all-features
printed=$(mktemp)
OTTAVA_PROGRAM=${CARGO_TARGET_DIR:-target}/release/ottava ci/models.sh > "$printed" &
fetching=$!
cargo test --release --all-features --no-run "${on_cpu[@]}" "${on_card[@]}"
wait $fetching
OTTAVA_TEST_MODELS=$(cat "$printed")
export OTTAVA_TEST_MODELS
answer=$(cargo run --release --all-features -- run "What is gravity?" --temp 0)
echo "ottava run: $answer"
[[ $answer == *force* ]] || { echo "expected an answer that speaks of a force"; exit 1; }
cargo test --release --all-features "${on_cpu[@]}" -- --nocapture --test-threads 1
[ ${#on_card[@]} -gt 0 ] || exit 0
# The CUDA backend with the real models, on the emulated GPU: logits, and the CPU's greedy tokens.
cargo test --release --all-features "${on_card[@]}" -- smollm2 gemma3 --nocapture --test-threads 1
# A prompt with Hopper's kernels.
CUDA_EMU_DEVICE=sm_90 cargo test --release --all-features --test cuda -- large_tiles --nocapture
