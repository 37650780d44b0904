#!/usr/bin/env bash
# The real models that tests run: fetches them into the cache (OTTAVA_CACHE) with the program itself (OTTAVA_PROGRAM, else
# what cargo builds), links them into target/test-models, and prints that folder. They are never committed.
set -euo pipefail
cd "$(dirname "$0")/.."
. ci/nvcc.env
python3 -m pip --version > /dev/null 2>&1 || ci/packages.sh python3-pip
models=$PWD/target/test-models
mkdir -p "$models"
pull() { ${OTTAVA_PROGRAM:-cargo run --release --all-features --quiet --} pull "$1"; }
ln -sfn "$(pull smollm2-135m-instruct)" "$models/smollm2.gguf"
ln -sfn "$(pull gemma3-270m)" "$models/gemma3.gguf"
echo "$models"
