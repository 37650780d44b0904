"""Matrix products: the three kinds of kernels, each with what tells one form of it from another.

A form's `cost` takes a card, the loop counts, a product, the weights' format and the tokens.
"""
from dataclasses import dataclass
from math import ceil

from cards import DRAM_LATENCY, ISSUE, L2_LATENCY, LAUNCH, REDUCTION, STREAMED
from cost import Cost, slowest

STRIP_ROWS, STEP_COLS, UNIT_COLS = 16, 16, 128


@dataclass(frozen=True)
class Few:
    """kernels-cu/matmul_few.cu: blocks take whole strips, their 8 warps the units of columns in turn, and each
    block brings all activations to shared memory itself."""
    tokens_max: int
    kernel: str
    # Tokens of a tile, and blocks of a multiprocessor that registers allow.
    tile_tokens: int
    blocks: int
    # Bytes of an activation as it is read, and how often each block reads all of them.
    element: int = 4
    passes: int = 2
    # Whether the sums of 16 activations are kept, for minima.
    sums: bool = True
    # Whether a warp's loads are under way a unit before they are needed.
    loads_ahead: bool = False
    # Warp instructions for 128 activations: of the first pass, and of the second.
    staging: tuple = (22, 39)
    # Instructions of a turn where ci/sass.table has no row yet.
    planned_turn: int = 0

    def shape(self, card, tokens, cols):
        """Blocks a multiprocessor, and units of columns that are staged at a time: `FewShape`, matmul.rs."""
        units = ceil(cols / UNIT_COLS)
        fixed = self.tile_tokens * (8 * STRIP_ROWS * 4 + 8 * 8 + 8)

        def token(units):
            return (units * UNIT_COLS + 16) * 2 + ((units * 8 + 1) * 4 if self.sums else 0)

        def room(blocks):
            return min(card.shared_multiprocessor // blocks - 1024, card.shared_block) - fixed

        for blocks in range(self.blocks, 0, -1):
            if tokens * token(units) <= room(blocks):
                return blocks, units
        most = (room(1) // tokens - token(0)) // (token(1) - token(0))
        return 1, max(8, most // 8 * 8)

    def cost(self, card, loops, product, form, tokens):
        matrices = 2 if product.gated else 1
        strips = product.row_blocks(STRIP_ROWS * matrices)
        resident, chunk = self.shape(card, tokens, product.cols)
        blocks = min(strips, card.multiprocessors * resident)
        units = ceil(product.cols / UNIT_COLS)
        turn = self.planned_turn or loops.count(self.kernel, form.names)
        weights = form.bytes(product.all_rows, product.cols)
        activations = tokens * product.cols * self.element
        prefetched = weights * min(1, blocks / strips)
        # A warp's units of a strip, one after the other; and all resident warps' instructions.
        own = ceil(units / 8)
        wait = L2_LATENCY + own * turn if self.loads_ahead else own * (L2_LATENCY + turn)
        issue = min(resident, ceil(blocks / card.multiprocessors)) * 8 * own * turn / ISSUE
        strip = matrices * (max(wait, issue) + REDUCTION) / card.clock
        instructions = tokens * units * sum(self.staging) * min(resident, ceil(blocks / card.multiprocessors))
        latency = 0.65e-6 * max(1, product.cols / 2048 if tokens > 4 else 1)
        whole = chunk >= units
        # What does not fit is staged anew for each strip and matrix; only its scale is known from then on.
        rounds = strips / blocks if whole else ceil(strips / blocks)
        reads = self.passes if whole else self.passes - 1 + rounds * matrices
        l2 = blocks * activations * reads
        staging, _ = slowest(l2=l2 / card.l2, latency=latency,
                             issue=instructions * reads / self.passes / ISSUE / card.clock)
        stream = (weights - prefetched) / (STREAMED * card.dram)
        if whole:
            front, bound_front = slowest(staging=staging, memory=prefetched / card.dram)
            back, bound_back = slowest(loop=rounds * strip, memory=stream)
            bound = bound_front if front > back else bound_back
            seconds = LAUNCH + front + back
        else:
            seconds, bound = slowest(staging=staging + rounds * strip, memory=weights / (STREAMED * card.dram))
            seconds += LAUNCH
        flops = 2 * tokens * product.all_rows * product.cols
        return Cost(product.name, self.kernel, seconds, weights + activations, l2 + weights, flops, blocks, turn, bound)


@dataclass(frozen=True)
class Tiles:
    """kernels-cu/matmul_many.cu and kernels like it: a block has a tile of rows by tokens, and takes its columns
    in stages through a ring. Activations are f16, packed by a launch before."""
    tokens_max: int
    kernel: str
    tile_tokens: int
    tile_rows: int = 128
    stage_cols: int = 64
    warps: int = 8
    # How often the weights of a tile are loaded, once for each warp along the tokens.
    weight_loads: int = 2
    # Blocks of a multiprocessor.
    blocks: int = 1
    # Which count of the loop is meant, see ci/sass.table.
    count: str = "turn"
    # Stages from which on blocks share tiles, and a tile's time beside its stages: ring, sums, results.
    share_stages: int = 8
    tile_seconds: float = 2.2e-6
    # Stages whose loads are under way.
    stages_ahead: int = 3
    packed: bool = True
    # Instructions of a turn where ci/sass.table has no row yet.
    planned_turn: int = 0

    def cost(self, card, loops, product, form, tokens):
        clock = card.clock_tensor
        tiles = product.row_blocks(self.tile_rows) * ceil(tokens / self.tile_tokens)
        stages = ceil(product.cols / self.stage_cols)
        places = card.multiprocessors * self.blocks
        # `ManyShape`, many.rs: tiles that fill the places are one block's.
        rounds = ceil(tiles / places)
        if 100 * tiles >= 80 * rounds * places:
            blocks, own = tiles, rounds * stages
        else:
            blocks = min(max(tiles * stages // self.share_stages, tiles), places)
            own, rounds = tiles * stages / blocks, max(1, tiles / blocks)
        turn = self.planned_turn or loops.count(self.kernel, form.names, self.count)
        weights = form.bytes(product.all_rows, product.cols)
        stage_weights = weights / product.row_blocks(self.tile_rows) / stages * self.weight_loads
        stage_bytes = stage_weights + self.tile_tokens * self.stage_cols * 2
        stage, bound = slowest(
            issue=self.warps * self.blocks * turn / ISSUE / clock,
            l2=stage_bytes * self.blocks / card.l2_bytes_a_clock(clock) / clock,
            latency=DRAM_LATENCY / self.stages_ahead / clock,
            tensor=self.blocks * self.tile_rows * self.tile_tokens * self.stage_cols / (card.tensor_macs * 0.6) / clock,
        )
        seconds, slow = slowest(tiles=own * stage + rounds * self.tile_seconds,
                                memory=weights / (STREAMED * card.dram) + self.tile_seconds)
        activations = tokens * product.cols * 2
        l2 = tiles * stages * stage_bytes
        flops = 2 * tokens * product.all_rows * product.cols
        bound = slow if slow == "memory" else bound
        return Cost(product.name, self.kernel, LAUNCH + seconds, weights + activations, l2, flops, blocks, turn, bound)


@dataclass(frozen=True)
class Wgmma:
    """kernels-cu/sm90_matmul_many.cu: a block a multiprocessor works off tiles, fed by bulk copies."""
    tokens_max: int
    kernels: str = "sm90_matmul_many_{rows}_{tokens}"
    shapes: tuple = ((256, 128), (256, 64), (128, 128), (128, 64))
    # Tokens whose multiplication takes as long as it takes to make the operand.
    operand_tokens: int = 80
    # A tile's time beside its steps, in clocks for each 64 sums of a lane: results are stored, and read before
    # where they are added to.
    store_clocks: int = 1200
    add_clocks: int = 3600
    # Whether a shape is chosen by what the second-level cache needs, too.
    counts_l2: bool = False
    packed: bool = True

    def step(self, card, loops, form, rows, tokens):
        """Clocks of 16 columns, by what takes them; and the bytes that come."""
        clock = card.clock_tensor
        data = form.bytes(rows, STEP_COLS) + tokens * STEP_COLS * 2
        turn = loops.count(self.kernels.format(rows=rows, tokens=tokens), form.names)
        return dict(tensor=rows * tokens * STEP_COLS / card.tensor_macs,
                    l2=data / card.l2_bytes_a_clock(clock),
                    # Eight warps multiply, and a turn has four steps.
                    issue=8 * turn / 4 / ISSUE), data, turn

    def shape(self, card, loops, product, form, tokens):
        """As `Shape::new`, sm90_matmul.rs."""
        def time(shape):
            rounds = ceil(product.row_blocks(shape[0]) * ceil(tokens / shape[1]) / card.multiprocessors)
            if self.counts_l2:
                return rounds * max(self.step(card, loops, form, *shape)[0].values())
            return rounds * shape[0] * max(shape[1], self.operand_tokens)

        return min((shape for shape in self.shapes if not product.gated or shape[0] == 256), key=time)

    def cost(self, card, loops, product, form, tokens):
        rows, columns = self.shape(card, loops, product, form, tokens)
        tiles = product.row_blocks(rows) * ceil(tokens / columns)
        rounds = ceil(tiles / card.multiprocessors)
        steps = ceil(product.cols / STEP_COLS)
        clocks, data, turn = self.step(card, loops, form, rows, columns)
        step, bound = slowest(**clocks)
        end = rows * columns / 256 / 64 * (self.add_clocks if product.adds else self.store_clocks)
        weights = form.bytes(product.all_rows, product.cols)
        seconds, slow = slowest(tiles=rounds * (steps * step + end) / card.clock_tensor,
                                memory=weights / (STREAMED * card.dram))
        flops = 2 * tokens * product.all_rows * product.cols
        dram = weights + tokens * product.cols * 2
        kernel = self.kernels.format(rows=rows, tokens=columns)
        bound = slow if slow == "memory" else bound
        return Cost(product.name, kernel, LAUNCH + seconds, dram, tiles * steps * data, flops,
                    min(tiles, card.multiprocessors), turn, bound)
