#!/usr/bin/env bash
# cuda-emu, on which kernels run where there is no card: format, clippy, rustdoc and tests, with
# warnings as errors. Its bench is among all targets: `cargo test` runs each part of it once. Finally
# the tests that reach most of what is unsafe, under AddressSanitizer.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo fmt --check -p cuda-emu
cargo clippy -p cuda-emu --all-targets -- -D warnings
RUSTDOCFLAGS="-D warnings" cargo doc -p cuda-emu --no-deps
cargo test -p cuda-emu --all-targets
cargo test -p cuda-emu --doc
ci/emu_sanitize.sh --test basics --test checks --test 'driver_*' --test hopper --test hostile
