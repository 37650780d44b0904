#!/usr/bin/env bash
# A short part of every bench: the answers are asserted, the times mean little.
set -euo pipefail
cd "$(dirname "$0")/.."
. ci/nvcc.env
cargo bench --all-features \
    --bench cpu_matmul --bench cpu_attention --bench cpu_ops --bench model \
    --bench cuda_kernels -- --test
# What runs beside a card goes through all but torch.
python3 benches/cuda_peers.py --dry-run > /dev/null
