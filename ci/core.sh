#!/usr/bin/env bash
# The bare core: it builds and passes its tests without default features, with few dependencies.
set -euo pipefail
cd "$(dirname "$0")/.."
CRATES_MAX=40
cargo test --no-default-features --lib
crates=$(cargo tree --no-default-features --edges normal,build --prefix none --no-dedupe | sort -u | wc -l)
echo "the bare core builds with $crates crates, ottava itself included"
[ "$crates" -lt "$CRATES_MAX" ] || { echo "expected fewer than $CRATES_MAX crates"; exit 1; }
