#!/usr/bin/env bash
# The CUDA backend's tests on an emulated Hopper card: `ci/sm90.sh [arguments of cargo test]`. Default: all.
set -euo pipefail
cd "$(dirname "$0")/.."
. ci/nvcc.env
export CUDA_EMU_DEVICE=sm_90
[ $# -gt 0 ] || {
    ci/sm90.sh --lib backend::cuda
    set -- --test 'cuda*'
}
exec cargo test --release --all-features "$@"
