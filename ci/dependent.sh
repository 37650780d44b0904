#!/usr/bin/env bash
# A package outside the workspace uses the library as a service does, with the library's minimum Rust where that is
# installed.
set -euo pipefail
cd "$(dirname "$0")/.."
rust=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' tests/dependent/Cargo.toml)
target=${CARGO_TARGET_DIR:-target}/dependent
if rustc "+$rust" --version; then
    cargo "+$rust" test --manifest-path tests/dependent/Cargo.toml --target-dir "$target"
else
    echo "NOT CHECKED: dependents with Rust $rust; rustup toolchain install $rust --profile minimal"
    cargo test --manifest-path tests/dependent/Cargo.toml --target-dir "$target"
fi
