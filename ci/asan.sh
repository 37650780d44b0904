#!/usr/bin/env bash
# The crate's unit tests under AddressSanitizer: `ci/asan.sh [arguments of cargo test]`, e.g. names of tests. Unsafe
# code is in the CPU kernels, mapped files and driver calls; the last are tested on cuda-emu (ci/emu_sanitize.sh).
# Needs no nightly: RUSTC_BOOTSTRAP makes the stable compiler accept the flag. Everything is built once more.
set -euo pipefail
cd "$(dirname "$0")/.."
export RUSTC_BOOTSTRAP=1
export RUSTFLAGS="-Zsanitizer=address"
# Without leak detection: threads of pools keep memory until the process ends.
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=0:abort_on_error=1:allocator_may_return_null=1}
export PROPTEST_CASES=${PROPTEST_CASES:-32}
# With an explicit target, build scripts and procedural macros are built without the flag.
host=$(rustc -vV | sed -n 's/^host: //p')
cargo test -p ottava --no-default-features --features text --lib --target "$host" \
    --config profile.test.package.ottava.debug-assertions=true \
    --target-dir "${CARGO_TARGET_DIR:-target}/asan" "$@"
