#!/usr/bin/env python3
"""Ottava beside llama.cpp, in one run on one machine: alternating pairs, medians, ratios.

usage: compare.py OTTAVA LLAMA_BENCH MODEL.gguf... [--threads N] [--pairs N] [-p TOKENS] [-n TOKENS] [-d TOKENS]

Prefill is measured from an empty cache, decode behind a past of -d tokens.

Prints a Markdown table with the load average before each pair's start, so that a noisy run shows.
Peak memory is the whole process's; ours without the buffer that measures the read bandwidth.
"""
import argparse
import json
import os
import subprocess
import time
from dataclasses import dataclass
from statistics import median


@dataclass
class Sample:
    """One program's run: tokens a second, and peak resident bytes."""

    prefill: float
    decode: float
    peak: int


def run(command):
    """Standard output, wall seconds and peak resident bytes of a command."""
    started = time.monotonic()
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    out = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} failed with status {status}")
    return out, time.monotonic() - started, usage.ru_maxrss * 1024


def bench(program, model, threads, options, repetitions=1):
    """What `ottava bench` found, of repetitions behind a warm-up."""
    fixed = ["--json", "-m", model, "-t", str(threads), "-r", str(repetitions)]
    return json.loads(run([program, "bench", *fixed, *options])[0])


def halves(args):
    """The options of both programs for the prefill, and for the decode."""
    return ["-p", str(args.p), "-n", "0"], ["-p", "0", "-n", str(args.n), "-d", str(args.d)]


def ottava(model, args):
    found = [bench(args.ottava, model, args.threads, half) for half in halves(args)]
    rates = [half["results"][0]["tokens_per_s"] for half in found]
    return Sample(*rates, max(half["peak_memory_bytes"] for half in found)), found[1]


def llama(model, args):
    command = [args.llama_bench, "-m", model, "-o", "json", "-t", str(args.threads), "-r", "1"]
    found = [run(command + half) for half in halves(args)]
    rates = [json.loads(out)[0]["avg_ts"] for out, _, _ in found]
    return Sample(*rates, max(peak for _, _, peak in found))


def table(head, rows):
    """Prints a Markdown table; text to the left, numbers to the right and as short as three digits allow."""
    if not rows:
        return
    print(f"\n| {head} |")
    print("|" + "|".join("---" if isinstance(cell, str) else "---:" for cell in rows[0]) + "|")
    for row in rows:
        cells = (cell if isinstance(cell, str) else f"{cell:.0f}" if cell >= 100 else f"{cell:.3g}" for cell in row)
        print("| " + " | ".join(cells) + " |", flush=True)


def pairs(model, args):
    """Measures and prints; gives both programs' samples, and what `ottava bench` says of the model."""
    ours, theirs, loads = [], [], []
    for _ in range(args.pairs):
        loads.append(os.getloadavg()[0])
        sample, found = ottava(model, args)
        ours.append(sample)
        theirs.append(llama(model, args))
    print(f"\n{os.path.basename(model)}, threads: {args.threads}, {args.pairs} pairs, "
          f"load average {min(loads):.1f} to {max(loads):.1f}")
    rows = []
    for field, what, unit in [("prefill", f"pp{args.p} (tokens/s)", 1),
                              ("decode", f"tg{args.n} @ d{args.d} (tokens/s)", 1),
                              ("peak", "peak memory (MB)", 1e6)]:
        a, b = ([getattr(sample, field) / unit for sample in samples] for samples in (ours, theirs))
        each = " ".join(f"{x / y:.2f}" for x, y in zip(a, b))
        rows.append([what, median(a), median(b), median(a) / median(b), each])
    table("test | ottava | llama.cpp | ratio of medians | ratios of the pairs", rows)
    return ours, theirs, found


def parser(description):
    """The arguments that all comparisons have."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ottava")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("-p", type=int, default=512)
    parser.add_argument("-n", type=int, default=64)
    parser.add_argument("-d", type=int, default=512)
    return parser


def main():
    arguments = parser(__doc__)
    arguments.add_argument("llama_bench")
    arguments.add_argument("models", nargs="+")
    args = arguments.parse_args()
    for model in args.models:
        pairs(model, args)


if __name__ == "__main__":
    main()
