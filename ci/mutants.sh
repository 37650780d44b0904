#!/usr/bin/env bash
# Mutation tests: `ci/mutants.sh [seed [count [folder...]]]` makes `count` (20) random changes of the code from
# `seed` (1), each in its own copy of the tree, and runs the tests that need no model. Folders default to those
# that compute results. Prints the changes that no test detected; the record is in target/mutants. OTTAVA_JOBS (2)
# is the number of concurrent changes. Not part of .ci/run: a change takes about a minute. Needs only Python.
set -euo pipefail
cd "$(dirname "$0")/.."
seed=${1:-1}
count=${2:-20}
shift $(($# > 2 ? 2 : $#))
[ $# -gt 0 ] || set -- engine graph ir kv model quant sample text checkpoint backend/cpu backend/reference
# The fastest build: no optimisation and no debug info.
export CARGO_PROFILE_TEST_OPT_LEVEL=0 CARGO_PROFILE_TEST_DEBUG=false CARGO_PROFILE_DEV_DEBUG=false
export CARGO_PROFILE_DEV_OPT_LEVEL=0 CARGO_INCREMENTAL=1 PROPTEST_CASES=${PROPTEST_CASES:-64}
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}/mutants
exec python3 ci/mutants.py "$seed" "$count" "$@"
