#!/usr/bin/env bash
# Compares the public interface, without the feature `unstable`, with that of the base commit of ci/changed.sh, or on
# the main branch with that of a day ago.
# A breaking change passes if the version was raised, or if the section "Breaking" of CHANGELOG's newest part has a new
# line since then. cargo-semver-checks takes minutes to build, so it is installed once, in the target folder.
set -euo pipefail
cd "$(dirname "$0")/.."
tools=${CARGO_TARGET_DIR:-$PWD/target}/tools
[ -x "$tools/bin/cargo-semver-checks" ] || cargo install --locked --root "$tools" cargo-semver-checks
base=$(ci/changed.sh --base) || base=$(git log -1 --before='1 day ago' --format=%H)
[ -n "$base" ] || { echo "NOT CHECKED: there is nothing to compare with"; exit 0; }
checks=("$tools/bin/cargo-semver-checks" semver-checks -p ottava --baseline-rev "$base")
features=(--only-explicit-features)
for feature in async constraints safetensors serde text; do
    features+=(--current-features "$feature")
    # A new feature has no baseline.
    ! git show "$base:Cargo.toml" | grep "^$feature = " > /dev/null || features+=(--baseline-features "$feature")
done
! "${checks[@]}" "${features[@]}" || exit 0
# The lines of the section "Breaking".
breaks() { awk '/^## / { parts++ } /^### / { is_it = $0 == "### Breaking"; next } parts == 1 && is_it && NF'; }
before=$(git show "$base:CHANGELOG.md" | breaks)
new=$(breaks < CHANGELOG.md | grep -vxF -e "$before" || true)
[ -n "$new" ] || { echo "expected a line on what breaks under \"### Breaking\" in CHANGELOG's newest part"; exit 1; }
echo "CHANGELOG names what breaks:"
echo "$new"
