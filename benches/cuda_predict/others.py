"""What a step launches beside its products: packing, attention, sampling and the small kernels."""
from dataclasses import dataclass
from math import ceil, sqrt

from cards import DRAM_LATENCY, ISSUE, L2_LATENCY, LAUNCH, REDUCTION, STREAMED
from cost import Cost, slowest

PAGE_TOKENS = 16
# Of pages in f16, what pages take: int8 has an f16 scale for 32 elements.
PAGE_SHARE = {"f16": 1.0, "int8": (1 + 2 / 32) / 2}


@dataclass(frozen=True)
class Packing:
    """kernels-cu/activations.cu: rows to f16, after a pass for their scale."""
    kernel: str = "activations"
    sm90_kernel: str = "sm90_activations"
    # Warps that share a token, and 128-column parts of it that a turn of the second pass has.
    warps: int = 8
    ahead: int = 4
    # Seconds of the first pass for 1024 columns of a warp.
    first_pass: float = 0.36e-6

    def cost(self, card, loops, cols, tokens, sm90):
        kernel = self.sm90_kernel if sm90 else self.kernel
        turn = loops.count(kernel, ("pack",))
        parts = ceil(cols / 128 / self.warps)
        # Warps of a multiprocessor share its schedulers.
        sharing = ceil(tokens * self.warps / card.multiprocessors) / ISSUE
        wait = max(1, parts / self.ahead) * L2_LATENCY
        second, bound = slowest(latency=wait / card.clock, issue=parts / self.ahead * turn * sharing / card.clock)
        first = max(parts / 8 * self.first_pass, L2_LATENCY / card.clock)
        first += REDUCTION / card.clock
        read = tokens * cols * 4
        seconds, slow = slowest(passes=first + second, l2=(2 * read + tokens * cols * 2) / card.l2)
        bound = slow if slow == "l2" else bound
        return Cost("packing", kernel, LAUNCH + seconds, 0, 2 * read + tokens * cols * 2, 0, tokens, turn, bound)


@dataclass(frozen=True)
class Decode:
    """kernels-cu/attention_decode.cu, four query heads a block. The loop says what pages are of."""
    kernel: str = "attention_decode_4_{lanes}"
    loop: str = "f16"
    # Keys of a turn of a warp: what ROUNDS loads bring, of a row of so many lanes.
    rounds: int = 4
    warps: int = 4
    splits_max: int = 64
    # Before the first load of a key and after the last turn: the step's tables one after the other; sums.
    front: float = 1.7e-6
    back: float = 0.75e-6
    # Loads under way beside the turn at hand.
    ahead: bool = False

    def cost(self, card, loops, model, sequences, keys):
        lanes = model.dim // 8
        kernel = self.kernel.format(lanes=lanes)
        turn = loops.count(kernel, (self.loop,))
        turns_a_page = max(1, PAGE_TOKENS * lanes // (32 * self.rounds))
        pages = ceil(keys / PAGE_TOKENS)
        # Rounds of a block's warps grow as the square root of the length: `attention.cuh`.
        split = max(ceil(sqrt(pages) / 8), ceil(pages / (self.splits_max * self.warps))) * self.warps
        blocks = ceil(pages / split) * model.kv_heads * sequences
        chain = ceil(split / self.warps) * turns_a_page * ((0 if self.ahead else DRAM_LATENCY) + turn) / card.clock
        data = sequences * model.kv_bytes(keys) * PAGE_SHARE[self.loop]
        all_turns = sequences * model.kv_heads * pages * turns_a_page
        issue = all_turns * turn / card.multiprocessors / ISSUE / card.clock
        memory = data / (STREAMED * card.dram)
        # Both take turns in warps that wait: neither hides the other whole.
        shared = (memory ** 3 + issue ** 3) ** (1 / 3)
        seconds, bound = slowest(latency=chain, memory_and_issue=shared)
        flops = 4 * sequences * keys * model.heads * model.dim
        return Cost("attention", kernel, LAUNCH + self.front + self.back + seconds, data, data, flops, blocks, turn,
                    bound)


@dataclass(frozen=True)
class Prefill:
    """kernels-cu/attention_prefill.cu: tiles of 64 queries by 64 keys, a block of four warps."""
    kernel: str = "attention_prefill_{dim}"
    # Warp instructions that load a tile's keys and values, a warp and element of a head.
    loading: float = 3.7
    # Of the schedulers' slots, what warps use that load, wait and multiply in turn.
    busy: float = 0.58

    def cost(self, card, loops, model, tokens, past=0):
        kernel = self.kernel.format(dim=model.dim)
        turn = loops.count(kernel, ("tile",))
        of_queries = [ceil((past + 64 * (at + 1)) / 64) for at in range(ceil(tokens / 64))]
        tiles = sum(of_queries) * model.heads
        diagonal = len(of_queries) * model.heads
        loading = self.loading * model.dim
        # A loop's shortest way is that of tiles which every query sees whole; the rest of it has the others.
        masked = loops.count(kernel, ("tile",), "body") - turn
        instructions = tiles * loading + diagonal * masked + (tiles - diagonal) * turn
        # Four warps, four schedulers: a warp's instructions are a tile's clocks.
        clocks, bound = slowest(issue=instructions / card.multiprocessors,
                                longest_block=max(of_queries) * (turn + loading))
        seconds = LAUNCH + 2.6e-6 + clocks / self.busy / card.clock_tensor
        data = 2 * (past + tokens) * 2 * model.kv_heads * model.dim
        flops = sum(4 * model.heads * model.dim * (past + at + 1) for at in range(tokens))
        return Cost("attention", kernel, seconds, data, data * len(of_queries), flops,
                    len(of_queries) * model.heads, turn, bound)


@dataclass(frozen=True)
class Rest:
    """What a step has once, in seconds: sampling greedily, five small kernels, two copies. And appending
    keys and values where a prompt does, in each layer."""
    # A block reads 32 KB that the head has noted of a row of 128k logits, in four turns, and one strip.
    sampling: float = 6e-6
    small: float = 8e-6
    copies: float = 10e-6
    append: float = 3e-6
