#!/usr/bin/env bash
# cuda-emu's tests under AddressSanitizer: `ci/emu_sanitize.sh [arguments of cargo test]`. Emulated
# memory is the host's, so that an access that slips through the emulator's checks is reported too.
# Needs no nightly: RUSTC_BOOTSTRAP lets the stable compiler take the flag. No part of .ci/run: it
# builds everything once more.
set -euo pipefail
cd "$(dirname "$0")/.."
export RUSTC_BOOTSTRAP=1
export RUSTFLAGS="-Zsanitizer=address"
# Memory that lives as long as the process is no leak; the driver library stays loaded on purpose.
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=0:abort_on_error=1}
# With a target named, build scripts and procedural macros go without the flag.
host=$(rustc -vV | sed -n 's/^host: //p')
[ $# -gt 0 ] || set -- --lib --tests
cargo test -p cuda-emu --target "$host" --target-dir "${CARGO_TARGET_DIR:-target}/sanitize" "$@"
