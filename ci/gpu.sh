#!/usr/bin/env bash
# All that only a real card can tell, in one call, on a machine that needs neither Rust nor network.
#   ci/gpu.sh --build     here: programs, kernels and compute-sanitizer to target/gpu and target/gpu.tar.gz
#   gpu/gpu.sh --run      there, unpacked: tests, compute-sanitizer's tools, benches, a model, with verdicts
#   ci/gpu.sh --dry-run   here: the same on the emulated card; its times mean nothing
# A part whose programs are not there is reported as missing, which --run counts as a failure. Tests
# and benches are found by name: `cuda*` of ottava, `driver_*` of cuda-emu. What the card answers to
# cuda-emu's `conformance` rows is written to the folder's golden/: commit it to cuda-emu/tests/golden.
# What is printed is in the folder's record.md: what is worth keeping goes to benches/record.
# OTTAVA_GPU_SECONDS bounds each program (300), OTTAVA_CUDA_ARCHS says what card it is (90a); logs are in
# the folder's logs/.
set -uo pipefail
folder=$(cd "$(dirname "$0")" && pwd)
if [ "$(basename "$folder")" = ci ]; then
    cd "$folder/.."
    folder=$PWD/target/gpu
fi
seconds=${OTTAVA_GPU_SECONDS:-300}
dry=
failed=()
missing=()

# The programs among cargo's artifacts whose target is of a kind and a name: `kind glob folder`.
collect() {
    mkdir -p "$folder/$3"
    python3 - "$folder/cargo.json" "$1" "$2" <<'PY' | while read -r name program; do
import fnmatch, json, sys
messages, kind, glob = sys.argv[1:]
for line in open(messages):
    message = json.loads(line)
    target = message.get("target", {})
    if message.get("executable") and kind in target["kind"] and fnmatch.fnmatch(target["name"], glob):
        print(target["name"], message["executable"])
PY
        strip -o "$folder/$3/$name" "$program" && echo "$3/$name"
    done
}

# Builds some targets of a package, if their sources are there, and notes what cargo made.
cargo_build() {
    NVCC=${NVCC:-$(ci/cuda_toolkit.sh)} cargo "$@" --message-format=json-render-diagnostics > "$folder/cargo.json" \
        || { echo "does not build: cargo $*"; exit 1; }
}

build() {
    rm -rf "$folder"
    mkdir -p "$folder"
    cp ci/gpu.sh "$folder/"
    git rev-parse --short HEAD > "$folder/commit"
    # Every program carries all kernels, and the way to a card may be narrow.
    export OTTAVA_CUDA_ARCHS=${OTTAVA_CUDA_ARCHS:-90a}
    cargo_build build --release --all-features --bin ottava --example random_model
    collect bin ottava bin
    collect example random_model bin
    cp "$(sed -nE 's/.*"OTTAVA_FATBIN","([^"]*)".*/\1/p' "$folder/cargo.json" | tail -n 1)" "$folder/kernels.fatbin"
    # Unit tests of the backend, then the targets by name.
    cargo_build test --release --all-features --no-run --lib
    collect lib ottava unit
    if compgen -G 'tests/cuda*.rs' > /dev/null; then
        cargo_build test --release --all-features --no-run --test 'cuda*'
        collect test 'cuda*' tests
    fi
    if compgen -G 'benches/cuda*.rs' > /dev/null; then
        cargo_build bench --all-features --no-run --bench 'cuda*'
        collect bench 'cuda*' benches
    fi
    cargo_build test --release -p cuda-emu --no-run --tests
    collect test 'driver_*' emulator
    collect test conformance golden
    # For --dry-run only.
    cargo_build build --release -p cuda-emu
    cp "$(python3 -c 'import json, sys
for message in map(json.loads, open(sys.argv[1])):
    for name in message.get("filenames", []):
        if name.endswith("libcuda_emu.so"): print(name)' "$folder/cargo.json" | tail -n 1)" "$folder/libcuda_emu.so"
    collect_sanitizer
    rm -f "$folder/cargo.json"
    tar -C "$(dirname "$folder")" -czf "$folder.tar.gz" "$(basename "$folder")"
    du -sh "$folder" "$folder.tar.gz"
}

# compute-sanitizer and the libraries that it looks for beside itself.
collect_sanitizer() {
    local toolkit
    toolkit=$(dirname "$(dirname "$(ci/cuda_toolkit.sh sanitizer)")")
    mkdir -p "$folder/sanitizer/bin" "$folder/sanitizer/lib"
    cp "$toolkit/bin/compute-sanitizer" "$toolkit/bin/libsanitizer-collection.so" "$folder/sanitizer/bin/"
    cp "$toolkit"/lib/lib{Interceptor,TreeLauncher,sanitizer}*.so "$folder/sanitizer/lib/"
}

# Runs one program under the time limit: `part name command...`. Its log's end is shown if it fails.
part() {
    local what="$1 $2" log="$folder/logs/$1-$2.log" started=$SECONDS status=0
    shift 2
    timeout "$seconds" "$@" > "$log" 2>&1 || status=$?
    if [ "$status" -eq 0 ]; then
        echo "passed   $what ($((SECONDS - started)) s)"
    else
        echo "FAILED   $what (exit $status after $((SECONDS - started)) s); the end of $log:"
        tail -n 30 "$log" | sed 's/^/    /'
        failed+=("$what")
    fi
}

absent() {
    echo "MISSING  $1"
    missing+=("$1")
}

programs() { find "$folder/$1" -type f -perm -u+x 2> /dev/null | sort; }

run_tests() {
    local program found=
    for program in $(programs tests); do
        found=yes
        part tests "$(basename "$program")" "$program" --nocapture --test-threads 1
    done
    [ -n "$found" ] || absent "tests: no target cuda* of ottava"
    if [ -x "$folder/unit/ottava" ] && "$folder/unit/ottava" --list backend::cuda | grep -q ': test$'; then
        part unit backend::cuda "$folder/unit/ottava" backend::cuda --nocapture
    else
        absent "unit: tests of backend::cuda in the library"
    fi
    found=
    for program in $(programs emulator); do
        found=yes
        part emulator "$(basename "$program")" "$program" --nocapture --test-threads 1
    done
    [ -n "$found" ] || absent "emulator: no target driver_* of cuda-emu"
    if [ ! -x "$folder/golden/conformance" ]; then
        absent "golden: conformance of cuda-emu"
    elif [ -n "$dry" ]; then
        part golden conformance "$folder/golden/conformance" --nocapture
    else
        CUDA_EMU_GOLDEN=$folder/golden part golden conformance "$folder/golden/conformance" --ignored record_the_card
    fi
}

run_sanitizer() {
    local sanitizer=$folder/sanitizer/bin/compute-sanitizer tool program
    [ -x "$sanitizer" ] || sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
    [ -x "$sanitizer" ] || { absent "sanitizer: no compute-sanitizer"; return; }
    [ -n "$(programs tests)" ] || { absent "sanitizer: no tests to run under it"; return; }
    for program in $(programs tests); do
        for tool in memcheck racecheck initcheck synccheck; do
            local command=("$sanitizer" --tool "$tool" --error-exitcode 9 "$program" --test-threads 1)
            if [ -n "$dry" ]; then
                # It watches a real driver only.
                part "$tool" "$(basename "$program")" "$sanitizer" --version
                echo "dry run: not ${command[*]}"
            else
                part "$tool" "$(basename "$program")" "${command[@]}"
            fi
        done
    done
}

run_benches() {
    local program found=
    for program in $(programs benches); do
        found=yes
        part benches "$(basename "$program")" "$program" ${dry:+--test} --bench
        [ -n "$dry" ] || cat "$folder/logs/benches-$(basename "$program").log"
    done
    [ -n "$found" ] || absent "benches: no target cuda* of ottava"
}

run_model() {
    [ -x "$folder/bin/ottava" ] && [ -x "$folder/bin/random_model" ] || { absent "model: programs"; return; }
    local shape shapes=(1b 8b) what=(-p 512,2048,8000 -n 128 --parallel 1,4,16,64)
    [ -z "$dry" ] || { shapes=(tiny); what=(-p 8 -n 4 -r 1 --parallel 1,3); }
    for shape in "${shapes[@]}"; do
        part model "random_$shape" "$folder/bin/random_model" "$folder/model.gguf" "$shape"
        part model "bench_$shape" "$folder/bin/ottava" bench --model "$folder/model.gguf" --device cuda "${what[@]}"
        cat "$folder/logs/model-bench_$shape.log"
    done
    rm -f "$folder/model.gguf"
}

run() {
    [ -d "$folder" ] || { echo "no $folder: ci/gpu.sh --build makes it"; exit 1; }
    mkdir -p "$folder/logs"
    echo "# $(date -u +%F), commit $(cat "$folder/commit")${dry:+, dry run: its times mean nothing}"
    if [ -n "$dry" ]; then
        # Programs that look for the driver find the emulator.
        mkdir -p "$folder/driver"
        ln -sf "$folder/libcuda_emu.so" "$folder/driver/libcuda.so"
        ln -sf "$folder/libcuda_emu.so" "$folder/driver/libcuda.so.1"
        export CUDA_EMU_LIBRARY=$folder/libcuda_emu.so
        # The card that --build compiles for unless told otherwise.
        export CUDA_EMU_DEVICE=${CUDA_EMU_DEVICE:-sm_90}
        run_tests
        run_sanitizer
        run_benches
        LD_LIBRARY_PATH=$folder/driver run_model
    else
        nvidia-smi || absent "nvidia-smi"
        export OTTAVA_TEST_GPU=1 CUDA_EMU_TEST_GPU=1
        run_tests
        run_sanitizer
        run_benches
        run_model
    fi
    echo "== ${#failed[@]} failed, ${#missing[@]} missing"
    printf 'failed:  %s\n' "${failed[@]}" | grep -v 'failed:  $'
    printf 'missing: %s\n' "${missing[@]}" | grep -v 'missing: $'
    [ ${#failed[@]} -eq 0 ] && { [ -n "$dry" ] || [ ${#missing[@]} -eq 0 ]; }
}

case ${1:-} in
    --build) build ;;
    --run) run 2>&1 | tee "$folder/record.md"; exit "${PIPESTATUS[0]}" ;;
    --dry-run) dry=yes; run 2>&1 | tee "$folder/record.md"; exit "${PIPESTATUS[0]}" ;;
    *) sed -n '2,11s/^# //p' "$0" >&2; exit 2 ;;
esac
