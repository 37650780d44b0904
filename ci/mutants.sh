#!/usr/bin/env bash
# Whether the tests notice a change of the code: `ci/mutants.sh [seed [count [folder...]]]` makes `count`
# (20) changes drawn by `seed` (1), each alone in a copy of the tree, and runs the tests that need no
# model. Folders default to those that compute results. Prints what no test noticed; the record lies in
# target/mutants. OTTAVA_JOBS (2) changes are tried at a time, each in a copy of its own. No part of .ci/run: a
# change takes about a minute. Python alone is needed.
set -euo pipefail
cd "$(dirname "$0")/.."
seed=${1:-1}
count=${2:-20}
shift $(($# > 2 ? 2 : $#))
[ $# -gt 0 ] || set -- engine graph ir kv model quant sample text checkpoint backend/cpu backend/reference
# What takes the compiler least time: neither optimised code nor lines for a debugger.
export CARGO_PROFILE_TEST_OPT_LEVEL=0 CARGO_PROFILE_TEST_DEBUG=false CARGO_PROFILE_DEV_DEBUG=false
export CARGO_PROFILE_DEV_OPT_LEVEL=0 CARGO_INCREMENTAL=1 PROPTEST_CASES=${PROPTEST_CASES:-64}
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}/mutants
exec python3 ci/mutants.py "$seed" "$count" "$@"
