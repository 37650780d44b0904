#!/usr/bin/env bash
# The fuzz targets, each for so many seconds (20): `ci/fuzz.sh [seconds [target...]]`. Needs neither
# nightly nor cargo-fuzz: RUSTC_BOOTSTRAP lets the stable compiler take the flags that cargo-fuzz
# gives. Starts from what fuzz/seeds.rs writes and what earlier runs found (fuzz/corpus); what fails
# lands in fuzz/artifacts. No part of .ci/run: its first build takes six minutes of processor time;
# ci/lint.sh checks that the targets compile.
set -euo pipefail
cd "$(dirname "$0")/../fuzz"
seconds=${1:-20}
shift || true
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=(gguf tokenizer_metadata chat_template ptx)

export RUSTC_BOOTSTRAP=1
export RUSTFLAGS="--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table
    -Cllvm-args=-sanitizer-coverage-trace-compares -Zsanitizer=address -Ccodegen-units=1 -Cdebug-assertions"
# With a target named, build scripts and procedural macros go without the flags.
host=$(rustc -vV | sed -n 's/^host: //p')
cargo build --release --target "$host"
programs=${CARGO_TARGET_DIR:-target}/$host/release

"$programs/seeds" corpus
for target in "${targets[@]}"; do
    mkdir -p "corpus/$target" "artifacts/$target"
    "$programs/$target" "corpus/$target" -artifact_prefix="artifacts/$target/" -print_final_stats=1 \
        -max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 -malloc_limit_mb=1024 -max_len=65536
done
