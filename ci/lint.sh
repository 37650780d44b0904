#!/usr/bin/env bash
# Format, clippy and rustdoc, with warnings as errors.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo fmt --check
cargo clippy --all-features --all-targets -- -D warnings
cargo clippy --no-default-features --lib -- -D warnings
RUSTDOCFLAGS="-D warnings" cargo doc --all-features --no-deps
