#!/usr/bin/env bash
# cuda-emu's tests under AddressSanitizer: `ci/emu_sanitize.sh [arguments of cargo test]`. Emulated
# memory is host memory, so accesses that the emulator's checks miss are reported, too.
# Needs no nightly: RUSTC_BOOTSTRAP makes the stable compiler accept the flag. Everything is built once
# more.
set -euo pipefail
cd "$(dirname "$0")/.."
export RUSTC_BOOTSTRAP=1
# The driver library is loaded at run time and finds the sanitizer's functions in the test program.
export RUSTFLAGS="-Zsanitizer=address -Clink-arg=-Wl,--export-dynamic-symbol=__asan_*
    -Clink-arg=-Wl,--export-dynamic-symbol=__sanitizer_*"
# Without leak detection: the driver library stays loaded until the process ends.
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=0:abort_on_error=1}
# With an explicit target, build scripts and procedural macros are built without the flag.
host=$(rustc -vV | sed -n 's/^host: //p')
[ $# -gt 0 ] || set -- --lib --tests
# Fully optimising the instrumented loops takes minutes; with opt-level 1 they are fast enough.
less=(--config profile.dev.package.cuda-emu.opt-level=1 --config profile.test.package.cuda-emu.opt-level=1)
cargo test "${less[@]}" -p cuda-emu --target "$host" --target-dir "${CARGO_TARGET_DIR:-target}/sanitize" "$@"
