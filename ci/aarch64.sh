#!/usr/bin/env bash
# The NEON paths: builds for aarch64 and runs the backends' tests, and the beginning of a real
# model's, under qemu's user emulation; the CUDA emulator is compiled only. Arguments replace what is
# run: `ci/aarch64.sh --lib kv::`. Installs what is missing (Debian packages); the Rust standard
# library for the target comes from rustup where that can download, else it is built from Debian's
# rust-src of the same version.
set -euo pipefail
cd "$(dirname "$0")/.."
TARGET=aarch64-unknown-linux-gnu
tools=$PWD/target/aarch64-tools
mkdir -p "$tools"

install_packages() {
    local missing=()
    command -v aarch64-linux-gnu-gcc > /dev/null || missing+=(gcc-aarch64-linux-gnu)
    command -v qemu-aarch64 > /dev/null || missing+=(qemu-user)
    if [ ${#missing[@]} -gt 0 ]; then
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
            "${missing[@]}" libc6-dev-arm64-cross > /dev/null
    fi
}

# Prints the folder of a rust-src that matches rustc, taken from a later Debian suite without
# touching the system's own package lists.
rust_source() {
    local version
    version=$(rustc --version | cut -d' ' -f2)
    local source="$tools/rust-src/usr/src/rustc-$version"
    if [ ! -d "$source" ]; then
        local sources
        sources=$(grep -lE '^Suites: bookworm( |$)' /etc/apt/sources.list.d/*.sources | head -n 1)
        local apt=(-o "Dir::Etc::SourceList=$tools/backports.sources" -o Dir::Etc::SourceParts=/dev/null
            -o "Dir::State::Lists=$tools/lists" -o "Dir::Cache::Archives=$tools")
        mkdir -p "$tools/lists/partial" "$tools/partial"
        sed -nE '1,/^$/ s/^Suites: .*/Suites: trixie-backports/; 1,/^$/p' "$sources" > "$tools/backports.sources"
        apt-get "${apt[@]}" update -qq >&2
        local package
        package=$(apt-cache "${apt[@]}" madison rust-src | awk -v v="$version" 'index($3, v) == 1 {print $3; exit}')
        [ -n "$package" ] || { echo "no rust-src $version in Debian's backports" >&2; return 1; }
        (cd "$tools" && apt-get "${apt[@]}" download -qq "rust-src=$package" >&2)
        dpkg -x "$tools"/rust-src_*.deb "$tools/rust-src"
    fi
    echo "$source"
}

build_std=()
prepare_std() {
    if rustup target list --installed 2> /dev/null | grep -qx "$TARGET"; then return; fi
    if rustup target add "$TARGET" > /dev/null 2>&1; then return; fi
    local place
    place=$(rustc --print sysroot)/lib/rustlib/src
    if [ ! -e "$place/rust/library/Cargo.lock" ]; then
        mkdir -p "$place"
        ln -sfn "$(rust_source)" "$place/rust"
    fi
    export RUSTC_BOOTSTRAP=1
    build_std=(-Zbuild-std)
}

install_packages
prepare_std
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L /usr/aarch64-linux-gnu"
run_tests() {
    cargo test "${build_std[@]}" --target "$TARGET" --release --no-default-features "$@"
}
if [ $# -gt 0 ]; then
    run_tests "$@"
    exit
fi
# The CUDA emulator has a loop for any processor.
cargo check "${build_std[@]}" --target "$TARGET" --release -p cuda-emu
# The full table of attention shapes takes five minutes in the emulator; the others cover its paths.
run_tests --lib backend -- --skip decode_matches_f64_for_all_groups
run_tests --test op_table -- --nocapture
# A real model, shortly: ci/golden.sh has fetched it.
export OTTAVA_TEST_MODELS=${OTTAVA_TEST_MODELS:-$PWD/target/test-models}
run_tests --test golden first_case -- --nocapture
