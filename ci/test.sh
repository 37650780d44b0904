#!/usr/bin/env bash
# All tests that need neither network nor model: README's second command, and those that compute with all
# features in release, where the optimiser takes undefined behaviour at its word. The CUDA backend runs on an
# emulated card, of the one generation and of the other. Files, messages and documents are tested once.
set -euo pipefail
cd "$(dirname "$0")/.."
. ci/nvcc.env
cargo test
cargo test --release --all-features -p ottava --lib --test 'cuda*' --test 'kernel_*' --test no_allocation --test op_table
# Hopper's own kernels, all of which tests/cuda.rs runs there. What computes the same on both cards, and kernels that
# begin before the one ahead has ended, run on the second by night (ci/sm90.sh).
ci/sm90.sh -p ottava --lib backend::cuda
ci/sm90.sh -p ottava --test cuda
