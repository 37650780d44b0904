#!/usr/bin/env python3
"""Tables of what ci/gpu.sh measured on one card: kernels beside their peers, switches, whole models.

usage: cuda_table.py FOLDER...      the tables of all files of these folders
       cuda_table.py --card NAME    the short name of a card, for folders: h100 for "NVIDIA H100 80GB HBM3"
       cuda_table.py --self-test

Reads kernels-*.jsonl and switches-*.jsonl (benches/cuda_kernels.rs), peers-*.jsonl (benches/cuda_peers.py) and
model-*.json (`ottava bench --json`, llama-bench's too); what is not there is left out and said. Of a case
that several calls measured the last counts, and the first stands beside it. A ratio is the peer's time
over ours: more than 1 is faster than the peer. Every row names its card, and rows of two are refused: one
card's peers beside another's kernels would look like a result.
"""
import glob
import json
import os
import re
import sys
import tempfile


class Refused(Exception):
    """Files that make no table."""


def files_of(folders, pattern):
    return sorted(path for folder in folders for path in glob.glob(os.path.join(folder, pattern)))


def rows_of(folders, name):
    """The rows of all calls' files, in the order of the calls."""
    files = files_of(folders, f"{name}-*.jsonl")
    if not files:
        print(f"(no {name}-*.jsonl)\n")
    rows = []
    for path in files:
        with open(path) as lines:
            rows += [dict(json.loads(line), file=path) for line in lines if line.strip()]
    return rows


def models_of(folders):
    """(name, tests) of each model's file, and why a file is none."""
    models = []
    for path in files_of(folders, "model-*.json"):
        name = os.path.basename(path)[len("model-"):-len(".json")]
        try:
            with open(path) as text:
                models.append((path, name, json.load(text)))
        except ValueError as error:
            print(f"({path} is unreadable: {error})\n")
    return models


def device_of_model(bench):
    """The card's name: ours is the second part of `cuda:0, NVIDIA H200, compute capability 9.0`."""
    if isinstance(bench, list):
        return bench[0].get("gpu_info") if bench else None
    parts = bench.get("device", "").split(", ")
    return parts[1] if len(parts) > 1 else parts[0]


def one_device(rows, models):
    """The one card that all is of."""
    named = [(row.get("device"), row["file"]) for row in rows]
    named += [(device_of_model(bench), path) for path, _, bench in models]
    nameless = sorted({path for device, path in named if not device})
    if nameless:
        raise Refused(f"rows that name no card, in {', '.join(nameless)}")
    cards = {}
    for device, path in named:
        cards.setdefault(device, path)
    if len(cards) > 1:
        found = " and ".join(f"{device} ({path})" for device, path in sorted(cards.items()))
        raise Refused(f"rows of {len(cards)} cards make no table: {found}")
    return next(iter(cards), None)


def card_of(device):
    """H100 of `NVIDIA H100 80GB HBM3`: letters and a number; else the whole name. An emulated card is none."""
    if "cuda-emu" in device:
        return "cuda-emu"
    model = re.search(r"\b[a-z]{1,2}\d{2,3}\b", device.lower())
    return model.group() if model else re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")


def key(row):
    return tuple(row.get(name) for name in ("op", "shape", "tokens", "keys", "sequences"))


def case(row):
    return key(row) + (row["format"],)


def fits(peer, ours):
    """f16 is what all formats are held against; else the formats must be the same."""
    return key(peer) == key(ours) and peer["format"] in ("f16", "F16", ours["format"])


def number(value, form):
    return "-" if value is None else form.format(value)


def table(head, left, rows):
    """A table with so many columns of text on its left."""
    print("| " + " | ".join(head) + " |")
    print("|" + "---|" * left + "---:|" * (len(head) - left))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print()


def kernel_cells(row, earlier, names, peers, ceiling):
    rate = row["bytes"] / row["us"] / 1e3
    share = 100 * rate / ceiling["read_gb_s"] if ceiling else None
    cells = [row["shape"], row["format"], str(row["tokens"]), str(row.get("keys", "-")),
             f"{row['us']:.2f}", "-" if earlier is row else f"{earlier['us']:.2f}", f"{rate:.0f}",
             number(share, "{:.0f}"), f"{2 * row['macs'] / row['us'] / 1e6:.1f}"]
    for name in names:
        best = [peer["us"] for peer in peers if peer["who"] == name and fits(peer, row)]
        cells.append(f"{best[-1]:.2f} ({best[-1] / row['us']:.2f})" if best else "-")
    return cells


def kernels(rows, peers):
    ceilings = [row for row in rows if row["op"] == "ceiling"]
    for row in ceilings:
        print(f"memory reads {row['read_gb_s']:.0f} GB/s, copies {row['copy_gb_s']:.0f} GB/s "
              f"({os.path.basename(row['file'])})\n")
    first, last = {}, {}
    for row in rows:
        if row["op"] != "ceiling":
            first.setdefault(case(row), row)
            last[case(row)] = row
    for op in dict.fromkeys(row["op"] for row in last.values()):
        print(f"**{op}**\n")
        names = list(dict.fromkeys(row["who"] for row in peers if row["op"] == op))
        head = ["shape", "format", "tokens", "keys", "µs", "first µs", "GB/s", "% of read", "TFLOP/s"]
        head += [f"{name} µs (ratio)" for name in names]
        ceiling = ceilings[-1] if ceilings else None
        table(head, 2, [kernel_cells(row, first[case(row)], names, peers, ceiling)
                        for row in last.values() if row["op"] == op])


def switches(rows):
    """A column a switch: the time, and its ratio to what ships."""
    rows = [row for row in rows if row["op"] != "ceiling"]
    if not rows:
        return
    print("**switches**\n")
    names = list(dict.fromkeys(row["switch"] for row in rows))
    cells = {}
    for row in rows:
        cells.setdefault(case(row), {})[row["switch"]] = row["us"]
    lines = []
    for (op, shape, tokens, _, _, form), times in cells.items():
        shipped = times.get(names[0])
        columns = [number(times.get(name), "{:.2f}") for name in names]
        if shipped:
            columns[1:] = [f"{times[name]:.2f} ({times[name] / shipped:.2f})" if name in times else "-"
                           for name in names[1:]]
        lines.append([op, shape, form, str(tokens)] + columns)
    table(["op", "shape", "format", "tokens"] + [f"{name} µs" for name in names], 3, lines)


def short(health):
    if not health:
        return "-"
    parts = [number(health.get("temperature_c"), "{} C"), number(health.get("power_w"), "{:.0f} W")]
    return ", ".join(parts + (health.get("throttle") or []))


def model_lines(name, bench):
    if isinstance(bench, list):
        for test in bench:
            what = f"pp{test['n_prompt']}" if test["n_prompt"] else f"tg{test['n_gen']}"
            yield [name, "llama.cpp", what, f"{test['avg_ts']:.1f}", f"{test['stddev_ts']:.1f}", "-", "-"]
        return
    for test in bench["results"]:
        yield [name, "ottava", test["test"], f"{test['tokens_per_s']:.1f}", f"{test['spread']:.1f}",
               number(test.get("bandwidth_percent"), "{:.0f}"), short(test.get("device_health"))]


def tables(folders):
    ours, switched, peers = (rows_of(folders, name) for name in ("kernels", "switches", "peers"))
    models = models_of(folders)
    device = one_device(ours + switched + peers, models)
    if device is None:
        print("(nothing was measured)")
        return
    print(f"# {card_of(device)}: {device}\n")
    kernels(ours, peers)
    switches(switched)
    lines = [line for _, name, bench in models for line in model_lines(name, bench)]
    if lines:
        table(["model", "program", "test", "tokens/s", "±", "% of read", "GPU"], 3, lines)
    else:
        print("(no model-*.json)\n")


def self_test():
    """Rows of one card make a table, those of two or of none are refused."""
    for name, want in {"NVIDIA H100 80GB HBM3": "h100", "NVIDIA H200": "h200", "NVIDIA A100-SXM4-80GB": "a100",
                       "NVIDIA GH200 480GB": "gh200", "NVIDIA H200 (cuda-emu)": "cuda-emu",
                       "Some Card": "some-card"}.items():
        assert card_of(name) == want, (name, card_of(name))
    h100, h200 = "NVIDIA H100 80GB HBM3", "NVIDIA H200"
    row = {"op": "matmul", "shape": "8b up", "format": "w8g128", "tokens": 1, "us": 2.0, "bytes": 1, "macs": 1}
    model = {"device": f"cuda:0, {h200}, compute capability 9.0", "results": []}

    def refused(files):
        with tempfile.TemporaryDirectory() as folder:
            for name, content in files.items():
                with open(os.path.join(folder, name), "w") as out:
                    out.write(json.dumps(content))
            try:
                tables([folder])
            except Refused as why:
                return str(why)

    def of(device, **more):
        return dict(row, device=device, **more)

    ours, later = of(h200), of(h200, us=1.0)
    peer, switch = of(h200, who="cuBLAS f16", format="f16"), of(h200, switch="shipped")
    llama = [{"gpu_info": h200, "n_prompt": 512, "n_gen": 0, "avg_ts": 1.0, "stddev_ts": 0.0}]
    all_of_one = {"kernels-1.jsonl": ours, "kernels-2.jsonl": later, "peers-2.jsonl": peer,
                  "switches-1.jsonl": switch, "model-1b-1.json": model, "model-1b-llama.cpp-1.json": llama}
    assert refused(all_of_one) is None
    for name, content in {"peers-2.jsonl": dict(peer, device=h100), "kernels-2.jsonl": dict(later, device=h100),
                          "model-1b-1.json": dict(model, device=f"cuda:0, {h100}, compute capability 9.0"),
                          "model-1b-llama.cpp-1.json": [dict(llama[0], gpu_info=h100)]}.items():
        why = refused({**all_of_one, name: content})
        assert why and h100 in why and h200 in why, (name, why)
    assert "name no card" in (refused({**all_of_one, "peers-2.jsonl": dict(row, who="cuBLAS f16")}) or "")


def main(arguments):
    if arguments[:1] == ["--self-test"]:
        out, sys.stdout = sys.stdout, open(os.devnull, "w")
        self_test()
        sys.stdout = out
    elif arguments[:1] == ["--card"] and len(arguments) == 2:
        print(card_of(arguments[1]))
    elif arguments and not arguments[0].startswith("-"):
        tables(arguments)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except Refused as why:
        sys.exit(f"no table: {why}")
