"""Whole steps: a decode of so many sequences, and a prompt."""
from dataclasses import dataclass


@dataclass
class Step:
    tokens: int
    layers: int
    # Of a layer, and once.
    layer: list
    once: list
    rest: float

    @property
    def seconds(self):
        layer = sum(cost.all_seconds for cost in self.layer)
        return self.layers * layer + sum(cost.all_seconds for cost in self.once) + self.rest

    @property
    def rate(self):
        return self.tokens / self.seconds


def decode(card, loops, forms, model, form, sequences, keys):
    layer = [forms.product(card, loops, product, form, sequences) for product in model.products()]
    layer.insert(1, forms.decode.cost(card, loops, model, sequences, keys))
    once = [forms.product(card, loops, model.head(), form, sequences)]
    rest = forms.rest
    return Step(sequences, model.layers, layer, once, rest.sampling + rest.small + rest.copies)


def decode_floor(card, model, form, sequences, keys):
    """Seconds of reading weights, keys and values once."""
    data = model.weight_bytes(form) + model.layers * sequences * model.kv_bytes(keys)
    return data / card.dram


def prefill(card, loops, forms, model, form, tokens):
    """A prompt, in steps of a chunk each."""
    layer, once, rest = [], [], 0.0
    for past in range(0, tokens, forms.chunk):
        count = min(forms.chunk, tokens - past)
        layer += [forms.product(card, loops, product, form, count) for product in model.products()]
        layer.append(forms.prefill.cost(card, loops, model, count, past))
        rest += model.layers * forms.rest.append + forms.rest.small + forms.rest.copies
    once.append(forms.product(card, loops, model.head(), form, 1))
    return Step(tokens, model.layers, layer, once, rest + forms.rest.sampling)
