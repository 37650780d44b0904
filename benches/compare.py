#!/usr/bin/env python3
"""Ottava beside llama.cpp, in one run on one machine: alternating pairs, medians, ratios.

usage: compare.py OTTAVA LLAMA_BENCH MODEL.gguf... [--threads N] [--pairs N] [-p TOKENS] [-n TOKENS] [-d TOKENS]

Prefill is measured from an empty cache, decode behind a past of -d tokens.

Prints a Markdown table with the load average before each pair's start, so that a noisy run shows.
Peak memory is the whole process's; ours without the buffer that measures the read bandwidth at the end.
"""
import argparse
import json
import os
import statistics
import subprocess
import time


def run(command):
    """Standard output, wall seconds and peak resident bytes of a command."""
    started = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    out = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{command[0]} failed with status {status}")
    return out, time.monotonic() - started, usage.ru_maxrss * 1024


def halves(args):
    """The options of both programs for the prefill, and for the decode."""
    common = ["-t", str(args.threads), "-r", "1"]
    return common + ["-p", str(args.p), "-n", "0"], common + ["-p", "0", "-n", str(args.n), "-d", str(args.d)]


def ottava(program, model, args):
    benches = [json.loads(run([program, "bench", "--json", "-m", model] + half)[0]) for half in halves(args)]
    rates = [bench["results"][0]["tokens_per_s"] for bench in benches]
    return *rates, max(bench["peak_memory_bytes"] for bench in benches)


def llama(program, model, args):
    runs = [run([program, "-m", model, "-o", "json"] + half) for half in halves(args)]
    rates = [json.loads(out)[0]["avg_ts"] for out, _, _ in runs]
    return *rates, max(peak for _, _, peak in runs)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("ottava")
    parser.add_argument("llama_bench")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("-p", type=int, default=512)
    parser.add_argument("-n", type=int, default=64)
    parser.add_argument("-d", type=int, default=512)
    args = parser.parse_args()
    for model in args.models:
        ours, theirs, loads = [], [], []
        for _ in range(args.pairs):
            loads.append(os.getloadavg()[0])
            ours.append(ottava(args.ottava, model, args))
            theirs.append(llama(args.llama_bench, model, args))
        print(f"\n{os.path.basename(model)}, {args.threads} threads, {args.pairs} pairs, "
              f"load average {min(loads):.1f} to {max(loads):.1f}\n")
        print("| test | ottava | llama.cpp | ratio of medians | ratios of the pairs |")
        print("|---|---:|---:|---:|---|")
        for column, name in enumerate([f"pp{args.p} (tokens/s)", f"tg{args.n} @ d{args.d} (tokens/s)", "peak memory (MB)"]):
            scale = 1e6 if column == 2 else 1
            a = [run[column] / scale for run in ours]
            b = [run[column] / scale for run in theirs]
            ratio = statistics.median(a) / statistics.median(b)
            pairs = " ".join(f"{x / y:.2f}" for x, y in zip(a, b))
            print(f"| {name} | {statistics.median(a):.1f} | {statistics.median(b):.1f} | {ratio:.2f} | {pairs} |")


if __name__ == "__main__":
    main()
