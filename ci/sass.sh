#!/usr/bin/env bash
# Machine code of the kernels, checked against ci/sass.table for every architecture that ships: registers, shared
# memory, no spills, instructions that each kernel must and must not have, and the instruction counts of its main
# loops.
#   ci/sass.sh             checks
#   ci/sass.sh --figures   prints the table with the current figures, to paste rows from
# A kernel without a row fails, and so does a row without a kernel. Needs neither a GPU nor a driver.
set -euo pipefail
cd "$(dirname "$0")/.."
NVCC=${NVCC:-$(ci/cuda_toolkit.sh)}
export NVCC
unset OTTAVA_CUDA_ARCHS
folder=target/sass
mkdir -p "$folder"

# cuobjdump is next to nvcc in a toolkit and among the wheels of ci/cuda_toolkit.sh.
cuobjdump=$(dirname "$NVCC")/cuobjdump
[ -x "$cuobjdump" ] || cuobjdump=$(dirname "$(ci/cuda_toolkit.sh)")/cuobjdump
# Runs the build script as cargo does for a release; nothing else is compiled.
mkdir -p "$folder/out"
rustc --edition 2024 -o "$folder/build-script" build.rs
image=$(CARGO_FEATURE_CUDA=1 PROFILE=release OUT_DIR=$PWD/$folder/out CARGO_MANIFEST_DIR=$PWD NUM_JOBS=$(nproc) \
    "$folder/build-script" | tee "$folder/build.log" | sed -n 's/^cargo::rustc-env=OTTAVA_FATBIN=//p')
[ -s "$image" ] || { tail -n 40 "$folder/build.log"; echo "the build script has named no fat binary"; exit 1; }
"$cuobjdump" --dump-resource-usage "$image" > "$folder/usage.txt"
"$cuobjdump" -sass "$image" > "$folder/sass.txt"

python3 ci/sass.py ci/sass.table "$folder/usage.txt" "$folder/sass.txt" "$@"
[ "${1:-}" != --figures ] || exit 0
# The predicted times on a GPU follow from the loops: all kernels of the prediction have rows.
python3 benches/cuda_predict --check
python3 benches/cuda_predict > "$folder/predicted.md"
