#!/usr/bin/env bash
# Runs parts of CI in order and prints the seconds that each took: `ci/parts.sh [-k] part...`. A part is a script
# of this folder without its ending, with its arguments: `lint`, `"fuzz 20"`. The first part that fails ends the
# run; with -k the others still run.
set -euo pipefail
cd "$(dirname "$0")/.."
keep_going=
[ "${1:-}" != -k ] || { keep_going=yes; shift; }

# A cold build gains nothing from incremental state, and lines for a debugger take the compiler time.
export CARGO_INCREMENTAL=${CARGO_INCREMENTAL:-0}
export CARGO_PROFILE_DEV_DEBUG=${CARGO_PROFILE_DEV_DEBUG:-0} CARGO_PROFILE_RELEASE_DEBUG=${CARGO_PROFILE_RELEASE_DEBUG:-0}

rows=() failed=()
print_table() {
    echo
    echo "== seconds by part, of commit $(git rev-parse --short HEAD 2> /dev/null || echo unknown)"
    printf '%-24s %6s\n' "${rows[@]}" total "$SECONDS"
}
trap print_table EXIT

for part in "$@"; do
    read -r name arguments <<< "$part"
    echo "== ci/$name.sh $arguments"
    started=$SECONDS status=0
    # The arguments are words of their own.
    # shellcheck disable=SC2086
    bash "ci/$name.sh" $arguments || status=$?
    rows+=("$part" $((SECONDS - started)))
    [ $status -eq 0 ] && continue
    failed+=("$name")
    [ -n "$keep_going" ] || break
done
[ ${#failed[@]} -eq 0 ] || { echo "failed: ${failed[*]}"; exit 1; }
