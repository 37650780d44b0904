#!/usr/bin/env bash
# The bare core: it builds and passes its tests without default features, with few dependencies. Also checks the
# error of the feature cuda without nvcc, and the library's minimum Rust.
set -euo pipefail
cd "$(dirname "$0")/.."
CRATES_MAX=40
# The backends do not depend on features, and ci/test.sh tests them. The rest needs no optimiser.
profile=profile.test.package.ottava
cargo test -p ottava --no-default-features --config $profile.opt-level=0 --config $profile.debug-assertions=true \
    --lib -- --skip backend::
crates=$(cargo tree -p ottava --no-default-features --edges normal,build --prefix none --no-dedupe | sort -u | wc -l)
echo "the bare core builds with $crates crates, ottava itself included"
[ "$crates" -lt "$CRATES_MAX" ] || { echo "expected fewer than $CRATES_MAX crates"; exit 1; }

# docs.rs needs no nvcc, as ci/lint.sh shows. Elsewhere the build fails with one line on how to get it.
without_nvcc() { env -u NVCC -u CUDA_HOME -u CUDA_PATH -u OTTAVA_CUDA_VENV -u DOCS_RS "$@"; }
if command -v nvcc || compgen -G '/usr/local/cuda/bin/nvcc' || compgen -G '.cuda-venv/lib/*/site-packages/nvidia/cu13/bin/nvcc'; then
    echo "not checked: what a build without nvcc says, since there is one where every build looks"
else
    said=$(without_nvcc cargo check --all-features 2>&1) && { echo "expected no build without nvcc"; exit 1; }
    [ "$(grep -c '^error: ottava' <<< "$said")" = 1 ] \
        && grep '^error: ottava.*needs nvcc.*CUDA_HOME.*pip install.*OTTAVA_CUDA_VENV' <<< "$said" \
        || { echo "expected one line that says how to get nvcc, found: $said"; exit 1; }
fi

# The library's minimum Rust, as a dependent would build it; the features that need nvcc included, without kernels.
rust=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
if rustc "+$rust" --version; then
    DOCS_RS=1 cargo "+$rust" check -p ottava --all-features --target-dir "${CARGO_TARGET_DIR:-target}/rust-$rust"
else
    echo "NOT CHECKED: whether the library builds with Rust $rust; rustup toolchain install $rust --profile minimal"
fi
