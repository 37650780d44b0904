#!/usr/bin/env bash
# The real server with a real model, driven by common clients (Python and JavaScript), by a browser, and by random
# requests generated from its OpenAPI description. Fetches the model and the clients.
set -euo pipefail
cd "$(dirname "$0")/.."
. ci/nvcc.env
clients=$PWD/target/server-clients
python3 -c 'import venv, ensurepip' 2> /dev/null || ci/packages.sh python3-venv
[ -x "$clients/python/bin/python" ] || python3 -m venv "$clients/python"
"$clients/python/bin/pip" install -q openai anthropic litellm langchain-openai langchain-anthropic instructor schemathesis vllm-router jsonschema
# Without its dependencies, which run models; only its schema files are used.
"$clients/python/bin/pip" install -q --no-deps bfcl-eval
if command -v npm > /dev/null; then
    cp ci/server/package.json ci/server/package-lock.json ci/server/*.mjs "$clients/"
    # The versions and hashes of the lock file; `npm update` in ci/server raises them.
    npm ci --silent --no-fund --no-audit --ignore-scripts --prefix "$clients" > /dev/null
fi
browser() { command -v chromium-headless-shell || command -v chromium || command -v google-chrome; }
browser > /dev/null || ci/packages.sh chromium-headless-shell || true

cargo build --release --all-features
log=$clients/server.log
server=
trap '[ -z "$server" ] || kill $server 2> /dev/null || true' EXIT
# Starts a server with these options; `address` is where it answers.
start() {
    # Removes the address of the previous run.
    : > "$log"
    OTTAVA_API_KEY=test-key target/release/ottava serve --port 0 --max-sequences 64 --request-timeout 50 "$@" > "$log" 2> "$log.err" &
    server=$!
    for _ in $(seq 600); do
        address=$(sed -n 's/^\(http:.*\)$/\1/p' "$log")
        [ -z "$address" ] || return 0
        kill -0 $server || break
        sleep 0.1
    done
    cat "$log.err"
    exit 1
}
stop() {
    kill -TERM $server
    wait $server
    echo "the server stopped in order"
}
with_node() { command -v node > /dev/null && [ -f "$clients/clients.mjs" ]; }

start
export LITELLM_LOCAL_MODEL_COST_MAP=True
"$clients/python/bin/python" ci/server/clients.py "$address" test-key
"$clients/python/bin/python" ci/server/schemas.py "$address" test-key 40
if with_node; then
    (cd "$clients" && node clients.mjs "$address" test-key)
    if browser=$(browser); then
        (cd "$clients" && node page.mjs "$address" test-key "$browser")
    else
        echo "not checked: the page, since no browser could be installed"
    fi
else
    echo "not checked: JavaScript's clients and the page, since there is no node"
fi
stop
# No request makes an internal server error. A short context keeps answers short.
start --ctx 256
(cd "$clients" && python/bin/schemathesis run "$address/openapi.json" --url "$address" -H 'Authorization: Bearer test-key' \
    --checks not_a_server_error --max-examples 2 --workers 2 --request-timeout 60 --seed 1 --no-color)
stop
# The model's own template does not support tools.
start --chat-template ci/server/tools.jinja
"$clients/python/bin/python" ci/server/tools.py "$address" test-key
! with_node || (cd "$clients" && node tools.mjs "$address" test-key)
stop
# Two servers behind a router; one of them is killed.
"$clients/python/bin/python" ci/server/scale_out.py target/release/ottava "$clients/python/bin/vllm-router" smollm2-135m-instruct
