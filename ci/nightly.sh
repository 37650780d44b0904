#!/usr/bin/env bash
# Checks that take too long for every change: the goldens and all tests, whatever has changed; all tests of the
# emulator, also with AddressSanitizer; all of the CUDA backend's on the second emulated GPU; the crate's unit tests
# with AddressSanitizer and under Miri; documentation examples with all features; the public interface; machine code,
# benches, dependents, NEON and all foreign systems; licences, sources and vulnerabilities of dependencies, and the
# program's bill of materials; each fuzz target for ten minutes. A failed part does not end the run.
set -euo pipefail
cd "$(dirname "$0")/.."
# Not a commit, so that everything counts as changed.
export OTTAVA_CI_BASE=none
exec ci/parts.sh -k golden test emu emu_sanitize sm90 asan miri doctest semver sass bench dependent aarch64 targets \
    deny sbom "fuzz 600"
