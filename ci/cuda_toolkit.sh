#!/usr/bin/env bash
# nvcc and its disassemblers from Python wheels; prints nvcc's path.
#   export NVCC=$(ci/cuda_toolkit.sh)
# `ci/cuda_toolkit.sh sanitizer` fetches compute-sanitizer too, for a machine with a GPU. All wheels are installed
# once, into target/cuda-venv or the Python environment OTTAVA_CUDA_VENV. The release is 13.0, because PTX of a
# later nvcc needs a driver later than 580, and ci/sass.table is for one compiler. The disassemblers have no
# wheels of that release.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${OTTAVA_CUDA_VENV:-$PWD/target/cuda-venv}
wheels=('nvidia-cuda-nvcc==13.0.*' 'nvidia-cuda-crt==13.0.*' 'nvidia-nvvm==13.0.*'
    'nvidia-cuda-runtime==13.0.*' 'nvidia-cuda-cccl==13.0.*'
    'nvidia-cuda-cuobjdump==13.2.*' 'nvidia-cuda-nvdisasm==13.2.*')
case ${1:-} in
    '') ;;
    sanitizer) wheels+=('nvidia-cuda-sanitizer-api==13.0.*') ;;
    *) echo "usage: ci/cuda_toolkit.sh [sanitizer]" >&2; exit 2 ;;
esac

make_venv() {
    [ -x "$venv/bin/pip" ] && return
    python3 -c 'import ensurepip' 2> /dev/null || ci/packages.sh python3-venv >&2
    python3 -m venv "$venv" >&2
}

# nvcc preprocesses with the host's compiler.
command -v g++ > /dev/null || { echo "nvcc needs g++: apt-get install g++" >&2; exit 1; }
# Concurrent parts of CI take turns.
mkdir -p "$(dirname "$venv")"
exec 8> "$(dirname "$venv")/cuda-venv.lock"
flock 8
# One line per wheel that an earlier call has installed.
stamp=$venv/ottava-wheels
missing=()
for wheel in "${wheels[@]}"; do
    grep -qsxF "$wheel" "$stamp" || missing+=("$wheel")
done
if [ ${#missing[@]} -gt 0 ]; then
    make_venv
    "$venv/bin/pip" install --quiet --disable-pip-version-check "${missing[@]}" >&2
    printf '%s\n' "${missing[@]}" >> "$stamp"
fi
toolkit=("$venv"/lib/python3.*/site-packages/nvidia/cu13)
chmod +x "${toolkit[0]}"/bin/*
[ -x "${toolkit[0]}/bin/nvcc" ] || { echo "expected nvcc in ${toolkit[0]}/bin" >&2; exit 1; }
echo "${toolkit[0]}/bin/nvcc"
