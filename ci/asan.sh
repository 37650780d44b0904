#!/usr/bin/env bash
# The crate's unit tests under AddressSanitizer: `ci/asan.sh [arguments of cargo test]`, e.g. names of tests. What
# is unsafe is the CPU kernels, mapped files and the driver calls; the last run on cuda-emu, see ci/emu_sanitize.sh.
# Needs no nightly: RUSTC_BOOTSTRAP lets the stable compiler take the flag. Everything is built once more.
set -euo pipefail
cd "$(dirname "$0")/.."
export RUSTC_BOOTSTRAP=1
export RUSTFLAGS="-Zsanitizer=address"
# Memory that lives as long as the process is no leak: threads of pools that a test leaves behind.
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=0:abort_on_error=1:allocator_may_return_null=1}
export PROPTEST_CASES=${PROPTEST_CASES:-32}
# With a target named, build scripts and procedural macros go without the flag.
host=$(rustc -vV | sed -n 's/^host: //p')
cargo test -p ottava --no-default-features --features text --lib --target "$host" \
    --config profile.test.package.ottava.debug-assertions=true \
    --target-dir "${CARGO_TARGET_DIR:-target}/asan" "$@"
