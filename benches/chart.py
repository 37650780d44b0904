#!/usr/bin/env python3
"""Draws docs/speed.svg: Ottava's speed as multiples of llama.cpp's, from the last table of a record.

    python3 benches/chart.py [RECORD [SVG]]

The table is that of part `pairs` of benches/goals.py: a row per model and number of threads. Colours are
readable on white and on black, so one picture serves light and dark pages.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "benches/record/cpu/2026-11-25-zen5.md"
PICTURE = ROOT / "docs/speed.svg"
THREADS = "2"
NAMES = {"smollm2": "SmolLM2-135M", "gemma": "Gemma-3-270m", "r1b": "1.24 B"}
TEXT = "#768390"
SERIES = [("prefill, 512 tokens", "#3b82f6"), ("decode behind 512", "#f59e0b")]
LEFT, RIGHT, TOP, ROW, BAR = 186, 48, 64, 34, 12


def ratios(record):
    """Rows of (model, prefill ratio, decode ratio) of the record's last `pairs` table."""
    tables, lines = [], record.read_text().splitlines()
    for number, line in enumerate(lines):
        if line.startswith("| model | threads | prefill |"):
            columns = [cell.strip() for cell in line.strip("|").split("|")]
            first, second = (i for i, name in enumerate(columns) if name == "ratio")
            rows = []
            for row in lines[number + 2 :]:
                if not row.startswith("|"):
                    break
                cells = [cell.strip() for cell in row.strip("|").split("|")]
                if cells[1] == THREADS:
                    rows.append((cells[0], float(cells[first]), float(cells[second])))
            tables.append(rows)
    if not tables or not tables[-1]:
        sys.exit(f"{record}: expected a table `| model | threads | prefill | … |`, found none")
    return tables[-1]


def label(model):
    """`r1b-q4_k_m` as people write it."""
    name, _, form = model.partition("-")
    return f"{NAMES.get(name, name)} {form.upper()}"


def picture(rows):
    """The chart as lines of SVG."""
    top = max(max(row[1:]) for row in rows)
    ticks = range(0, int(top) + 2, 2 if top > 6 else 1)
    width, height = 760, TOP + ROW * len(rows) + 44
    scale = (width - LEFT - RIGHT) / ticks[-1]
    bottom = TOP + ROW * len(rows)

    def text(x, y, words, anchor="middle", extra=""):
        return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {extra}>{words}</text>'

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"',
        f'  font-family="system-ui, sans-serif" font-size="13" fill="{TEXT}" role="img">',
        "<title>Speed as multiples of llama.cpp's, two threads of Zen 5</title>",
        text(LEFT, 20, "Two threads of Zen 5, medians of five pairs with llama.cpp in turns", "start", 'font-weight="600"'),
    ]
    x = LEFT
    for name, colour in SERIES:
        out.append(f'<rect x="{x}" y="32" width="12" height="12" rx="2" fill="{colour}"/>')
        out.append(text(x + 18, 43, name, "start"))
        x += 190
    for tick in ticks:
        x = LEFT + tick * scale
        out.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 6}" y2="{bottom}" stroke="{TEXT}" stroke-opacity="0.3"/>')
        if tick > 0:
            out.append(text(x, bottom + 16, f"{tick}×"))
    x = LEFT + scale
    out.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 6}" y2="{bottom}" stroke="{TEXT}" stroke-dasharray="4 3"/>')
    out.append(text(x, bottom + 16, "llama.cpp", extra='font-size="11"'))
    out.append(text((LEFT + width - RIGHT) / 2, bottom + 36, "tokens per second, as multiples of llama.cpp's"))
    for index, (model, *values) in enumerate(rows):
        y = TOP + index * ROW
        out.append(text(LEFT - 10, y + BAR + 5, label(model), "end"))
        for series, (value, (_, colour)) in enumerate(zip(values, SERIES)):
            at = y + 2 + series * (BAR + 2)
            out.append(
                f'<rect x="{LEFT}" y="{at}" width="{value * scale:.1f}" height="{BAR}" rx="2" fill="{colour}"/>'
            )
            out.append(text(LEFT + value * scale + 5, at + BAR - 2, f"{value:.1f}", "start", 'font-size="11"'))
    return out + ["</svg>"]


def main():
    """Reads the record and writes the picture."""
    record, svg = (Path(path) for path in (sys.argv[1:3] + [RECORD, PICTURE][len(sys.argv[1:3]) :]))
    svg.write_text("\n".join(picture(ratios(record))) + "\n")


main()
