#!/usr/bin/env bash
# Packages outside the workspace use the library as services do, with the library's minimum Rust where that is
# installed: what they embed, without the feature `unstable`, and then their tests.
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
    # A target folder for both: they have most of their dependencies in common.
    where=(--manifest-path "$package/Cargo.toml" --target-dir "${CARGO_TARGET_DIR:-target}/dependent")
    # Without what the tests enable: the tiny model's file is written with what may change.
    RUSTFLAGS="-D warnings" cargo "${toolchain[@]}" check "${where[@]}"
    cargo "${toolchain[@]}" test "${where[@]}" -- --show-output
done
