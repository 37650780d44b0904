#!/usr/bin/env bash
# The fuzz targets, each for so many seconds (60): `ci/fuzz.sh [seconds [target...]]`, two at a time. Needs
# neither nightly nor cargo-fuzz: RUSTC_BOOTSTRAP lets the stable compiler take the flags that cargo-fuzz
# gives. Starts from what fuzz/seeds.rs writes and what earlier runs found (fuzz/corpus); what fails
# lands in fuzz/artifacts, and the run's last lines say why. With OTTAVA_FUZZ_FAST=1 the targets are optimised and without
# AddressSanitizer, which is for long runs: what unsafe code does wrong shows in the other way alone.
set -euo pipefail
cd "$(dirname "$0")/../fuzz"
seconds=${1:-60}
shift || true
targets=("$@")
all=(gguf tokenizer_metadata chat_template ptx model_config model_folder model_load snapshot sidecar request render answer grammar)
[ ${#targets[@]} -gt 0 ] || targets=("${all[@]}")

export RUSTC_BOOTSTRAP=1
# What is fuzzed is the logic, not the compiler: with less of the optimiser everything is built in half the time.
# The kernels' many instances take it longest.
export CARGO_PROFILE_RELEASE_OPT_LEVEL=1 CARGO_PROFILE_RELEASE_LTO=off
export CARGO_PROFILE_RELEASE_DEBUG=${CARGO_PROFILE_RELEASE_DEBUG:-line-tables-only}
quick=(--config profile.release.package.ottava.opt-level=0)
coverage="--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table
    -Cllvm-args=-sanitizer-coverage-trace-compares"
# With a target named, build scripts and procedural macros go without the flags.
host=$(rustc -vV | sed -n 's/^host: //p')
if [ -n "${OTTAVA_FUZZ_FAST:-}" ]; then
    # Seeds are no target: only the sanitizer would have what coverage links to.
    cargo run --target-dir target/seeds --bin seeds corpus
    target=$PWD/target/fast
    RUSTFLAGS="$coverage -Coverflow-checks=on" CARGO_PROFILE_RELEASE_OPT_LEVEL=2 cargo build --release \
        --target "$host" --target-dir "$target" $(printf -- '--bin %s ' "${targets[@]}")
else
    target=${CARGO_TARGET_DIR:-$PWD/target}
    RUSTFLAGS="$coverage -Zsanitizer=address -Cdebug-assertions" cargo build "${quick[@]}" --release \
        --target "$host" $(printf -- '--bin %s ' seeds "${targets[@]}")
    "$target/$host/release/seeds" corpus
fi
programs=$target/$host/release

# Of one input: seconds, bytes of the process, bytes of one allocation. The templates' threads have deep stacks.
limits="-timeout=20 -rss_limit_mb=2048 -malloc_limit_mb=512 -max_len=65536"
export programs seconds limits
fuzz() {
    mkdir -p "corpus/$1" "artifacts/$1"
    "$programs/$1" "corpus/$1" -artifact_prefix="artifacts/$1/" -print_final_stats=1 -max_total_time="$seconds" \
        $limits > "artifacts/$1.log" 2>&1 && failed=no || failed=yes
    echo "$1: $(sed -n 's/^stat::number_of_executed_units: *//p' "artifacts/$1.log") inputs, failed: $failed"
    [ $failed = no ] || { tail -n 60 "artifacts/$1.log"; exit 1; }
}
export -f fuzz
printf '%s\n' "${targets[@]}" | xargs -P 2 -I {} bash -c 'fuzz {}'
