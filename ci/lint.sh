#!/usr/bin/env bash
# Format, clippy and rustdoc, with warnings as errors, also of the library without features. The feature cuda is
# built as on docs.rs, without nvcc and kernels.
set -euo pipefail
cd "$(dirname "$0")/.."
export DOCS_RS=1
cargo fmt --check
for package in fuzz tests/dependent examples/axum_sse; do
    cargo fmt --check --manifest-path "$package/Cargo.toml"
done
cargo clippy --all-features --all-targets -- -D warnings
cargo clippy -p ottava --no-default-features --all-targets -- -D warnings
# The library as services embed it, without tests, which would enable `unstable`.
cargo clippy -p ottava -- -D warnings
# Nothing is linked, so the fuzzer's own C++ need not be compiled.
CUSTOM_LIBFUZZER_PATH=$PWD/target/libfuzzer.a cargo clippy --manifest-path fuzz/Cargo.toml --target-dir "${CARGO_TARGET_DIR:-target}" -- -D warnings
RUSTDOCFLAGS="-D warnings" cargo doc --all-features --no-deps
