#!/usr/bin/env bash
# cuda-emu, on which kernels run where there is no card: format, clippy, rustdoc and tests, with
# warnings as errors. Its bench is among all targets: `cargo test` runs each part of it once. ci/emu_sanitize.sh runs
# the tests under AddressSanitizer, by night.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo fmt --check -p cuda-emu
cargo clippy -p cuda-emu --all-targets -- -D warnings
RUSTDOCFLAGS="-D warnings" cargo doc -p cuda-emu --no-deps
# The interpreter is its tests' run time: unoptimised it is some fifty times slower.
fast=(--config profile.dev.package.cuda-emu.opt-level=3 --config profile.test.package.cuda-emu.opt-level=3)
cargo test "${fast[@]}" -p cuda-emu --all-targets
cargo test "${fast[@]}" -p cuda-emu --doc
