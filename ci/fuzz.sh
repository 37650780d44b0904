#!/usr/bin/env bash
# The fuzz targets, two at a time: `ci/fuzz.sh [seconds [target...]]`; seconds per target, default 60. Needs
# neither nightly nor cargo-fuzz: RUSTC_BOOTSTRAP makes the stable compiler accept cargo-fuzz's flags. Starts
# from the seeds of fuzz/seeds.rs and the corpus of earlier runs (fuzz/corpus). Failing inputs go to
# fuzz/artifacts, and the run's last lines give the reason. OTTAVA_FUZZ_FAST=1 optimises the targets and omits
# AddressSanitizer, for long runs; only AddressSanitizer finds memory errors of unsafe code.
set -euo pipefail
cd "$(dirname "$0")/../fuzz"
seconds=${1:-60}
shift || true
targets=("$@")
all=(gguf tokenizer_metadata chat_template ptx model_config model_folder model_load snapshot sidecar request render answer grammar)
[ ${#targets[@]} -gt 0 ] || targets=("${all[@]}")

export RUSTC_BOOTSTRAP=1
# Low optimisation halves the build time, and the fuzzed logic is the same. The kernels' many instances take the
# longest to optimise.
export CARGO_PROFILE_RELEASE_OPT_LEVEL=1 CARGO_PROFILE_RELEASE_LTO=off
export CARGO_PROFILE_RELEASE_DEBUG=${CARGO_PROFILE_RELEASE_DEBUG:-line-tables-only}
quick=(--config profile.release.package.ottava.opt-level=0)
coverage="--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table
    -Cllvm-args=-sanitizer-coverage-trace-compares"
# With an explicit target, build scripts and procedural macros are built without the flags.
host=$(rustc -vV | sed -n 's/^host: //p')
if [ -n "${OTTAVA_FUZZ_FAST:-}" ]; then
    # Built without the flags: coverage needs symbols that only a fuzz target or the sanitizer has.
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

# Limits per input: seconds, MiB of the process, MiB of one allocation. Threads of templates have deep stacks.
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
