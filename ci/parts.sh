#!/usr/bin/env bash
# Runs parts of CI in order and prints the wall and CPU seconds of each: `ci/parts.sh [-k] part... [-- part...]`. A
# part is the name of a script in this folder without its extension, with arguments: `lint`, `"fuzz 20"`. Parts after
# `--` run as a second lane in parallel, because the build of one large crate leaves a core idle. Their output is
# printed when each ends. The first failed part ends the run; with -k the others still run.
set -euo pipefail
cd "$(dirname "$0")/.."
keep_going=
[ "${1:-}" != -k ] || { keep_going=yes; shift; }

# A cold build gains nothing from incremental state, and debug info takes compile time.
export CARGO_INCREMENTAL=${CARGO_INCREMENTAL:-0}
export CARGO_PROFILE_DEV_DEBUG=${CARGO_PROFILE_DEV_DEBUG:-0} CARGO_PROFILE_RELEASE_DEBUG=${CARGO_PROFILE_RELEASE_DEBUG:-0}
# LTO takes long, and without it only loading is slower (benches/record/cpu/2026-11-27-compile.md).
export CARGO_PROFILE_RELEASE_LTO=${CARGO_PROFILE_RELEASE_LTO:-off}

folder=$(mktemp -d)
touch "$folder/rows" "$folder/failed"

# Sets `cpu` to the CPU seconds of this shell's ended children. A subshell would count only its own.
count_cpu() {
    local clock=$folder/times.$BASHPID
    times > "$clock"
    cpu=$(awk 'END { for (i = 1; i <= NF; i++) { split($i, part, /[ms]/); sum += 60 * part[1] + part[2] } printf "%d", sum }' "$clock")
}

# Runs the parts of a lane with the function in the first argument.
lane() {
    local how=$1 part name arguments started before cpu status
    shift
    for part in "$@"; do
        read -r name arguments <<< "$part"
        count_cpu
        started=$SECONDS before=$cpu status=0
        # The arguments are to be split into words.
        # shellcheck disable=SC2086
        "$how" "$name" $arguments || status=$?
        count_cpu
        printf '%-24s %6s %6s\n' "${part:0:24}" $((SECONDS - started)) $((cpu - before)) >> "$folder/rows"
        [ $status -ne 0 ] || continue
        echo "$name" >> "$folder/failed"
        [ -n "$keep_going" ] || return $status
    done
}
shown() {
    echo "== ci/$1.sh ${*:2}"
    bash "ci/$1.sh" "${@:2}"
}
later() {
    local status=0
    bash "ci/$1.sh" "${@:2}" > "$folder/$1.log" 2>&1 || status=$?
    echo "== ci/$1.sh ${*:2} (beside the others)"
    cat "$folder/$1.log"
    return $status
}

beside=
finish() {
    # The other lane is a process group, so its children end with it.
    [ -z "$beside" ] || kill -- "-$beside" 2> /dev/null || true
    echo
    echo "== seconds and CPU seconds by part, of commit $(git rev-parse --short HEAD 2> /dev/null || echo unknown)"
    cat "$folder/rows"
    printf '%-24s %6s\n' total "$SECONDS"
    [ ! -s "$folder/failed" ] || echo "failed:" $(cat "$folder/failed")
    rm -rf "$folder"
}
trap finish EXIT

first=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    first+=("$1")
    shift
done
if [ $# -gt 1 ]; then
    set -m
    lane later "${@:2}" < /dev/null &
    beside=$!
    set +m
fi
# Each lane is its own shell, so that it counts only its own children.
(lane shown "${first[@]}")
if [ -n "$beside" ]; then
    wait "$beside"
    beside=
fi
[ ! -s "$folder/failed" ]
