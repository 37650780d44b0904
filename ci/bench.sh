#!/usr/bin/env bash
# A short run of every bench: answers are asserted, times are not meaningful.
set -euo pipefail
cd "$(dirname "$0")/.."
. ci/nvcc.env
cargo bench --all-features \
    --bench cpu_matmul --bench cpu_attention --bench cpu_ops --bench model \
    --bench cuda_kernels -- --test
for selection in --switches --profile; do
    cargo bench --all-features --bench cuda_kernels -- --test $selection
done
# A dry run of the benches against other programs, which covers everything but torch.
python3 benches/cuda_peers.py --dry-run "a card" > /dev/null
python3 benches/cuda_table.py --self-test
