"""Markdown tables of what was predicted."""
from cards import CARDS
from shapes import FORMATS, MODELS
from step import decode, decode_floor, prefill

BATCHES = (1, 4, 16, 32, 64)
PROMPTS = (512, 4096)
STEP_FORMATS = ("w8g128", "w4g32")


def table(head, rows):
    """Text is left, figures are right."""
    lines = ["| " + " | ".join(head) + " |", "|" + "|".join("---" if name[:1].islower() else "---:" for name in head) + "|"]
    return "\n".join(lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows]) + "\n"


def decode_rates(loops, forms, keys):
    rows = []
    for model in MODELS.values():
        for name in STEP_FORMATS:
            for card in CARDS.values():
                row = [model.name, name, card.name]
                for batch in BATCHES:
                    step = decode(card, loops, forms, model, FORMATS[name], batch, keys)
                    floor = decode_floor(card, model, FORMATS[name], batch, keys)
                    row.append(f"{step.rate:,.0f} ({100 * floor / step.seconds:.0f} %), {1e3 * step.seconds:.2f} ms")
                rows.append(row)
    head = ["model", "weights", "card"] + [f"B {batch}" for batch in BATCHES]
    return table(head, rows)


def prefill_rates(loops, forms):
    rows = []
    for model in MODELS.values():
        for name in STEP_FORMATS:
            for card in CARDS.values():
                for tokens in PROMPTS:
                    step = prefill(card, loops, forms, model, FORMATS[name], tokens)
                    rows.append([model.name, name, card.name, f"{tokens}", f"{step.rate:,.0f}"] + shares(step))
    return table(["model", "weights", "card", "Tokens", "Tokens/s", "Products TFLOP/s", "Attention TFLOP/s",
                  "Packing, of the time"], rows)


def shares(step):
    products = [cost for cost in step.layer if cost.before]
    attention = [cost for cost in step.layer if cost.name == "attention"]
    packing = step.layers * sum(cost.all_seconds - cost.seconds for cost in products)

    def rate(costs):
        return f"{sum(cost.flops for cost in costs) / sum(cost.seconds for cost in costs) / 1e12:.0f}"

    return [rate(products), rate(attention), f"{100 * packing / step.seconds:.0f} %"]


def kernels(loops, forms, model, name, keys):
    """Each launch of a step, on both cards."""
    rows = []
    for batch in BATCHES:
        steps = [decode(card, loops, forms, model, FORMATS[name], batch, keys) for card in CARDS.values()]
        costs = [step.layer + step.once for step in steps]
        for at, first in enumerate(costs[0]):
            launches = model.layers if at < len(steps[0].layer) else 1
            of_cards = [cost[at] for cost in costs]
            packing = [[cost.before[index] for cost in of_cards] for index in range(len(first.before))]
            for same in packing + [of_cards]:
                rows.append([batch] + launch(same, launches))
    head = ["B", "launch", "kernel", "Launches", "Blocks", "Turn", "DRAM MB", "L2 MB"]
    return table(head + [f"{card.name} µs (floor)" for card in CARDS.values()] + ["slowest, H200"], rows)


def launch(costs, launches):
    """A launch as it is on each card, which may take another kernel or number of blocks on none so far."""
    first = costs[0]
    times = [f"{cost.us:.1f} ({cost.dram / card.dram * 1e6:.1f})" for cost, card in zip(costs, CARDS.values())]
    name = first.name if first.name != "packing" else "· its packing"
    return [name, f"`{first.kernel}`", launches, first.blocks, first.turn, f"{first.dram / 1e6:.1f}",
            f"{first.l2 / 1e6:.1f}"] + times + [costs[-1].bound]


def everything(loops, forms, keys):
    parts = [f"**Decode**, tokens/s of all sequences (of what reading each byte once allows), time of a step; "
             f"{keys} keys a sequence.\n", decode_rates(loops, forms, keys),
             "**Prefill**, a prompt alone.\n", prefill_rates(loops, forms)]
    for model in MODELS.values():
        for name in STEP_FORMATS:
            parts += [f"**{model.name}, {name}, {keys} keys**, a launch each.\n",
                      kernels(loops, forms, model, name, keys)]
    return "\n".join(parts)
