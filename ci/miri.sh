#!/usr/bin/env bash
# Unit tests under Miri, which finds undefined behaviour that no sanitizer sees: `ci/miri.sh [names of tests]`.
# By default, the modules that it can run in minutes: Miri is some thousand times slower than native code, and
# supports neither most vector instructions nor mapped files nor spinning threads. Needs a nightly toolchain
# with the components `miri` and `rust-src`.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo +nightly miri --version > /dev/null 2>&1 || {
    echo "Miri is missing: rustup toolchain install nightly --component miri --component rust-src"
    exit 1
}
[ $# -gt 0 ] || set -- kv:: graph:: quant::tests checkpoint:: text::stop text::detokenize text::bpe
# No isolation, because tests write files and read the clock. Property tests run few cases.
export MIRIFLAGS=${MIRIFLAGS:--Zmiri-disable-isolation} PROPTEST_CASES=${PROPTEST_CASES:-2}
cargo +nightly miri test -p ottava --no-default-features --features text --lib \
    --config profile.test.package.ottava.debug-assertions=true --target-dir "${CARGO_TARGET_DIR:-target}/miri" -- "$@"
