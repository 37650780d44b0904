#!/usr/bin/env bash
# All tests that need neither network nor model nor Python: README's second command, and again
# in release, where the optimiser takes undefined behaviour at its word.
set -euo pipefail
cd "$(dirname "$0")/.."
# nvcc for the feature cuda; the emulated card runs the PTX of these.
NVCC=${NVCC:-$(ci/cuda_toolkit.sh)}
export NVCC OTTAVA_CUDA_ARCHS=80,90a
cargo test --all-features
cargo test --release --all-features
