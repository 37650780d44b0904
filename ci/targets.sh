#!/usr/bin/env bash
# Checks the bare core and `text` for systems that CI does not run on: `ci/targets.sh [target...]`. `cargo check`
# needs neither a linker nor a C compiler of the target.
set -euo pipefail
cd "$(dirname "$0")/.."
. ci/std.sh
[ $# -gt 0 ] || set -- aarch64-apple-darwin x86_64-pc-windows-msvc aarch64-pc-windows-msvc aarch64-linux-android
for target in "$@"; do
    prepare_std "$target"
    for features in '' text; do
        echo "== $target, features: ${features:-none}"
        cargo check "${build_std[@]}" --target "$target" -p ottava --no-default-features --features "$features" --lib
    done
done
