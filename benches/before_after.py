#!/usr/bin/env python3
"""Whether a change has made Ottava slower: the program before it and the program after it, in turns on one machine.

usage: before_after.py BEFORE AFTER MODEL.gguf... [--threads N] [--rounds N] [--least RATIO]

What goals.py holds against llama.cpp and against the machine is held against an earlier build here: prefill of 512
tokens and decode of 64 behind 512, with one thread and with all; eight sequences at once; decode beside a busy process
on the last core; from the program's start to the first token, and with a sidecar; peak memory. Each round runs both
programs, the one that begins in turns. Prints medians, their ratio (more than 1: better than before) and the ratios of
the rounds. The exit code is 1 if a ratio of medians is below RATIO (0.95).
"""
import argparse
import os
import subprocess
import tempfile
from statistics import median

from compare import bench, run, table


def speed(report):
    return report["results"][0]["tokens_per_s"]


def found_by(program, model, threads, folder):
    """Each measure's name, and how much there is of what one wants more of."""
    for count in sorted({1, threads}):
        at = f"threads: {count}"
        yield f"prefill, tokens/s, {at}", speed(bench(program, model, count, ["-p", "512", "-n", "0"]))
        report = bench(program, model, count, ["-p", "0", "-n", "64", "-d", "512"])
        yield f"decode, tokens/s, {at}", speed(report)
    yield "1 / peak memory, 1/GB", 1e9 / report["peak_memory_bytes"]
    yield "eight sequences, tokens/s", speed(bench(program, model, threads, ["-p", "0", "-n", "64", "--parallel", "8"]))
    core = str(max(os.sched_getaffinity(0)))
    with subprocess.Popen(["taskset", "-c", core, "sh", "-c", "while :; do :; done"]) as neighbour:
        try:
            yield "beside a busy process, tokens/s", speed(bench(program, model, threads, ["-p", "0", "-n", "64"]))
        finally:
            neighbour.kill()
    answer = [program, "run", "-m", model, "-t", str(threads), "--raw", "--temp", "0", "-n", "1", "Once"]
    run(answer)  # reads the file
    yield "1 / load, 1/s", 1 / run(answer)[1]
    answer.insert(2, f"--sidecar={folder}")
    run(answer)  # writes the sidecar
    yield "1 / load with a sidecar, 1/s", 1 / run(answer)[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--least", type=float, default=0.95)
    args = parser.parse_args()
    slower = []
    for model in args.models:
        found = {args.before: {}, args.after: {}}
        for number in range(args.rounds):
            for program in list(found)[:: -1 if number % 2 else 1]:
                # Not where temporary files are: those may be kept in memory.
                with tempfile.TemporaryDirectory(dir=".") as folder:
                    for name, value in found_by(program, model, args.threads, folder):
                        found[program].setdefault(name, []).append(value)
        rows = []
        for name, before in found[args.before].items():
            after = found[args.after][name]
            ratio = median(after) / median(before)
            rows.append([name, median(before), median(after), ratio, " ".join(f"{b / a:.2f}" for a, b in zip(before, after))])
            if ratio < args.least:
                slower.append(f"{os.path.basename(model)}, {name}: {ratio:.3g} of before")
        print(f"\n{os.path.basename(model)}, {args.rounds} rounds, load average {os.getloadavg()[0]:.1f} at the end")
        table("measure | before | after | ratio of medians | ratios of the rounds", rows)
    print("\n".join(slower) or f"\nNothing is below {args.least} of before.")
    raise SystemExit(bool(slower))


if __name__ == "__main__":
    main()
