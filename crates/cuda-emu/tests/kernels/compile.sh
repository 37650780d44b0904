#!/usr/bin/env bash
# Compiles the test kernels to the PTX in tests/ptx, which is committed: tests need no compiler.
# Needs nvcc of CUDA 13.0 in PATH, or its path in NVCC.
set -euo pipefail
cd "$(dirname "$0")"

# compile NAME ARCH: file names in the PTX lose their folders, which are this machine's.
compile() {
    "${NVCC:-nvcc}" -std=c++17 -O3 -lineinfo -ptx -arch="$2" "$1.cu" -o "../ptx/$1.$2.ptx"
    sed -i -E '/^\s*\.file/ s|"[^"]*/|"|' "../ptx/$1.$2.ptx"
}

compile llm sm_80
compile hopper sm_90a
compile model sm_80
compile wide sm_90a
compile bugs sm_90a
compile scale sm_80
