"""Rows of benches/cuda_kernels beside what the model says of the same launch."""
import json
from dataclasses import dataclass, replace
from math import nan

from cards import CARDS
from shapes import FORMATS, MODELS, Model, Product
from tables import table

# As in benches/cuda_kernels/products.rs.
MATRICES = {"8b up": (14336, 4096), "1b up": (8192, 2048), "8b down": (4096, 14336), "1.5b up": (8960, 1536),
            "1b down": (2048, 8192), "8b qkv": (6144, 4096), "1b o": (2048, 2048), "1.5b down": (1536, 8960),
            "8b o": (4096, 4096)}
OTHER_MODELS = {"1.5b": Model("Qwen2.5-1.5B", 28, 1536, 8960, 12, 2, 128, 151_936),
                "smollm2-135m": Model("SmolLM2-135M", 30, 576, 1536, 9, 3, 64, 49_152)}
ALL_MODELS = MODELS | OTHER_MODELS


@dataclass
class Row:
    """A case on a card: as measured, and as predicted, where the model says something of it."""
    card: object
    device: str
    case: dict
    cost: object

    @property
    def ratio(self):
        return self.case["us"] / self.cost.all_us if self.cost else nan


def read(paths, loops, forms):
    """All rows, and the ceilings that were measured: device, read and copy in GB/s."""
    rows, ceilings = [], []
    for path in paths:
        device = ""
        with open(path) as lines:
            for case in (json.loads(line) for line in lines if line.strip()):
                # Rows that do not name their device are of the one that the ceiling's row names.
                device = case.get("device", device)
                if case["op"] == "ceiling":
                    ceilings.append((device, case["read_gb_s"], case["copy_gb_s"]))
                elif "us" in case:
                    card = card_of(device)
                    rows.append(Row(card, device, case, card and predict(card, loops, forms, case)))
    return rows, ceilings


def card_of(device):
    return next((card for name, card in CARDS.items() if name in device.lower()), None)


def predict(card, loops, forms, case):
    """The cost of a case; None where the model has no word on it."""
    op, shape, tokens, form = case["op"], case["shape"], case["tokens"], FORMATS.get(case["format"])
    if op == "matmul" and form:
        rows, cols = MATRICES.get(shape) or logits(shape)
        return forms.product(card, loops, Product(shape, (rows,), cols), form, tokens)
    if op == "gate" and form:
        model = ALL_MODELS[shape]
        gate = Product(shape, (model.hidden, model.hidden), model.width, gated=True)
        return forms.product(card, loops, gate, form, tokens)
    if op in ("attention", "append+attention") and shape in MODELS:
        return attention(card, loops, forms, case)
    if op == "activations":
        sm90 = tokens > max(getattr(kind, "tokens_max", 0) for kind in forms.products)
        return forms.packing.cost(card, loops, int(shape.split()[0]), tokens, sm90)
    return None


def logits(shape):
    model = ALL_MODELS[shape.split()[0]]
    return model.vocab, model.width


def attention(card, loops, forms, case):
    model, tokens = MODELS[case["shape"]], case["tokens"]
    if tokens == case["sequences"]:
        pages = case["format"].lower()
        return replace(forms.decode, loop=pages).cost(card, loops, model, tokens, case["keys"])
    return forms.prefill.cost(card, loops, model, tokens) if case["format"] == "F16" else None


def report(rows, ceilings):
    parts = []
    for device, read_rate, copy_rate in ceilings:
        card = card_of(device)
        said = f"the model has {card.dram / 1e9:.0f}" if card else "no card of the model"
        parts.append(f"{device}: memory reads {read_rate:.0f} GB/s, copies {copy_rate:.0f} GB/s; {said}.\n")
    known = [row for row in rows if row.cost]
    parts.append(f"{len(known)} cases of {len(rows)} are in the model. A ratio above 1 is slower than predicted.\n")
    cells = [[row.card.name, row.case["op"], row.case["shape"], row.case["format"], row.case["tokens"],
              row.case.get("keys", "-"), f"`{row.cost.kernel}`", f"{row.cost.all_us:.1f}", f"{row.case['us']:.1f}",
              f"{row.ratio:.2f}", row.cost.bound] for row in known]
    head = ["card", "op", "shape", "format", "Tokens", "Keys", "kernel", "Predicted µs", "Measured µs", "Ratio",
            "slowest, as predicted"]
    return "\n".join(parts + [table(head, cells)])
