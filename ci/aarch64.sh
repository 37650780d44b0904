#!/usr/bin/env bash
# The NEON paths: builds for aarch64, then runs the backends' tests and the first case of a real model under
# qemu's user emulation. The CUDA emulator is only compiled. Arguments replace the default tests:
# `ci/aarch64.sh --lib kv::`. Installs missing Debian packages.
set -euo pipefail
cd "$(dirname "$0")/.."
TARGET=aarch64-unknown-linux-gnu
. ci/std.sh

install_packages() {
    local missing=()
    command -v aarch64-linux-gnu-gcc > /dev/null || missing+=(gcc-aarch64-linux-gnu)
    command -v qemu-aarch64 > /dev/null || missing+=(qemu-user)
    [ ${#missing[@]} -eq 0 ] || ci/packages.sh "${missing[@]}" libc6-dev-arm64-cross
}

install_packages
prepare_std "$TARGET"
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L /usr/aarch64-linux-gnu"
# No CUDA kernel runs here, so cuda-emu needs no optimiser. LTO: as in Cargo.toml's [profile.dev].
quick=(--config profile.release.package.cuda-emu.opt-level=0 --config 'profile.release.lto="off"')
run_tests() {
    cargo test "${build_std[@]}" "${quick[@]}" --target "$TARGET" --release -p ottava --no-default-features "$@"
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
# The first case of a real model.
OTTAVA_TEST_MODELS=${OTTAVA_TEST_MODELS:-$(ci/models.sh)}
export OTTAVA_TEST_MODELS
run_tests --test golden first_case -- --nocapture
