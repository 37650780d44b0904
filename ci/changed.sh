#!/usr/bin/env bash
# Whether any of these paths differs from the base commit: `ci/changed.sh path...` succeeds if one does, and also if
# the base is unknown, as in a shallow clone. The base is OTTAVA_CI_BASE, if set; otherwise the last commit that HEAD
# shares with the main branch. If that is HEAD itself, as in a clone of the branch under test, the base is the commit
# in .ci/passed. `ci/changed.sh --base` prints it. `ci/changed.sh --computes` means the paths of code that computes,
# from graphs to kernels.
set -euo pipefail
cd "$(dirname "$0")/.."

# The commit to compare with, or nothing.
base() {
    if [ -n "${OTTAVA_CI_BASE:-}" ]; then
        git rev-parse --verify --quiet "$OTTAVA_CI_BASE^{commit}"
        return
    fi
    local head main shared
    head=$(git rev-parse --verify --quiet HEAD) || return
    for main in origin/main main; do
        shared=$(git merge-base HEAD "$main" 2> /dev/null) || continue
        [ "$shared" = "$head" ] || { echo "$shared"; return; }
    done
    # .ci/passed is set to the main branch's commit when work on it begins, if its CI has passed.
    shared=$(git merge-base HEAD "$(cat .ci/passed)" 2> /dev/null) || return
    [ "$shared" != "$head" ] || return
    echo "$shared"
}

[ "${1:-}" != --base ] || { base; exit; }
[ "${1:-}" != --computes ] || set -- Cargo.toml Cargo.lock build.rs kernels-cu crates/cuda-emu src/lib.rs src/api/device.rs \
    src/backend src/engine src/graph src/ir src/kv src/model src/quant src/sample src/session \
    'tests/cuda*' tests/golden 'tests/kernel_*' tests/layer tests/no_allocation.rs 'tests/op_table*' tests/real_models tests/tiny \
    ci/golden.sh ci/sm90.sh ci/test.sh

base=$(base) || { echo "the last landing is unknown: whatever may have changed is tested"; exit 0; }
if git diff --quiet "$base" -- "$@" && [ -z "$(git status --porcelain -- "$@")" ]; then
    echo "unchanged since ${base:0:12}: $*"
    exit 1
fi
