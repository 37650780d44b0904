#!/usr/bin/env bash
# Holds the public interface, without the feature `unstable`, against the last landing's, as ci/changed.sh finds it.
# A break passes where the version was raised, or where CHANGELOG's newest part has a section "Breaking", which says
# what breaks. cargo-semver-checks takes minutes to build: it is installed once, in the target folder.
set -euo pipefail
cd "$(dirname "$0")/.."
tools=${CARGO_TARGET_DIR:-$PWD/target}/tools
[ -x "$tools/bin/cargo-semver-checks" ] || cargo install --locked --root "$tools" cargo-semver-checks
base=$(ci/changed.sh --base) || { echo "NOT CHECKED: the last landing is unknown"; exit 0; }
checks=("$tools/bin/cargo-semver-checks" semver-checks -p ottava --baseline-rev "$base")
features=(--only-explicit-features --features "async,safetensors,serde,text")
! "${checks[@]}" "${features[@]}" || exit 0
newest=$(awk '/^## / { parts++ } parts == 1' CHANGELOG.md)
grep -q '^### Breaking' <<< "$newest" || { echo "expected a section \"### Breaking\" in CHANGELOG's newest part"; exit 1; }
echo "CHANGELOG names what breaks"
