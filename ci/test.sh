#!/usr/bin/env bash
# All tests that need neither network nor model nor Python: README's second command, and again
# in release, where the optimiser takes undefined behaviour at its word.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo test --all-features
cargo test --release --all-features
