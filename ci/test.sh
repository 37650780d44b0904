#!/usr/bin/env bash
# All tests that need neither network nor model: README's second command, and, where what computes has changed, those
# that compute with all features in release, where the optimiser takes undefined behaviour at its word. The CUDA backend
# runs on an emulated card, of the one generation and of the other; its own tests with the checks that debug builds have.
# Files, messages and documents are tested once.
set -euo pipefail
cd "$(dirname "$0")/.."
. ci/nvcc.env
cargo test
ci/changed.sh --computes || exit 0
# All packages, as ci/golden.sh and ci/server.sh build them: with one alone its dependencies have other features, and
# the library would be compiled once more.
cargo test --release --all-features --test 'cuda*' --test 'kernel_*' --test no_allocation --test op_table
# Hopper's own kernels, all of which tests/cuda.rs runs there. What computes the same on both cards, and kernels that
# begin before the one ahead has ended, run on the second by night (ci/sm90.sh).
ci/sm90.sh --test cuda
profile=profile.release.package.ottava
checked=(--config $profile.opt-level=0 --config $profile.debug-assertions=true --lib)
cargo test --release --all-features "${checked[@]}" -- backend::cuda api::device
ci/sm90.sh "${checked[@]}" backend::cuda
