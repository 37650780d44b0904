#!/usr/bin/env bash
# Licences, duplicates and sources of all crates, and known vulnerabilities, by deny.toml. The database of
# vulnerabilities comes from the network, or from the clone of https://github.com/RustSec/advisory-db that
# OTTAVA_CI_ADVISORIES names. Without either, vulnerabilities are not checked, and the output says so. cargo-deny takes
# minutes to build, so it is installed once, in the target folder.
set -euo pipefail
cd "$(dirname "$0")/.."
version=0.20.2
tools=${CARGO_TARGET_DIR:-$PWD/target}/tools
"$tools/bin/cargo-deny" --version 2> /dev/null | grep -qx "cargo-deny $version" ||
    cargo install --locked --force --root "$tools" --version "$version" cargo-deny
deny() { "$tools/bin/cargo-deny" --workspace --locked --all-features "$@"; }
deny check --hide-inclusion-graph licenses bans sources

database=https://github.com/RustSec/advisory-db
if [ -n "${OTTAVA_CI_ADVISORIES:-}" ]; then
    # cargo-deny clones the database with git, from an address of the network alone.
    export GIT_CONFIG_COUNT=1 GIT_CONFIG_VALUE_0=$database
    GIT_CONFIG_KEY_0=url.file://$(realpath "$OTTAVA_CI_ADVISORIES").insteadOf
    export GIT_CONFIG_KEY_0
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
sed "s|^\[advisories\]|&\ndb-path = \"$work\"|" deny.toml > "$work/deny.toml"
if ! deny --config "$work/deny.toml" fetch db 2> "$work/log"; then
    cat "$work/log"
    echo "NOT CHECKED: vulnerabilities, since $database cannot be fetched; OTTAVA_CI_ADVISORIES may name a clone of it"
    exit 0
fi
deny --config "$work/deny.toml" --offline check --hide-inclusion-graph advisories
