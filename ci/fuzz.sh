#!/usr/bin/env bash
# The fuzz targets: they compile, and where nightly and cargo-fuzz are there, each runs for
# FUZZ_SECONDS (20). What it finds lands in fuzz/artifacts, its corpus in fuzz/corpus.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo check --manifest-path fuzz/Cargo.toml
if ! cargo +nightly fuzz --version > /dev/null 2>&1; then
    echo "skipped: running the targets needs a nightly toolchain and cargo-fuzz"
    exit 0
fi
for target in gguf tokenizer_metadata chat_template; do
    cargo +nightly fuzz run "$target" -- \
        -max_total_time="${FUZZ_SECONDS:-20}" -rss_limit_mb=2048 -timeout=20 -max_len=65536
done
