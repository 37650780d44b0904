#!/usr/bin/env bash
# All that only a real card can tell, on a machine that needs neither Rust nor network.
#   ci/gpu.sh --build               here: programs, kernels and compute-sanitizer to target/gpu and target/gpu.tar.xz
#   gpu/gpu.sh --run [PART...]      there: the parts, with verdicts, and a table of what was measured
#   ci/gpu.sh --dry-run [PART...]   here: the same on the emulated card; its times mean nothing
#   ci/gpu.sh --table FOLDER        the table of a results/ folder, of several calls' files together
# `python3 -m tarfile -e gpu.tar.xz` unpacks without xz.
# Parts, the most worth first: tests benches peers model sanitizer. Each has its own time, after which what is
# left of it is reported as missing: all take 27 minutes at most, `tests sanitizer`, `benches peers` and
# `model` each less than ten. A part whose programs are not there is missing too, which --run counts as a
# failure. Tests and benches are found by name: `cuda*` of ottava, `driver_*` of cuda-emu. What the card
# answers to cuda-emu's `conformance` rows is written to the folder's golden/: commit it to
# cuda-emu/tests/golden. What is printed is in results/record-*.md, the measurements beside it; what is worth
# keeping goes to benches/record.
# llama.cpp is built there from its source (ci/llama_bench.sh) beside the first parts, and on after the script
# has ended: run `model` in a later call, or as a later part, or it is reported as missing.
# OTTAVA_CUDA_ARCHS says what card it is (90a), OTTAVA_MODEL names a real model's file, which --build packs if
# it is set there (SmolLM2's 98 MB may be more than the way to the card takes; without one it is missing), OTTAVA_LLAMA_BENCH names
# a llama-bench that is there already, OTTAVA_GPU_OUT a folder for gpu-PART.tar.gz, which has all that there
# is after each part; logs are in the folder's logs/.
set -uo pipefail
folder=$(cd "$(dirname "$0")" && pwd)
if [ "$(basename "$folder")" = ci ]; then
    cd "$folder/.."
    folder=$PWD/target/gpu
fi
parts=(tests benches peers model sanitizer)
declare -A part_seconds=([tests]=240 [benches]=300 [peers]=220 [model]=500 [sanitizer]=300)
# No program of a part takes longer.
program_seconds=300
# llama.cpp's build, and what of it the models wait for: compilers would be in the way of what is timed. A dry
# run waits for all of it, or what it shows missing would depend on how busy the machine is.
llama_build_seconds=1200
llama_wait_seconds=100
results=$folder/results
kept=${OTTAVA_GPU_OUT:-$folder}
llama_bench=${OTTAVA_LLAMA_BENCH:-$folder/llama/llama-bench}
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
    cp ci/gpu.sh benches/cuda_peers.py benches/cuda_table.py "$folder/"
    [ -z "${OTTAVA_MODEL:-}" ] || cp -L "$OTTAVA_MODEL" "$folder/real.gguf"
    git describe --always --dirty > "$folder/commit"
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
    collect_peers
    ci/llama_bench.sh --fetch "$folder/llama" \
        || { echo "without llama.cpp: its source could not be fetched"; rm -rf "$folder/llama"; }
    rm -f "$folder/cargo.json"
    # All programs have the same kernels inside: a window that holds two of them writes these once.
    XZ_OPT='-T0 --lzma2=preset=1,dict=64MiB' tar -C "$(dirname "$folder")" -cJf "$folder.tar.xz" "$(basename "$folder")"
    du -sh "$folder" "$folder.tar.xz"
}

# compute-sanitizer and the libraries that it looks for beside itself.
collect_sanitizer() {
    local toolkit
    toolkit=$(dirname "$(dirname "$(ci/cuda_toolkit.sh sanitizer)")")
    mkdir -p "$folder/sanitizer/bin" "$folder/sanitizer/lib"
    cp "$toolkit/bin/compute-sanitizer" "$toolkit/bin/libsanitizer-collection.so" "$folder/sanitizer/bin/"
    cp "$toolkit"/lib/lib{Interceptor,TreeLauncher,sanitizer}*.so "$folder/sanitizer/lib/"
}

# Peers that are Python and small; a machine with torch has what they need.
collect_peers() {
    local pip
    pip=$(dirname "$(ci/cuda_toolkit.sh)")/../../../../../../bin/pip
    [ -x "$pip" ] || pip=pip
    if ! "$pip" install --quiet --disable-pip-version-check --no-deps --no-compile --target "$folder/site" \
        'humming-kernels==0.1.19' tabulate; then
        echo "without humming-kernels: pip could not install it"
        rm -rf "$folder/site"
    fi
}

# Runs one program within what is left of its part's time: `part name command...`. Its log's end is shown if
# it fails.
part() {
    local what="$1 $2" log="$folder/logs/$1-$2.log" started=$SECONDS status=0 left=$((part_end - SECONDS))
    shift 2
    [ "$left" -gt 5 ] || { absent "$what: out of time"; return 1; }
    timeout -k 5 $((left < program_seconds ? left : program_seconds)) "$@" < /dev/null > "$log" 2>&1 || status=$?
    if [ "$status" -eq 0 ]; then
        echo "passed   $what ($((SECONDS - started)) s)"
    else
        echo "FAILED   $what (exit $status after $((SECONDS - started)) s); the end of $log:"
        tail -n 30 "$log" | sed 's/^/    /'
        failed+=("$what")
        return 1
    fi
}

# Packs what there is into one file after each part, since a machine may end a call at any time.
keep() {
    (cd "$folder" && shopt -s nullglob && tar -czf "$kept/gpu-$1.tar.gz" "${results##*/}" logs golden/*.txt)
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
    if [ -x "$folder/unit/ottava" ] && timeout 60 "$folder/unit/ottava" --list backend::cuda | grep ': test$' > /dev/null; then
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

# The kernels under each tool, by test program and names of tests. All tests under all tools take an hour;
# what the tools look at is in these.
sanitized() {
    cat <<'ROWS'
memcheck cuda the_table_agrees pages_are_copied
memcheck cuda_attention
racecheck cuda_attention
racecheck cuda the_table_agrees
synccheck cuda the_table_agrees
initcheck cuda the_table_agrees
initcheck cuda_attention
synccheck cuda_attention
ROWS
}

run_sanitizer() {
    local sanitizer=$folder/sanitizer/bin/compute-sanitizer tool program tests
    [ -x "$sanitizer" ] || sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
    [ -x "$sanitizer" ] || { absent "sanitizer: no compute-sanitizer"; return; }
    while read -r tool program tests; do
        [ -x "$folder/tests/$program" ] || { absent "$tool: no test program $program"; continue; }
        # The names are words of their own.
        # shellcheck disable=SC2206
        local command=("$folder/tests/$program" $tests --test-threads 1)
        if [ -n "$dry" ]; then
            # It watches a real driver only; but there must be tests of these names.
            part "$tool" "$program" "$sanitizer" --version
            "${command[@]}" --list | grep ': test$' > /dev/null || { absent "$tool: no tests in ${command[*]}"; continue; }
            echo "dry run: not $sanitizer --tool $tool ${command[*]}"
        else
            part "$tool" "$program" "$sanitizer" --tool "$tool" --error-exitcode 9 "${command[@]}"
        fi
    done < <(sanitized)
}

run_benches() {
    local program name found=
    for program in $(programs benches); do
        found=yes
        name=$(basename "$program")
        part benches "$name" "$program" ${dry:+--test} --bench --seconds $((part_end - SECONDS - 20)) \
            --json "$results/${name#cuda_}.jsonl"
        [ -n "$dry" ] || cat "$folder/logs/benches-$name.log"
    done
    [ -n "$found" ] || absent "benches: no target cuda* of ottava"
}

run_peers() {
    local seconds=$((part_end - SECONDS - 20))
    PYTHONPATH=$folder/site part peers torch python3 "$folder/cuda_peers.py" ${dry:+--dry-run} \
        --seconds "$seconds" --json "$results/peers.jsonl"
    # What a peer could not do is no failure of ours.
    grep '^MISSING' "$folder/logs/peers-torch.log" | sed 's/^MISSING/without /'
}

# Builds llama.cpp with what the parts leave of the processor. The lock is held as long as that takes.
start_llama() {
    [ -d "$folder/llama" ] && [ ! -x "$llama_bench" ] || return
    setsid flock -n "$folder/llama/lock" timeout -k 10 "$llama_build_seconds" nice -n 19 \
        "$folder/llama/llama_bench.sh" --build "$([ -n "$dry" ] && echo cpu || echo cuda)" \
        < /dev/null >> "$folder/logs/llama-build.log" 2>&1 &
}

# Waits for its build.
wait_for_llama() {
    if [ -d "$folder/llama" ] && ! flock -w "$llama_wait_seconds" "$folder/llama/lock" true; then
        absent "llama.cpp: its build is not over, and takes time from what follows"
    elif [ ! -x "$llama_bench" ]; then
        absent "llama.cpp: $(tail -n 1 "$folder/logs/llama-build.log" 2> /dev/null || echo "nothing has built it before")"
    fi
}

# llama.cpp's speed with the same file, in steps as long as ours: `bench_llama name file lengths`.
bench_llama() {
    local what=(-ngl 99 -ub 2048 -p "$3" -n 64 -r 2 -d 0,512)
    [ -z "$dry" ] || what=(-ngl 0 -p 8 -n 4 -r 1 -d 0,32)
    [ -x "$llama_bench" ] || return
    part model "$1-llama.cpp" "$llama_bench" -m "$2" -fa on -o json "${what[@]}" \
        && sed -n '/^\[/,/^\]/p' "$folder/logs/model-$1-llama.cpp.log" > "$results/model-$1-llama.cpp.json"
}

# What a dry run measures of a model. A real run's prompts, numbers of sequences and deepest past are there, each
# by itself, and the context and the cache of all together; an emulated card would need hours for that.
dry_measures() {
    case $1 in
        tiny-w8g128) echo "-p 512,2048,8192 --parallel 1,4,16,64 --ctx 12290 --kv-budget 80" ;;
        tiny-w8g32) echo "-p 512 -d 4096 --parallel 1" ;;
        tiny-w4g32) echo "-p 512 -d 0,64 --parallel 1,4,16,64" ;;
        *) echo "-p 8 -d 0,32 --parallel 1,3" ;;
    esac
}

# A model's speed with prompts of some lengths: `bench_model name file lengths arguments...`.
bench_model() {
    local name=$1 file=$2 what=(-p "$3" -n 64 -r 3 -d 0,512,4096 --parallel 1,4,16,64)
    shift 3
    # shellcheck disable=SC2207
    [ -z "$dry" ] || what=(-n 4 -r 1 $(dry_measures "$name"))
    part model "$name" "$folder/bin/ottava" bench --json --model "$file" --device cuda "${what[@]}" "$@" \
        && cp "$folder/logs/model-$name.log" "$results/model-$name.json"
}

# Random weights of a shape, in the file's format that becomes what is asked for.
bench_random() {
    local shape=$1 format=$2 file=q8_0 file_path=$folder/model.gguf load=()
    case $format in
        w8g128) file=f16 load=(--weights w8g128) ;;
        w4g32) file=q4_0 ;;
    esac
    part model "random-$shape-$file" "$folder/bin/random_model" "$file_path" "$shape" "$file" \
        && { bench_model "$shape-$format" "$file_path" 512,2048,8192 "${load[@]}"; bench_llama "$shape-$file" "$file_path" 512; }
    rm -f "$file_path"
}

bench_real() {
    local file=${OTTAVA_MODEL:-$folder/real.gguf}
    [ -f "$file" ] || { absent "a real model: OTTAVA_MODEL is not set, and --build has packed none"; return; }
    bench_model real "$file" 512,2048
    bench_llama real "$file" 512
}

run_model() {
    [ -x "$folder/bin/ottava" ] && [ -x "$folder/bin/random_model" ] || { absent "model: programs"; return; }
    local what cases=(1b-w8g128 8b-w8g32 8b-w8g128 8b-w4g32 1.5b-w8g128 1b-w8g32 1b-w4g32 1.5b-w8g32 1.5b-w4g32)
    [ -z "$dry" ] || cases=(tiny-w8g128 tiny-w8g32 tiny-w4g32)
    timeout 60 "$folder/bin/ottava" devices
    wait_for_llama
    bench_real
    for what in "${cases[@]}"; do
        bench_random "${what%-*}" "${what##*-}"
    done
}

run() {
    local part
    [ -d "$folder/bin" ] || { echo "no $folder: ci/gpu.sh --build makes it"; exit 1; }
    [ $# -eq 0 ] || parts=("$@")
    for part in "${parts[@]}"; do
        [ -n "${part_seconds[$part]:-}" ] || { echo "no part $part: there are ${!part_seconds[*]}"; exit 2; }
    done
    mkdir -p "$folder/logs" "$results"
    {
        echo "# $(date -u +%F), commit $(cat "$folder/commit"), ${parts[*]}${dry:+, dry run: its times mean nothing}"
        run_parts
    } 2>&1 | tee "$results/record-$(IFS=-; echo "${parts[*]}").md"
    exit "${PIPESTATUS[0]}"
}

run_parts() {
    local part
    if [ -n "$dry" ]; then
        # Programs that look for the driver find the emulator.
        mkdir -p "$folder/driver"
        ln -sf "$folder/libcuda_emu.so" "$folder/driver/libcuda.so"
        ln -sf "$folder/libcuda_emu.so" "$folder/driver/libcuda.so.1"
        export CUDA_EMU_LIBRARY=$folder/libcuda_emu.so
        # The card that --build compiles for unless told otherwise; it is slow.
        export CUDA_EMU_DEVICE=${CUDA_EMU_DEVICE:-sm_90}
        program_seconds=1800
    else
        timeout 60 nvidia-smi || absent "nvidia-smi"
        export OTTAVA_TEST_GPU=1 CUDA_EMU_TEST_GPU=1
    fi
    # Who asks for tests alone means to ask for models in a later call.
    [ "${parts[0]}" = model ] || { [ -n "$dry" ] && [[ " ${parts[*]} " != *" model "* ]]; } || start_llama
    for part in "${parts[@]}"; do
        part_end=$((SECONDS + ${part_seconds[$part]}))
        [ -z "$dry" ] || part_end=$((SECONDS + 7200))
        echo "== $part"
        if [ -n "$dry" ] && [ "$part" = model ]; then
            LD_LIBRARY_PATH=$folder/driver run_model
        else
            "run_$part"
        fi
        keep "$part"
    done
    echo
    python3 "$folder/cuda_table.py" "$results"
    echo
    echo "== ${#failed[@]} failed, ${#missing[@]} missing"
    printf 'failed:  %s\n' "${failed[@]}" | grep -v 'failed:  $'
    printf 'missing: %s\n' "${missing[@]}" | grep -v 'missing: $'
    [ ${#failed[@]} -eq 0 ] && { [ -n "$dry" ] || [ ${#missing[@]} -eq 0 ]; }
}

mode=${1:-}
shift || true
case $mode in
    --build) build ;;
    --run) run "$@" ;;
    --dry-run) dry=yes; llama_wait_seconds=$llama_build_seconds; run "$@" ;;
    --table) python3 "$([ -f "$folder/cuda_table.py" ] && echo "$folder" || echo benches)/cuda_table.py" "$@" ;;
    *) sed -n '2,23s/^# //p' "$0" >&2; exit 2 ;;
esac
