"""What the CUDA kernels should take on an H100 and an H200, from counts alone; and beside it what a card took.

usage: python3 benches/cuda_predict [--keys 512] [--table ci/sass.table]
           [--measured kernels.jsonl ...] [--svg picture.svg] [--model 8b] [--weights w8g128]
           [--into record.md NAME]

Prints tables of decode and prefill rates and of every launch: blocks, the turn of its loop (ci/sass.table,
which ci/sass.sh holds against the machine code), bytes from memory and through the L2, and
the microseconds that follow. `--into` writes them into a file, between the lines `<!-- NAME -->` and
`<!-- /NAME -->`. `--measured` reads rows of `cargo bench --bench cuda_kernels -- --json FILE` and prints
each beside its prediction; `--svg` draws the roofline of one model, with measured points where there are some.

The model. A launch takes 0.8 µs, then two parts, one behind the other, each as long as its slowest:
  what a block waits for first   activations through the L2 (5.5 TB/s for all), or the
                                 weights of the rings from memory (3.05 or 4.35 TB/s)
  the rest                       the remaining weights from memory at 0.93 of its rate, or the loops: a
                                 turn's instructions at 4 a clock for all resident warps, or for each turn of
                                 one warp its instructions or the chain of its mma (272 clocks)
Tile kernels have one part, the slowest of issue, shared memory, L2, latency, tensor cores and memory, and a
time for each wave of blocks. Clocks are 1.9 GHz, in kernels of tensor cores 1.7. kernels: `products.py`, `others.py`;
constants: `cards.py`; which kernels a step is made of: `forms.py`. Expect 20 % where memory rules and 35 %
where issue or the L2 does. Power limits are not modelled.
"""
import argparse
import re
import signal
import sys

import checks
import measured
import roofline
import tables
from forms import CURRENT
from loops import TABLE, Loops
from shapes import FORMATS, MODELS


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=512)
    parser.add_argument("--table", default=TABLE)
    parser.add_argument("--measured", nargs="*", default=[])
    parser.add_argument("--svg")
    parser.add_argument("--model", default="8b", choices=MODELS)
    parser.add_argument("--weights", default="w8g128", choices=FORMATS)
    parser.add_argument("--check", action="store_true", help="only check that forms choose as the backend does")
    parser.add_argument("--into", nargs=2, metavar=("FILE", "NAME"))
    return parser.parse_args()


def put_into(path, name, words):
    with open(path) as file:
        before = file.read()
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    place = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.S)
    if not place.search(before):
        sys.exit(f"{path}: expected the lines {begin} and {end}")
    with open(path, "w") as file:
        file.write(place.sub(lambda _: f"{begin}\n{words}{end}", before))


def main():
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    given = arguments()
    if given.check:
        return checks.check()
    loops, forms = Loops(given.table), CURRENT
    rows, ceilings = measured.read(given.measured, loops, forms)
    words = measured.report(rows, ceilings) if rows else tables.everything(loops, forms, given.keys)
    if given.svg:
        with open(given.svg, "w") as file:
            file.write(roofline.svg(loops, forms, given.model, given.weights, rows, given.keys))
    if given.into:
        put_into(*given.into, words)
    else:
        print(words)


if __name__ == "__main__":
    main()
