#!/usr/bin/env bash
# All tests that need neither network nor model: README's second command, and those that compute with all
# features in release, where the optimiser takes undefined behaviour at its word. The CUDA backend runs on an
# emulated card, of the one generation and of the other. Files, messages and documents are tested once.
set -euo pipefail
cd "$(dirname "$0")/.."
. ci/nvcc.env
cargo test
cargo test --release --all-features --lib --bins --test 'cuda*' --test 'kernel_*' --test families --test kv_alloc \
    --test no_allocation --test op_table --test sidecar --test tiny_model
cargo test --release --all-features --doc
export CUDA_EMU_DEVICE=sm_90
cargo test --release --all-features --lib backend::cuda
cargo test --release --all-features --test cuda --test cuda_attention --test cuda_devices --test cuda_engine \
    --test cuda_families --test cuda_faults --test cuda_graph --test cuda_health --test cuda_invariant --test cuda_step --test cuda_traffic
