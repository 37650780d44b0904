#!/usr/bin/env python3
"""Two servers behind vllm-router, which sends a conversation to the worker that has its beginning.

usage: scale_out.py OTTAVA VLLM_ROUTER MODEL.gguf

Twenty conversations of two turns: at least nineteen second turns find their first in the cache. Then a worker is
killed, and no whole answer is lost. Fails at the first thing that is wrong.
"""
import contextlib
import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

ottava, router, model = sys.argv[1:4]
PORT = 18400
WORKERS = [f"http://127.0.0.1:{PORT + at}" for at in (1, 2)]
EVENTS = [f"tcp://127.0.0.1:{PORT + at}" for at in (11, 12)]
FRONT = f"http://127.0.0.1:{PORT}"
NAME = "served"


def ask(address, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return answer.read().decode()


def ready(address, process):
    for _ in range(600):
        with contextlib.suppress(OSError):
            ask(address)
            return
        if process.poll() is not None:
            raise SystemExit(f"{process.args[0]} ended with {process.returncode}")
        time.sleep(0.1)
    raise SystemExit(f"{address} does not answer")


def start(command):
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def chat(messages):
    answer = json.loads(ask(f"{FRONT}/v1/chat/completions", {"model": NAME, "messages": messages, "max_tokens": 8}))
    return answer["choices"][0]["message"]["content"], answer["usage"]


def finished(worker):
    lines = ask(f"{worker}/metrics").splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:request_success_total"))


processes = []
try:
    for worker, events in zip(WORKERS, EVENTS):
        port = worker.rsplit(":", 1)[1]
        processes.append(start([ottava, "serve", "-m", model, "--port", port, "--alias", NAME, "--threads", "1",
                                "--kv-events", events]))
    for worker, process in zip(WORKERS, processes):
        ready(f"{worker}/health", process)
    sources = [option for pair in zip(WORKERS, EVENTS) for option in ("--kv-event-source", "=".join(pair))]
    processes.append(start([router, "--worker-urls", *WORKERS, "--policy", "kv_aware", "--kv-event-model", NAME,
                            "--kv-event-block-size", "16", *sources, "--port", str(PORT), "--prometheus-port",
                            str(PORT + 20)]))
    ready(f"{FRONT}/health", processes[-1])
    # Its listeners connect by and by.
    time.sleep(3)

    def begin(number):
        words = " ".join(f"{number * 31 + at}" for at in range(40))
        messages = [{"role": "user", "content": f"Conversation {number}. Remember these numbers: {words}"}]
        text, usage = chat(messages)
        return messages + [{"role": "assistant", "content": text}], usage["prompt_tokens"]

    # Several at a time: the router spreads work, and has none to spread otherwise.
    with ThreadPoolExecutor(8) as clients:
        conversations = list(clients.map(begin, range(20)))
    time.sleep(1)
    spread = [finished(worker) for worker in WORKERS]
    assert min(spread) > 0, f"one worker did all: {spread}"
    found = 0
    for messages, first in conversations:
        _, usage = chat(messages + [{"role": "user", "content": "What was the first of them?"}])
        found += usage["prompt_tokens_details"]["cached_tokens"] >= 0.9 * (first - 16)
    assert found >= 19, f"{found} of 20 second turns found their first"
    print(f"scale-out: {found} of 20 second turns went where their first was; first turns {spread}")

    processes[0].kill()
    for number in range(10):
        chat([{"role": "user", "content": f"After the loss, request {number}."}])
    print("scale-out: a worker was killed, and 10 of 10 requests were answered")
finally:
    for process in processes:
        process.send_signal(signal.SIGTERM)
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        process.kill()
