#!/usr/bin/env python3
"""What others need on this card for the work of benches/cuda_kernels.rs, as its rows are written.

usage: cuda_peers.py [--seconds N] [--json FILE] [--dry-run CARD] [PEER...]

Peers: cublas (f16 weights through torch.mm), compiled (int8 weights dequantised inside of what torch.compile
makes), humming (humming-kernels), cudnn and flash (torch's scaled_dot_product_attention). Each works over
copies of its operands, too many for the second-level cache, in one CUDA graph; a row is the median of
several replays, divided by the launches. A peer's answer is asserted before it is timed. A peer that
cannot run, or a case that it cannot do, is a line with the reason. A row names its card. --dry-run goes through
all of it without torch, as if on the card that it names; its times mean nothing.
"""
import argparse
import json
import statistics
import sys
import time

# The names and sizes of cuda_kernels.rs: rows, columns.
MATRICES = {
    "8b up": (14336, 4096),
    "1b up": (8192, 2048),
    "8b down": (4096, 14336),
    "1.5b up": (8960, 1536),
    "1b down": (2048, 8192),
    "8b qkv": (6144, 4096),
    "1b o": (2048, 2048),
    "1.5b down": (1536, 8960),
    "8b o": (4096, 4096),
}
TOKENS = [1, 4, 16, 32, 64, 512, 2048]
# Query heads, key and value heads, elements of a head.
HEADS = {"8b": (32, 8, 128), "1b": (32, 8, 64), "1.5b": (12, 2, 128)}
CONTEXTS = [512, 4096]
SEQUENCES = [1, 4, 16, 64]
PROMPTS = [512, 2048, 8192]
# Compiling takes seconds for each size: these are enough for a comparison.
FEW_MATRICES = ["8b up", "1b up"]
FORMATS = {"w8g128": ("int8", 128), "w8g32": ("int8", 32), "w4g32": ("int4", 32)}

# Operands of a graph together: five times the cache of an H200.
COPIES_BYTES = 320 << 20
LAUNCHES_MIN = 24
REPLAYS = 9


class CannotRun(Exception):
    """A case that a peer has no answer for."""


def copies_of(bytes_each):
    return max(1, min(256, -(-COPIES_BYTES // bytes_each)))


class Card:
    """The card, through torch."""

    def __init__(self):
        import torch

        if not torch.cuda.is_available():
            raise CannotRun("torch sees no card")
        self.torch = torch
        torch.manual_seed(1)

    def name(self):
        return self.torch.cuda.get_device_name()

    def random(self, *shape):
        return self.torch.randn(*shape, dtype=self.torch.float16, device="cuda")

    def close(self, found, want, tolerance):
        found, want = found.float(), want.float()
        error = ((found - want).norm() / want.norm()).item()
        if not error <= tolerance:
            raise CannotRun(f"wrong answer: off by {error:.2g} of its size, expected at most {tolerance}")

    def time(self, calls):
        """Microseconds of a call, of which there is one for each copy of the operands."""
        torch = self.torch
        launches = max(LAUNCHES_MIN, len(calls))
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for call in calls[:3] * 2:
                call()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for index in range(launches):
                calls[index % len(calls)]()
        times = []
        for _ in range(REPLAYS + 2):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            # The card is at work when the graph is launched, so that its launch is not timed.
            torch.cuda._sleep(1_000_000)
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) * 1e3 / launches)
        return statistics.median(times[2:])

    def forget(self):
        self.torch.cuda.empty_cache()


# A peer's cases are rows without a time; its function gives the time of one.


def matmul_cases(matrices, tokens, formats):
    for shape in matrices:
        rows, cols = MATRICES[shape]
        for form in formats:
            for count in tokens:
                yield {"op": "matmul", "shape": shape, "rows": rows, "cols": cols, "format": form,
                       "tokens": count}


def attention_cases():
    for model in HEADS:
        for keys in CONTEXTS:
            for sequences in SEQUENCES:
                yield {"op": "attention", "shape": model, "format": "F16", "keys": keys,
                       "sequences": sequences, "tokens": sequences}
        for tokens in PROMPTS:
            yield {"op": "attention", "shape": model, "format": "F16", "keys": tokens, "sequences": 1,
                   "tokens": tokens}


def cublas(card, case):
    torch, rows, cols = card.torch, case["rows"], case["cols"]
    x = card.random(case["tokens"], cols)
    weights = [card.random(rows, cols) for _ in range(copies_of(2 * rows * cols))]
    out = torch.empty(case["tokens"], rows, dtype=torch.float16, device="cuda")
    card.close(torch.mm(x, weights[0].T), x.float() @ weights[0].float().T, 2e-3)
    return card.time([lambda w=w: torch.mm(x, w.T, out=out) for w in weights])


def quantised(card, rows, cols, group):
    """Random codes and their scales."""
    torch = card.torch
    codes = torch.randint(-127, 128, (rows, cols), dtype=torch.int8, device="cuda")
    scales = torch.rand(rows, cols // group, dtype=torch.float16, device="cuda") / 74 / cols**0.5
    return codes, scales


def compiled(card, case):
    torch, rows, cols = card.torch, case["rows"], case["cols"]
    group = FORMATS[case["format"]][1]

    def product(x, codes, scales):
        weights = codes.view(rows, cols // group, group).to(torch.float16) * scales.unsqueeze(-1)
        return x @ weights.view(rows, cols).T

    torch._dynamo.reset()
    torch._inductor.config.coordinate_descent_tuning = True
    fast = torch.compile(product, dynamic=False)
    x = card.random(case["tokens"], cols)
    copies = [quantised(card, rows, cols, group) for _ in range(copies_of(rows * cols))]
    card.close(fast(x, *copies[0]), product(x, *copies[0]), 1e-2)
    return card.time([lambda c=c: fast(x, *c) for c in copies])


def humming(card, case):
    from humming.layer import HummingLayer

    torch, rows, cols = card.torch, case["rows"], case["cols"]
    dtype, group = FORMATS[case["format"]]
    x = card.random(case["tokens"], cols)
    weights = card.random(rows, cols) / cols**0.5
    bits = 8 if dtype == "int8" else 4
    layers = []
    for _ in range(copies_of(rows * cols * bits // 8)):
        layer = HummingLayer(shape_n=rows, shape_k=cols, torch_dtype=torch.float16,
                             weight_config={"dtype": dtype, "group_size": group}).cuda()
        layer.load_from_unquantized(weights)
        layer.transform()
        layers.append(layer)
    card.close(layers[0](x), x @ weights.T, 0.03 if bits == 8 else 0.2)
    return card.time([lambda layer=layer: layer(x) for layer in layers])


def attention(backend):
    def measure(card, case):
        from torch.nn.attention import SDPBackend, sdpa_kernel

        torch = card.torch
        heads, kv_heads, dim = HEADS[case["shape"]]
        sequences, keys = case["sequences"], case["keys"]
        queries = case["tokens"] // sequences
        bytes_each = 2 * 2 * sequences * kv_heads * keys * dim
        q = card.random(sequences, heads, queries, dim)
        pairs = [(card.random(sequences, kv_heads, keys, dim), card.random(sequences, kv_heads, keys, dim))
                 for _ in range(min(256, copies_of(bytes_each)))]
        attend = torch.nn.functional.scaled_dot_product_attention
        settings = {"is_causal": queries > 1, "enable_gqa": True}
        with sdpa_kernel(getattr(SDPBackend, backend)):
            found = attend(q[:1], *(t[:1] for t in pairs[0]), **settings)
            calls = [lambda p=p: attend(q, *p, **settings) for p in pairs]
            took = card.time(calls)
        with sdpa_kernel(SDPBackend.MATH):
            # The first head of a group at the last query sees all keys, whatever is masked.
            want = attend(q[:1, :, -1:], *(t[:1] for t in pairs[0]), enable_gqa=True)
        card.close(found[:, :, -1:], want, 5e-3)
        return took

    return measure


# The name in the table, what measures, its cases, and what it needs besides torch.
PEERS = {
    "cublas": ("cuBLAS f16", cublas, lambda: matmul_cases(MATRICES, TOKENS, ["f16"]), []),
    "cudnn": ("cuDNN SDPA", attention("CUDNN_ATTENTION"), attention_cases, []),
    "humming": ("humming", humming, lambda: matmul_cases(FEW_MATRICES, [1, 16, 64, 2048], FORMATS), ["humming"]),
    "flash": ("flash SDPA", attention("FLASH_ATTENTION"), attention_cases, []),
    "compiled": ("torch.compile int8", compiled, lambda: matmul_cases(FEW_MATRICES, [1, 16], ["w8g128"]), []),
}


def missing_modules(names):
    reasons = []
    for name in names:
        try:
            __import__(name)
        except Exception as error:  # A package that breaks while it loads is missing too.
            reasons.append(f"{name}: {type(error).__name__}: {error}")
    return reasons


def run_peer(peer, card, emit, deadline):
    who, measure, cases, needs = PEERS[peer]
    reasons = missing_modules(["torch"] + needs)
    if reasons:
        print(f"MISSING  {who}: {'; '.join(reasons)}", flush=True)
    if reasons and card:
        return
    for case in cases():
        row = {"who": who, **case}
        label = " ".join(str(value) for value in row.values())
        if time.monotonic() > deadline:
            print(f"MISSING  {label} and what follows: out of time", flush=True)
            return
        try:
            row["us"] = measure(card, case) if card else 1.0
            emit(row)
        except Exception as error:  # One case that fails, runs out of memory or does not compile.
            reason = str(error).strip().splitlines() or [""]
            print(f"MISSING  {label}: {type(error).__name__}: {reason[0][:200]}", flush=True)
        if card:
            card.forget()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("peers", nargs="*", metavar="PEER", choices=[[], *PEERS], default=[])
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("--json")
    parser.add_argument("--dry-run", metavar="CARD")
    args = parser.parse_args()
    # Each peer has its share of the time, so that none starves those behind it.
    peers = args.peers or list(PEERS)
    card = None
    if not args.dry_run:
        try:
            card = Card()
        except Exception as error:
            print(f"MISSING  all peers: {type(error).__name__}: {error}")
            return 1
        print(f"{card.name()}, torch {card.torch.__version__}", flush=True)
    device = card.name() if card else args.dry_run
    out = open(args.json, "w") if args.json else None

    def emit(row):
        print(f"{row['who']:20} {row['op']} {row['shape']} {row['format']} "
              f"{row.get('keys', '-')} keys, {row['tokens']} tokens: {row['us']:.2f} us", flush=True)
        if out:
            print(json.dumps({**row, "device": device}), file=out, flush=True)

    end = time.monotonic() + args.seconds
    for index, peer in enumerate(peers):
        now = time.monotonic()
        run_peer(peer, card, emit, now + (end - now) / (len(peers) - index))
    return 0


if __name__ == "__main__":
    sys.exit(main())
