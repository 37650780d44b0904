#!/usr/bin/env bash
# Packages outside the workspace that use the library as services do, with the library's minimum Rust if it is
# installed: checked without the feature `unstable`, then tested.
set -euo pipefail
cd "$(dirname "$0")/.."
rust=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' tests/dependent/Cargo.toml)
toolchain=()
if rustc "+$rust" --version; then
    toolchain=("+$rust")
else
    echo "NOT CHECKED: dependents with Rust $rust; rustup toolchain install $rust --profile minimal"
fi
for package in tests/dependent examples/axum_sse; do
    # One target folder for both, because they share most of their dependencies.
    where=(--manifest-path "$package/Cargo.toml" --target-dir "${CARGO_TARGET_DIR:-target}/dependent")
    # Checked without the tests' feature `unstable`, which writes the tiny model's file.
    RUSTFLAGS="-D warnings" cargo "${toolchain[@]}" check "${where[@]}"
    cargo "${toolchain[@]}" test "${where[@]}" -- --show-output
done
