#!/usr/bin/env bash
# The real models of tests: fetches them into the cache (OTTAVA_CACHE) with `ottava pull`, links them into
# target/test-models, and prints that folder. They are never committed. OTTAVA_PROGRAM is a program that is built
# already; cargo would wait for other builds.
set -euo pipefail
cd "$(dirname "$0")/.."
. ci/nvcc.env
python3 -I -m pip --version > /dev/null 2>&1 || ci/packages.sh python3-pip
models=$PWD/target/test-models
mkdir -p "$models"
pull() {
    if [ -n "${OTTAVA_PROGRAM:-}" ]; then
        "$OTTAVA_PROGRAM" pull "$1"
    else
        cargo run --release --all-features --quiet -- pull "$1"
    fi
}
ln -sfn "$(pull smollm2-135m-instruct)" "$models/smollm2.gguf"
ln -sfn "$(pull gemma3-270m)" "$models/gemma3.gguf"
echo "$models"
