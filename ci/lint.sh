#!/usr/bin/env bash
# Format, clippy and rustdoc, with warnings as errors; of the library without features too, and of
# what docs.rs makes of the feature cuda, which has no nvcc. No kernel is compiled here.
set -euo pipefail
cd "$(dirname "$0")/.."
export DOCS_RS=1
cargo fmt --check
for package in fuzz tests/dependent examples/axum_sse; do
    cargo fmt --check --manifest-path "$package/Cargo.toml"
done
cargo clippy --all-features --all-targets -- -D warnings
cargo clippy -p ottava --no-default-features --all-targets -- -D warnings
# What services embed. Tests enable `unstable`, so they are no part of it.
cargo clippy -p ottava -- -D warnings
# Nothing is linked, so the fuzzer's own C++ need not be compiled.
CUSTOM_LIBFUZZER_PATH=$PWD/target/libfuzzer.a cargo clippy --manifest-path fuzz/Cargo.toml --target-dir "${CARGO_TARGET_DIR:-target}" -- -D warnings
RUSTDOCFLAGS="-D warnings" cargo doc --all-features --no-deps
