#!/usr/bin/env bash
# The examples in the documentation, with all features.
set -euo pipefail
cd "$(dirname "$0")/.."
. ci/nvcc.env
cargo test --release --all-features -p ottava -p ottava-server --doc
