#!/usr/bin/env bash
# Every bench once, briefly: they check their answers before they time anything.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo bench --all-features --bench cpu_matmul -- --test
