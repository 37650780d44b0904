#!/usr/bin/env python3
"""All speed goals of the CPU path, in one run on one machine: a table for each, and which hold.

usage: goals.py OTTAVA LLAMA_BIN --small MODEL.gguf... --large MODEL.gguf...
                [--pairs N] [--threads N] [--part NAME...]

LLAMA_BIN is a folder with llama.cpp's llama-bench and llama-simple; `random_model.py` makes a large model. What is
compared runs in turns, medians of all rounds are held against the goals, and the load average stands beside them. The
parts:

pairs    prefill 512 and decode 64 behind 512 beside llama-bench, with one thread and with all; peak memory
machine  large models: the share of the int8 peak in prompts' products, of the read bandwidth at decode, both
         behind 512 tokens; each model once a round
eight    large models: eight sequences at once against one; each model once a round
busy     decode beside a busy process on the last core, with all threads and with one, against the idle machine
load     from the program's start to the first token, beside llama-simple (which has threads of its own choice);
         the goal is one of loads with a sidecar, those without stand beside them

-p, -n and -d are those of `pairs`. The exit code is 1 if a goal is missed.
"""
import argparse
import os
import signal
import subprocess
import sys
import tempfile
from statistics import median

import compare
from compare import bench, run, table


class Goals:
    """What was found, to be told at the end."""

    def __init__(self):
        self.found = []

    def at_least(self, bound, model, what, value):
        self.found.append((value >= bound, f"{name(model)}, {what}: {value:.4g}, at least {bound}"))

    def report(self):
        missed = [text for holds, text in self.found if not holds]
        print(f"\n{len(self.found) - len(missed)} of {len(self.found)} goals hold.")
        for text in missed:
            print(f"MISSED {text}")
        return 1 if missed else 0


def name(model):
    return os.path.basename(model).removesuffix(".gguf")


def in_turns(models, rounds):
    """Each model once a round, so that what else the machine does meanwhile meets all of them."""
    return models * rounds


def rates(values):
    return " ".join(f"{value:.0f}" for value in values)


def pairs(args, goals):
    for threads in (1, args.threads):
        for model in args.small + args.large:
            ours, theirs, info = compare.pairs(model, argparse.Namespace(**{**vars(args), "threads": threads}))
            prefill, decode = (
                median(getattr(a, field) for a in ours) / median(getattr(b, field) for b in theirs)
                for field in ("prefill", "decode")
            )
            at = f"threads: {threads}"
            goals.at_least(1.5 if "q4_0" in name(model).lower() else 2, model, f"prefill, {at}", prefill)
            goals.at_least(1.4 if model in args.small else 1, model, f"decode, {at}", decode)
            allowed = 1.15 * info["file_bytes"] + info["kv_bytes"]
            goals.at_least(1, model, f"allowed memory by peak, {at}", allowed / median(a.peak for a in ours))


def machine(args, goals):
    found = {model: [] for model in args.large}
    for model in in_turns(args.large, args.pairs):
        options = ["-p", "512", "-n", "64", "-d", "512", "--profile"]
        report = bench(args.ottava, model, args.threads, options, repetitions=3)
        prefill, generation = report["results"]
        products = next(kind for kind in prefill["profile"]["kinds"] if kind["kind"] == "matmul")
        read = report["read_bandwidth_bytes_per_s"] / 1e9
        found[model].append((products["peak_percent"], generation["bandwidth_percent"], read))
    rows = []
    for model, rounds in found.items():
        peaks, shares, reads = zip(*rounds)
        goals.at_least(45, model, "% of the int8 peak", median(peaks))
        goals.at_least(92, model, "% of the read bandwidth", median(shares))
        rows.append([name(model), median(peaks), rates(peaks), median(shares), rates(shares), rates(reads)])
    table(
        "model | prompts' products, % of the int8 peak | rounds | decode, % of the read bandwidth | rounds"
        " | read bandwidth, GB/s",
        rows,
    )


def decode(args, model, threads, sequences=1):
    options = ["-p", "0", "-n", "64", "--parallel", str(sequences)]
    return bench(args.ottava, model, threads, options)["results"][0]["tokens_per_s"]


def eight(args, goals):
    found = {model: [] for model in args.large}
    for model in in_turns(args.large, args.pairs):
        found[model].append([decode(args, model, args.threads, sequences) for sequences in (1, 8)])
    rows = []
    for model, rounds in found.items():
        one, eight = zip(*rounds)
        times = median(eight) / median(one)
        goals.at_least(5, model, "eight sequences by one", times)
        rows.append([name(model), median(eight), rates(eight), median(one), rates(one), times])
    table("model | eight, tokens/s | rounds | one | rounds | ratio", rows)


def busy(args, goals):
    rows = []
    core = max(os.sched_getaffinity(0))
    neighbour = ["taskset", "-c", str(core), "sh", "-c", "while :; do :; done"]
    for model in args.small + args.large:
        idle, shared, alone = [], [], []
        for _ in range(args.pairs):
            idle.append(decode(args, model, args.threads))
            with subprocess.Popen(neighbour) as process:
                try:
                    shared.append(decode(args, model, args.threads))
                    alone.append(decode(args, model, 1))
                    assert process.poll() is None, "the neighbour is still busy"
                finally:
                    process.kill()
        of_idle, of_alone = (median(shared) / median(other) for other in (idle, alone))
        goals.at_least(0.6, model, "beside a busy process, of idle", of_idle)
        goals.at_least(1, model, "beside a busy process, of one thread", of_alone)
        rows.append([name(model), *map(median, (idle, shared, alone)), of_idle, of_alone, rates(shared), rates(alone)])
    table("model | idle, tokens/s | busy | busy, one thread | of idle | of one thread | busy | one thread", rows)


def load(args, goals):
    rows = []
    for model in args.small + args.large:
        theirs = [os.path.join(args.llama_bin, "llama-simple"), "-m", model, "-n", "1", "Once"]
        ours = [args.ottava, "run", "-m", model, "-t", str(args.threads), "--raw", "--temp", "0", "-n", "1", "Once"]
        # Not where temporary files are: those may be kept in memory.
        with tempfile.TemporaryDirectory(dir=".") as folder:
            commands = [theirs, ours, ours + [f"--sidecar={folder}"]]
            for command in commands:  # reads the file, and writes the sidecar
                run(command)
            rounds = [[run(command)[1] for command in commands] for _ in range(args.pairs)]
        llama, plain, kept = map(median, zip(*rounds))
        goals.at_least(1.5, model, "load with a sidecar", llama / kept)
        rows.append([name(model), plain, kept, llama, llama / plain, llama / kept])
    table("model | load, s | with a sidecar | llama.cpp | ratio | with a sidecar", rows)


PARTS = {part.__name__: part for part in (pairs, machine, eight, busy, load)}


def main():
    arguments = compare.parser(__doc__)
    arguments.add_argument("llama_bin")
    arguments.add_argument("--small", nargs="*", default=[])
    arguments.add_argument("--large", nargs="*", default=[])
    arguments.add_argument("--part", nargs="*", choices=PARTS, default=list(PARTS))
    args = arguments.parse_args()
    args.llama_bench = os.path.join(args.llama_bin, "llama-bench")
    # So that what runs beside is ended, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    goals = Goals()
    for part in args.part:
        print(f"\n## {part}, load average {os.getloadavg()[0]:.1f}", flush=True)
        PARTS[part](args, goals)
    raise SystemExit(goals.report())


if __name__ == "__main__":
    main()
