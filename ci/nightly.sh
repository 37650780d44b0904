#!/usr/bin/env bash
# What takes too long for every change: the goldens and all tests, whatever has changed; all tests of the emulator, with
# AddressSanitizer too; all of the CUDA backend's on the second card; the crate's unit tests with AddressSanitizer and
# under Miri; the documents' examples with all features; the public interface; machine code, benches, dependents, NEON
# and all foreign systems; each fuzz target for ten minutes. A part that fails does not end the run.
set -euo pipefail
cd "$(dirname "$0")/.."
# No commit: all may have changed.
export OTTAVA_CI_BASE=none
exec ci/parts.sh -k golden test emu emu_sanitize sm90 asan miri doctest semver sass bench dependent aarch64 targets "fuzz 600"
