#!/usr/bin/env bash
# What the compiler has made of the kernels, held against ci/sass.table: registers, shared memory, no
# spills, and the instructions that each must and must not have, for every architecture that ships.
#   ci/sass.sh             checks
#   ci/sass.sh --figures   prints what it found instead, to write rows from
# A kernel without a row fails, and so does a row without a kernel. Needs neither a card nor a driver.
set -euo pipefail
cd "$(dirname "$0")/.."
NVCC=${NVCC:-$(ci/cuda_toolkit.sh)}
export NVCC
unset OTTAVA_CUDA_ARCHS
folder=target/sass
mkdir -p "$folder"

# cuobjdump stands beside nvcc in a toolkit and among the wheels of ci/cuda_toolkit.sh.
cuobjdump=$(dirname "$NVCC")/cuobjdump
[ -x "$cuobjdump" ] || cuobjdump=$(dirname "$(ci/cuda_toolkit.sh)")/cuobjdump
# Release: the profile that ships.
cargo check --quiet --release --no-default-features --features cuda --message-format=json-render-diagnostics > "$folder/cargo.json"
image=$(sed -nE 's/.*"OTTAVA_FATBIN","([^"]*)".*/\1/p' "$folder/cargo.json" | tail -n 1)
[ -s "$image" ] || { echo "cargo has named no fat binary"; exit 1; }
"$cuobjdump" --dump-resource-usage "$image" > "$folder/usage.txt"
"$cuobjdump" -sass "$image" > "$folder/sass.txt"

gate() { awk -v figures="${2:-}" -f ci/sass.awk "$1" "$folder/usage.txt" "$folder/sass.txt"; }
if [ "${1:-}" = --figures ]; then
    gate ci/sass.table yes | sort
    exit
fi
gate ci/sass.table

# A gate that lets everything through would say the same: so it must stop these.
must_stop() {
    gate "$folder/broken.table" > "$folder/broken.txt" && { echo "the gate lets through: $1"; exit 1; }
    grep -q "$2" "$folder/broken.txt" || { echo "the gate stopped for another reason: $1"; cat "$folder/broken.txt"; exit 1; }
}
sed -E 's/^(rms_norm +[^ ]+ +)[0-9]+/\18/' ci/sass.table > "$folder/broken.table"
must_stop "too many registers" 'rms_norm.* registers'
sed '/^rms_norm /d' ci/sass.table > "$folder/broken.table"
must_stop "a kernel without a row" 'rms_norm.* no row'
sed -E 's/^rms_norm .*/& HGMMA/' ci/sass.table > "$folder/broken.table"
must_stop "a missing instruction" 'rms_norm.* HGMMA'
sed -E 's/^rms_norm .*/& !MUFU/' ci/sass.table > "$folder/broken.table"
must_stop "a forbidden instruction" 'rms_norm.* MUFU'
(cat ci/sass.table; echo 'gone * 8 0') > "$folder/broken.table"
must_stop "a row without a kernel" 'gone.* no kernel'
