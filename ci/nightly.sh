#!/usr/bin/env bash
# What takes too long for every change: all tests of the emulator, with AddressSanitizer too, the unit tests of the
# crate with it and under Miri, and each fuzz target for ten minutes. A part that fails does not end the run.
set -euo pipefail
cd "$(dirname "$0")/.."
exec ci/parts.sh -k emu emu_sanitize asan miri "fuzz 600"
