#!/usr/bin/env bash
# cuda-emu, which runs kernels without a GPU: format, clippy, rustdoc and tests, with warnings as errors. All
# targets include its bench, each part of which `cargo test` runs once. ci/emu_sanitize.sh runs the tests under
# AddressSanitizer, by night.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo fmt --check -p cuda-emu
cargo clippy -p cuda-emu --all-targets -- -D warnings
RUSTDOCFLAGS="-D warnings" cargo doc -p cuda-emu --no-deps
# Tests spend their time in the interpreter, which is some fifty times slower without the optimiser.
fast=(--config profile.dev.package.cuda-emu.opt-level=3 --config profile.test.package.cuda-emu.opt-level=3)
cargo test "${fast[@]}" -p cuda-emu --all-targets
cargo test "${fast[@]}" -p cuda-emu --doc
