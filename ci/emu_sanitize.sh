#!/usr/bin/env bash
# cuda-emu's tests under AddressSanitizer: `ci/emu_sanitize.sh [arguments of cargo test]`. Emulated
# memory is the host's, so that an access that slips through the emulator's checks is reported too.
# Needs no nightly: RUSTC_BOOTSTRAP lets the stable compiler take the flag. Everything is built once
# more; ci/emu.sh runs a part: a minute to build with two cores, ten seconds to run.
set -euo pipefail
cd "$(dirname "$0")/.."
export RUSTC_BOOTSTRAP=1
# The driver library is loaded at run time and finds the sanitizer's functions in the test program.
export RUSTFLAGS="-Zsanitizer=address -Clink-arg=-Wl,--export-dynamic-symbol=__asan_*
    -Clink-arg=-Wl,--export-dynamic-symbol=__sanitizer_*"
# Memory that lives as long as the process is no leak; the driver library stays loaded on purpose.
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=0:abort_on_error=1}
# With a target named, build scripts and procedural macros go without the flag.
host=$(rustc -vV | sed -n 's/^host: //p')
[ $# -gt 0 ] || set -- --lib --tests
# Instrumented, the loops take the optimiser minutes; they are fast enough with less of it.
less=(--config profile.dev.package.cuda-emu.opt-level=1 --config profile.test.package.cuda-emu.opt-level=1)
cargo test "${less[@]}" -p cuda-emu --target "$host" --target-dir "${CARGO_TARGET_DIR:-target}/sanitize" "$@"
