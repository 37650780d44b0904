#!/usr/bin/env python3
"""One table of what ci/gpu.sh measured: our kernels beside their peers, then whole models.

usage: cuda_table.py FOLDER

Reads kernels.jsonl (benches/cuda_kernels.rs), peers.jsonl (benches/cuda_peers.py) and model-*.json
(`ottava bench --json`, llama-bench's too) of the folder; what is not there is left out and said. A ratio
is the peer's time over ours: more than 1 is faster than the peer.
"""
import glob
import json
import os
import sys


def rows_of(path):
    if not os.path.exists(path):
        print(f"(no {os.path.basename(path)})\n")
        return []
    with open(path) as lines:
        return [json.loads(line) for line in lines if line.strip()]


def key(row):
    return tuple(row.get(name) for name in ("op", "shape", "tokens", "keys", "sequences"))


def fits(peer, ours):
    """f16 is what all formats are held against; else the formats must be the same."""
    return key(peer) == key(ours) and peer["format"] in ("f16", "F16", ours["format"])


def number(value, form):
    return "-" if value is None else form.format(value)


def kernels(folder):
    ours = rows_of(os.path.join(folder, "kernels.jsonl"))
    peers = rows_of(os.path.join(folder, "peers.jsonl"))
    ceiling = next((row for row in ours if row["op"] == "ceiling"), None)
    if ceiling:
        print(f"{ceiling['device']}: memory reads {ceiling['read_gb_s']:.0f} GB/s, "
              f"copies {ceiling['copy_gb_s']:.0f} GB/s\n")
    for op in dict.fromkeys(row["op"] for row in ours if row is not ceiling):
        rows = [row for row in ours if row["op"] == op]
        print(f"**{op}**\n")
        names = list(dict.fromkeys(row["who"] for row in peers if row["op"] == op))
        head = ["shape", "format", "tokens", "keys", "µs", "GB/s", "% of read", "TFLOP/s"]
        head += [f"{name} µs (ratio)" for name in names]
        print("| " + " | ".join(head) + " |")
        print("|---|---|" + "---:|" * (len(head) - 2))
        for row in rows:
            rate = row["bytes"] / row["us"] / 1e3
            share = 100 * rate / ceiling["read_gb_s"] if ceiling else None
            cells = [row["shape"], row["format"], str(row["tokens"]), str(row.get("keys", "-")),
                     f"{row['us']:.2f}", f"{rate:.0f}", number(share, "{:.0f}"),
                     f"{2 * row['macs'] / row['us'] / 1e6:.1f}"]
            for name in names:
                best = [peer["us"] for peer in peers if peer["who"] == name and fits(peer, row)]
                cells.append(f"{best[0]:.2f} ({best[0] / row['us']:.2f})" if best else "-")
            print("| " + " | ".join(cells) + " |")
        print()


def short(health):
    if not health:
        return "-"
    parts = [number(health.get("temperature_c"), "{} C"), number(health.get("power_w"), "{:.0f} W")]
    return ", ".join(parts + (health.get("throttle") or []))


def models(folder):
    files = sorted(glob.glob(os.path.join(folder, "model-*.json")))
    if not files:
        print("(no model-*.json)")
        return
    print("| model | program | test | tokens/s | ± | % of read | GPU |")
    print("|---|---|---|---:|---:|---:|---|")
    for path in files:
        name = os.path.basename(path)[len("model-"):-len(".json")]
        try:
            with open(path) as text:
                bench = json.load(text)
        except ValueError as error:
            print(f"| {name} | unreadable: {error} | | | | | |")
            continue
        if isinstance(bench, list):
            for test in bench:
                what = f"pp{test['n_prompt']}" if test["n_prompt"] else f"tg{test['n_gen']}"
                depth = f" @ d{test['n_depth']}" if test.get("n_depth") else ""
                print(f"| {name} | llama.cpp | {what}{depth} | {test['avg_ts']:.1f} | {test['stddev_ts']:.1f} | - | - |")
            continue
        for test in bench["results"]:
            print(f"| {name} | ottava | {test['test']} | {test['tokens_per_s']:.1f} | {test['spread']:.1f} | "
                  f"{number(test.get('bandwidth_percent'), '{:.0f}')} | {short(test.get('device_health'))} |")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    kernels(sys.argv[1])
    models(sys.argv[1])
