#!/usr/bin/env bash
# README's second command as it stands: all tests, optimised and with assertions.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo test "$@"
