"""The roofline as a picture: each launch by what it multiplies a byte of memory, and how fast."""
from math import atan, degrees, log10

from cards import CARDS
from shapes import FORMATS, MODELS
from step import decode, prefill

PANEL, GAP, LEFT, TOP, HEIGHT = 520, 90, 80, 86, 470
X, Y = (1, 4096), (0.5, 2000)
COLOURS = {1: "#1b6ca8", 4: "#17a398", 16: "#4f9d2f", 32: "#d9a400", 64: "#d95f02", 512: "#a6228e"}
MARKS = ("qkv", "o", "gate+up", "down", "attention", "head")
# Cases of benches/cuda_kernels, as a step calls them. A matrix up without its gate has the gate's mark.
NAMES = {"attention": "attention", "append+attention": "attention", "gate": "gate+up", "up": "gate+up",
         "logits": "head"}
# Of the peak of wgmma, what mma.sync is taken to reach.
MMA_SYNC = 0.6


def x_at(panel, value):
    return LEFT + panel * (PANEL + GAP) + PANEL * log10(value / X[0]) / log10(X[1] / X[0])


def y_at(value):
    return TOP + HEIGHT * (1 - log10(value / Y[0]) / log10(Y[1] / Y[0]))


def text(x, y, words, size=12, anchor="middle", colour="#222", more=""):
    place = f'x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}"'
    return f'<text {place} fill="{colour}" {more}>{words}</text>'


def line(x1, y1, x2, y2, colour, width=1.0, more=""):
    place = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {place} stroke="{colour}" stroke-width="{width}" {more}/>'


# Corners of a mark around its middle; qkv's is a circle.
CORNERS = {
    "o": [(-5, -5), (5, -5), (5, 5), (-5, 5)],
    "gate+up": [(0, -6.5), (6, 4.5), (-6, 4.5)],
    "down": [(0, 6.5), (6, -4.5), (-6, -4.5)],
    "attention": [(0, -7), (7, 0), (0, 7), (-7, 0)],
    "head": [(-2, -6), (2, -6), (2, -2), (6, -2), (6, 2), (2, 2), (2, 6), (-2, 6), (-2, 2), (-6, 2), (-6, -2),
             (-2, -2)],
}


def mark(name, x, y, colour, hollow=False):
    inside, edge, width = ("white", colour, 1.6) if hollow else (colour, "white", 0.8)
    paint = f'fill="{inside}" stroke="{edge}" stroke-width="{width}"'
    if name not in CORNERS:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" {paint}/>'
    points = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in CORNERS[name])
    return f'<polygon points="{points}" {paint}/>'


def axes(panel, card):
    left, right, bottom = x_at(panel, X[0]), x_at(panel, X[1]), y_at(Y[0])
    yield f'<rect x="{left}" y="{TOP}" width="{PANEL}" height="{HEIGHT}" fill="none" stroke="#888"/>'
    yield text((left + right) / 2, TOP - 14, card.name, 16, more='font-weight="bold"')
    for power in range(0, 13, 2):
        x = x_at(panel, 2 ** power)
        yield line(x, TOP, x, bottom, "#e6e6e6")
        yield text(x, bottom + 18, 2 ** power)
    for value in (1, 10, 100, 1000):
        yield line(left, y_at(value), right, y_at(value), "#e6e6e6")
        yield text(left - 8, y_at(value) + 4, value, anchor="end")
    yield text((left + right) / 2, bottom + 40, "operations a byte of memory (FLOP/B)", 13)
    x, y = left - 48, TOP + HEIGHT / 2
    yield text(x, y, "TFLOP/s", 13, more=f'transform="rotate(-90 {x} {y})"')


def ceilings(panel, card):
    peak, dram = card.flops / 1e12, card.dram / 1e12
    ridge, right = peak / dram, x_at(panel, X[1])
    yield line(x_at(panel, X[0]), y_at(dram * X[0]), x_at(panel, ridge), y_at(peak), "#222", 2)
    yield line(x_at(panel, ridge), y_at(peak), right, y_at(peak), "#222", 2)
    sync = MMA_SYNC * peak
    yield line(x_at(panel, sync / dram), y_at(sync), right, y_at(sync), "#222", 1.2, 'stroke-dasharray="6 4"')
    yield text(right - 6, y_at(peak) - 7, f"wgmma, {peak:.0f} TFLOP/s", anchor="end")
    yield text(x_at(panel, sync / dram) - 8, y_at(sync) + 4, f"mma.sync, {sync:.0f}", anchor="end")
    # Along the slope, above it.
    slope = -(y_at(10) - y_at(1)) / (x_at(panel, 10) - x_at(panel, 1))
    x, y = x_at(panel, 3.3), y_at(3.3 * dram) - 9
    yield text(x, y, f"memory, {dram:.2f} TB/s", more=f'transform="rotate({-degrees(atan(slope)):.1f} {x:.1f} {y:.1f})"')


def point(panel, cost, seconds, colour, name, hollow=False):
    """A launch that took so long. Those of a step have much the same place, and stand side by side."""
    aside = 5 * MARKS.index(name) if name in MARKS and name != "attention" else 0
    x, y = x_at(panel, max(X[0], cost.flops / cost.dram)) + aside, y_at(max(Y[0], cost.flops / seconds / 1e12))
    return mark(name, x, y, colour, hollow)


def predicted(panel, card, loops, forms, model, form, keys):
    for batch, colour in COLOURS.items():
        if batch <= 64:
            step = decode(card, loops, forms, model, form, batch, keys)
            costs = step.layer + step.once
        else:
            costs = prefill(card, loops, forms, model, form, batch).layer
        for cost in costs:
            yield point(panel, cost, cost.seconds, colour, cost.name)


def measured(panel, card, rows, model, form):
    """Those of the model, with its weights or with none."""
    def belongs(row):
        case = row.case
        return case["shape"].split()[0] == model and case["format"] in (form, "F16")

    for row in (row for row in rows if row.cost and row.card is card and row.cost.flops and belongs(row)):
        tokens = row.case["tokens"]
        colour = COLOURS.get(tokens, "#555")
        seconds = row.case["us"] * 1e-6
        name = NAMES.get(row.case["op"], row.case["shape"].split()[-1])
        name = NAMES.get(name, name)
        x = x_at(panel, row.cost.flops / row.cost.dram) + (5 * MARKS.index(name) if name != "attention" else 0)
        ends = [y_at(row.cost.flops / time / 1e12) for time in (row.cost.all_seconds, seconds)]
        yield line(x, ends[0], x, ends[1], colour, 1.2)
        yield point(panel, row.cost, seconds, colour, name, hollow=True)


def legend(y, with_measured):
    """Colours by sequences or tokens, marks by launch."""
    x = LEFT
    for batch, colour in COLOURS.items():
        words = f"{batch} sequences" if 1 < batch <= 64 else "1 sequence" if batch == 1 else f"prompt of {batch}"
        yield f'<rect x="{x}" y="{y - 9}" width="11" height="11" fill="{colour}"/>'
        yield text(x + 16, y, words, anchor="start")
        x += 118
    x, y = LEFT, y + 26
    for name in MARKS:
        yield mark(name, x + 6, y - 4, "#555")
        yield text(x + 18, y, name, anchor="start")
        x += 118
    if with_measured:
        yield mark("qkv", x + 6, y - 4, "#555", hollow=True)
        yield text(x + 18, y, "hollow: measured, on a line from its prediction", anchor="start")


def svg(loops, forms, key, form, rows, keys):
    """The picture of the model of that key, with the measured rows that are its own."""
    model = MODELS[key]
    width = LEFT + len(CARDS) * (PANEL + GAP) - GAP + 30
    bottom = TOP + HEIGHT + 74
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {bottom + 70}" width="{width}" '
             f'height="{bottom + 70}" font-family="DejaVu Sans, Helvetica, sans-serif">',
             '<rect width="100%" height="100%" fill="white"/>',
             text(width / 2, 34, f"{model.name}, {form}, {keys} keys: predicted", 19)]
    for panel, card in enumerate(CARDS.values()):
        parts += axes(panel, card)
        parts += ceilings(panel, card)
        parts += predicted(panel, card, loops, forms, model, FORMATS[form], keys)
        parts += measured(panel, card, rows, key, form)
    parts += legend(bottom, bool(rows))
    parts.append(text(LEFT, bottom + 52, "Launches of a step do much the same work a byte: their marks stand side by side, and "
                      "qkv's is where all are.", anchor="start", colour="#666"))
    return "\n".join(parts + ["</svg>"]) + "\n"
