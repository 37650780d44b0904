#!/usr/bin/env bash
# All tests that need neither network nor model: README's second command, and, if code that computes has changed, its
# tests in release with all features, where the optimiser exploits undefined behaviour. The CUDA backend runs on
# emulated GPUs of both generations; its unit tests have the checks of debug builds. Files, messages and documents are
# tested once.
set -euo pipefail
cd "$(dirname "$0")/.."
. ci/nvcc.env
cargo test
ci/changed.sh --computes || exit 0
# All packages, as in ci/golden.sh and ci/server.sh. A single package's dependencies would have other features, and the
# library would be compiled once more.
cargo test --release --all-features --test 'cuda*' --test 'kernel_*' --test no_allocation --test op_table
# Hopper's own kernels, all of which tests/cuda.rs covers. Computations that are equal on both GPUs, and dependent
# launches, run on Hopper by night (ci/sm90.sh).
ci/sm90.sh --test cuda
profile=profile.release.package.ottava
checked=(--config $profile.opt-level=0 --config $profile.debug-assertions=true --lib)
cargo test --release --all-features "${checked[@]}" -- backend::cuda api::device
ci/sm90.sh "${checked[@]}" backend::cuda
