#!/usr/bin/env bash
# Whether any of these paths differs from the last landing: `ci/changed.sh path...` succeeds if one does, and also
# where the last landing is unknown, as in a shallow clone. OTTAVA_CI_BASE names its commit; else it is the
# last commit that HEAD shares with the main branch, unless that is HEAD itself. `ci/changed.sh --base` prints it.
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
    return 1
}

[ "${1:-}" != --base ] || { base; exit; }

base=$(base) || { echo "the last landing is unknown: whatever may have changed is tested"; exit 0; }
if git diff --quiet "$base" -- "$@" && [ -z "$(git status --porcelain -- "$@")" ]; then
    echo "unchanged since ${base:0:12}: $*"
    exit 1
fi
