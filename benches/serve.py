#!/usr/bin/env python3
"""The server under load, beside llama-server where that is given, in one run on one machine.

usage: serve.py OTTAVA MODEL.gguf [--llama LLAMA_SERVER] [--rounds N] [--streams N] [--seconds N] [--part NAME...]

throughput  so many streams at once, each with a prompt of its own: tokens per second of all, in turns with llama-server
first       a short request beside a long prompt: the time to its first token, in turns with llama-server
solo        so many streams without a pause for so many seconds: each answer is that of its prompt alone, nothing is
            lost, memory stays where it is
masked      so many streams that keep to a schema or a regular expression, in turns with as many that are free
bombs       the gaps between a stream's pieces beside two clients that send grammars that take long to compile
stalled     a good client's times beside 1,000 connections that send half a header and no more

The exit code is 1 if an answer differs or is lost. Times are reported, not judged.
"""
import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from statistics import median

WORDS = "river stone lantern copper orchard winter signal harbour thread meadow engine paper cloud needle garden".split()


def prompt(nonce, words):
    """A text that no other nonce begins with."""
    return f"{nonce}: " + " ".join(WORDS[(nonce * 7 + at * at) % len(WORDS)] for at in range(words))


class Server:
    """One of the two programs with a model, until the block ends."""

    def __init__(self, program, model, llama, streams, context):
        self.port = 8200 + os.getpid() % 500 + (500 if llama else 0)
        if llama:
            slots = ["-np", str(streams), "-c", str(context * streams), "-t", str(os.cpu_count()), "--no-webui"]
            self.command = [program, "-m", model, "--port", str(self.port), *slots]
        else:
            self.command = [program, "serve", "-m", model, "--port", str(self.port), "--max-sequences", str(streams)]

    async def __aenter__(self):
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, **quiet)
        for _ in range(1200):
            with contextlib.suppress(OSError, ValueError):
                if (await ask(self.port, "GET", "/health", None))[0] == 200:
                    return self
            if self.process.poll() is not None:
                raise SystemExit(f"{' '.join(self.command)} ended with {self.process.returncode}")
            await asyncio.sleep(0.1)
        raise SystemExit(f"{' '.join(self.command)} is not ready after two minutes")

    async def __aexit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def resident(self):
        """Resident bytes."""
        with open(f"/proc/{self.process.pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def send(port, method, path, body):
    """Sends a request; the reader stands behind the answer's headers."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
    data = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nconnection: close\r\n"
    writer.write(f"{head}content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data)
    status = int((await reader.readline()).split()[1])
    while (await reader.readline()).strip():
        pass
    return status, reader, writer


async def ask(port, method, path, body):
    """Status and body, as far as it is no stream."""
    status, reader, writer = await send(port, method, path, body)
    try:
        return status, await reader.read()
    finally:
        writer.close()


async def stream(port, text, tokens, times=None, **more):
    """One streamed completion: its text, the tokens counted, seconds to the first text and to the end. `times` gets the
    time of each piece."""
    body = {"prompt": text, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True,
            "stream_options": {"include_usage": True}, "cache_prompt": False, **more}
    begun = time.monotonic()
    status, reader, writer = await send(port, "POST", "/v1/completions", body)
    answer, counted, first, done = [], 0, None, False
    try:
        while line := await reader.readline():
            if not line.startswith(b"data: "):
                continue
            if line.startswith(b"data: [DONE]"):
                done = True
                break
            event = json.loads(line[6:])
            if event.get("usage"):
                counted = event["usage"]["completion_tokens"]
            for choice in event.get("choices", []):
                if choice.get("text"):
                    first = first or time.monotonic() - begun
                    answer.append(choice["text"])
                    if times is not None:
                        times.append(time.monotonic())
    finally:
        writer.close()
    if status != 200 or not done:
        raise SystemExit(f"status {status}, the stream ended early: {''.join(answer)[-80:]!r}")
    return "".join(answer), counted, first, time.monotonic() - begun


def programs(options):
    yield "ottava", options.ottava, False
    if options.llama:
        yield "llama-server", options.llama, True


def report(rows, unit):
    """Medians of each program, and their ratio."""
    names = list(rows)
    for name in names:
        print(f"  {name:13} {median(rows[name]):9.3f} {unit}   of {' '.join(f'{value:.3f}' for value in rows[name])}")
    if len(names) == 2:
        print(f"  ratio of the medians {median(rows[names[0]]) / median(rows[names[1]]):.2f}")


async def throughput(options):
    print(f"\nthroughput: {options.streams} streams at once, prompts of some 60 tokens, 64 tokens each")
    rows = {}
    for turn in range(options.rounds):
        for name, program, llama in programs(options):
            async with Server(program, options.model, llama, options.streams, 256) as server:
                await stream(server.port, "Warm up.", 8)
                begun = time.monotonic()
                nonces = [turn * 1000 + at for at in range(options.streams)]
                found = await asyncio.gather(*(stream(server.port, prompt(nonce, 25), 64) for nonce in nonces))
                seconds = time.monotonic() - begun
                rows.setdefault(name, []).append(sum(counted for _, counted, _, _ in found) / seconds)
    report(rows, "tokens/s")


async def first(options):
    print("\nfirst: the first token of a short request, sent 0.2 s behind a prompt of some 4,000 tokens")
    rows, alone = {}, {}
    for turn in range(options.rounds):
        for name, program, llama in programs(options):
            async with Server(program, options.model, llama, 4, 8192) as server:
                await stream(server.port, "Warm up.", 8)
                alone.setdefault(name, []).append((await stream(server.port, prompt(turn, 8), 8))[2])
                long = asyncio.create_task(stream(server.port, prompt(turn + 500, 1600), 8))
                await asyncio.sleep(0.2)
                rows.setdefault(name, []).append((await stream(server.port, prompt(turn + 900, 8), 8))[2])
                await long
    report(rows, "s")
    print("  the same with nothing beside it:")
    report(alone, "s")


async def masked(options):
    print(f"\nmasked: {options.streams} streams of 64 tokens, free, within a JSON schema, within a regular expression")
    rows = {}
    async with Server(options.ottava, options.model, False, options.streams, 256) as server:
        text = {"type": "string", "minLength": 400}
        schema = {"type": "object", "properties": {"text": text}, "required": ["text"], "additionalProperties": False}
        grammars = [("free", {}), ("schema", {"structured_outputs": {"json": schema}}),
                    ("regex", {"structured_outputs": {"regex": "[a-z ]*"}})]
        for _, more in grammars:
            await stream(server.port, "Warm up.", 8, **more)
        for turn in range(len(grammars) * options.rounds):
            name, more = grammars[turn % len(grammars)]
            nonces = [turn * 1000 + at for at in range(options.streams)]
            begun = time.monotonic()
            found = await asyncio.gather(*(stream(server.port, prompt(nonce, 25), 64, **more) for nonce in nonces))
            seconds = time.monotonic() - begun
            rows.setdefault(name, []).append(sum(counted for _, counted, _, _ in found) / seconds)
    report(rows, "tokens/s")
    print(f"  schema {median(rows['schema']) / median(rows['free']):.3f} and regex "
          f"{median(rows['regex']) / median(rows['free']):.3f} of free")


async def solo(options):
    print(f"\nsolo: {options.streams} streams for {options.seconds} s")
    async with Server(options.ottava, options.model, False, options.streams, 256) as server:
        nonces = range(options.streams * 2)
        expected = {nonce: (await stream(server.port, prompt(nonce, 25), 32))[0] for nonce in nonces}
        end, answers, sizes = time.monotonic() + options.seconds, [0], []

        async def client(at):
            nonce = at
            while time.monotonic() < end:
                text = (await stream(server.port, prompt(nonce, 25), 32))[0]
                if text != expected[nonce]:
                    raise SystemExit(f"prompt {nonce}: {text!r} among others, {expected[nonce]!r} alone")
                answers[0] += 1
                nonce = (nonce + 17) % len(expected)

        async def weigh():
            while time.monotonic() < end:
                sizes.append(server.resident())
                await asyncio.sleep(max(1, options.seconds / 20))

        await asyncio.gather(weigh(), *(client(at) for at in range(options.streams)))
        spread = " ".join(f"{size / 2**20:.0f}" for size in sizes)
        print(f"  {answers[0]} answers, all as alone; resident MiB over time: {spread}")


def attack(port, first, ended, results):
    """Sends grammars that take long, one after the other, until it is ended: the status and the seconds of each, and
    None behind the last."""
    references = {f"d{at}": {"allOf": [{"$ref": f"#/$defs/d{at + 1}"}]} for at in range(5000)}
    grammars = [{"regex": "((a{1,1000}){1,1000}){1,1000}"}, {"regex": "(a|b?)" * 2500}, {"regex": "(a|b?)" * 20000},
                {"json": {"enum": [f"value-{at}" for at in range(20000)]}},
                {"json": {"type": "string", "pattern": "(a|b?)" * 20000}},
                {"json": {"anyOf": [{"properties": {f"key{at}": {"type": "string"}}} for at in range(2000)]}},
                {"json": {"$ref": "#/$defs/d0", "$defs": references}},
                {"grammar": "start: " + "\"a\"? " * 5000}, {"grammar": "start: T\nT: " + "\"a\" | " * 4000 + "\"a\""}]
    at = first
    try:
        while not ended.is_set():
            body = {"prompt": "a", "max_tokens": 1, "structured_outputs": grammars[at % len(grammars)]}
            begun = time.monotonic()
            status, _ = asyncio.run(ask(port, "POST", "/v1/completions", body))
            results.put((status, time.monotonic() - begun))
            at += 1
    finally:
        results.put(None)


async def bombs(options):
    print("\nbombs: gaps between the pieces of 8 streams of 800 tokens, ms")
    async with Server(options.ottava, options.model, False, 64, 256) as server:
        async def gaps():
            streams = [[] for _ in range(8)]
            await asyncio.gather(*(stream(server.port, prompt(at, 8), 800, times) for at, times in enumerate(streams)))
            found = sorted(b - a for times in streams for a, b in zip(times, times[1:]))
            return found[len(found) // 2] * 1000, found[len(found) * 99 // 100] * 1000

        # The vocabulary is read for the first grammar.
        await stream(server.port, "Warm up.", 8, structured_outputs={"regex": "[a-z ]*"})
        alone = await gaps()
        # Processes of their own: the gaps are the server's.
        ended, results = multiprocessing.Event(), multiprocessing.Queue()
        for first in (0, 4):
            multiprocessing.Process(target=attack, args=(server.port, first, ended, results), daemon=True).start()
        beside = await gaps()
        ended.set()
        found = [*iter(results.get, None), *iter(results.get, None)]
        refused, seconds = sum(status == 400 for status, _ in found), [seconds for _, seconds in found]
        if any(status not in (200, 400) for status, _ in found):
            raise SystemExit(f"other statuses than 200 and 400: {found}")
        print(f"  median {alone[0]:.2f} alone, {beside[0]:.2f} beside: {beside[0] / alone[0]:.2f} times; 99th percentile "
              f"{alone[1]:.2f} and {beside[1]:.2f}: {beside[1] / alone[1]:.2f} times")
        print(f"  {len(found)} bombs, {refused} refused; answers after {median(seconds):.2f} s, the slowest "
              f"{max(seconds):.2f} s")


def stall_all(port):
    """A thousand clients that send half a header, and again when they are cut."""
    async def stall(at):
        await asyncio.sleep(at / 500)
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: 127")
                await reader.read()
                writer.close()

    async def all_of_them():
        await asyncio.gather(*(stall(at) for at in range(1000)))

    asyncio.run(all_of_them())


async def stalled(options):
    print("\nstalled: a good client's whole answers of 8 tokens, one after the other, s")
    async with Server(options.ottava, options.model, False, 64, 256) as server:
        async def good(count=200):
            times = sorted([(await stream(server.port, prompt(at, 8), 8))[3] for at in range(count)])
            return times[count // 2], times[count * 99 // 100]

        await good(20)
        alone = await good()
        # A process of their own: the good client's times are the server's.
        others = multiprocessing.Process(target=stall_all, args=(server.port,), daemon=True)
        others.start()
        await asyncio.sleep(3)
        beside = await good()
        others.kill()
        print(f"  median {alone[0]:.4f} alone, {beside[0]:.4f} beside 1,000 stalled; 99th percentile {alone[1]:.4f} and "
              f"{beside[1]:.4f}: {beside[1] / alone[1]:.2f} times")


PARTS = {"throughput": throughput, "first": first, "masked": masked, "solo": solo, "bombs": bombs, "stalled": stalled}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ottava")
    parser.add_argument("model")
    parser.add_argument("--llama", metavar="LLAMA_SERVER")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS))
    options = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores, {os.path.basename(options.model)}")
    for name in options.part:
        asyncio.run(PARTS[name](options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
