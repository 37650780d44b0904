#!/usr/bin/env bash
# A short part of every bench: the answers are asserted, the times mean little.
set -euo pipefail
cd "$(dirname "$0")/.."
# nvcc for the feature cuda; the emulated card runs the PTX of these.
NVCC=${NVCC:-$(ci/cuda_toolkit.sh)}
export NVCC OTTAVA_CUDA_ARCHS=80,90a
cargo bench --all-features \
    --bench cpu_matmul --bench cpu_attention --bench cpu_ops --bench model -- --test
