#!/usr/bin/env bash
# Compiles the test kernels to the PTX in tests/ptx, which is committed: tests need no compiler.
# Needs nvcc of CUDA 13.0 in PATH, or its path in NVCC.
set -euo pipefail
cd "$(dirname "$0")"
compile() { "${NVCC:-nvcc}" -std=c++17 -O3 -lineinfo -ptx "$@"; }
compile -arch=sm_80 llm.cu -o ../ptx/llm.sm_80.ptx
compile -arch=sm_80 -DMISSING_BARRIER llm.cu -o ../ptx/llm_missing_barrier.sm_80.ptx
compile -arch=sm_90a hopper.cu -o ../ptx/hopper.sm_90a.ptx
