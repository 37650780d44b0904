#!/usr/bin/env bash
# Installs Debian packages: `ci/packages.sh package...`. Concurrent parts of CI take turns.
set -euo pipefail
exec 9> "${TMPDIR:-/tmp}/ottava-packages.lock"
flock 9
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" > /dev/null
