"""Matrix products: the three kinds of kernels, each with what tells one form of it from another.

A form's `cost` takes a card, the loop counts, a product, the weights' format and the tokens.
"""
from dataclasses import dataclass
from math import ceil

from cards import DRAM_LATENCY, ISSUE, LAUNCH, REDUCTION, STREAMED, UNIT_CHAIN
from cost import Cost, slowest

STRIP_ROWS, STEP_COLS, UNIT_COLS, TILE_ROWS = 16, 16, 128, 128


def units_of(cols):
    return ceil(cols / UNIT_COLS)


def parts_of(row_blocks, cols, multiprocessors):
    """Parts of the columns of products that share a launch: `parts_of`, many.rs."""
    for parts in (1, 2, 4):
        if parts * row_blocks >= 2 * multiprocessors or units_of(cols) < 4 * parts:
            return parts
    return 8


def parts(card, product):
    return parts_of(product.row_blocks(TILE_ROWS), product.cols, card.multiprocessors)


@dataclass(frozen=True)
class Few:
    """kernels-cu/matmul_few.cu: a block brings all activations to shared memory itself; a warp has one part of one
    strip at a time, whose weights come through a ring."""
    kernel: str = "matmul_few"
    # Blocks of a multiprocessor that registers allow, and codes in a warp's ring.
    blocks: int = 2
    ahead: int = 8192
    # Shared memory of the smallest rings: `RINGS_MIN_BYTES`, few.rs.
    rings_min: int = 8 * 4 * (1024 + 512)
    # Warp instructions for 128 activations: of the first pass, and of the second.
    staging: tuple = (22, 39)

    def takes(self, card, tokens, cols):
        return self.resident(card, tokens, cols) is not None

    def resident(self, card, tokens, cols):
        """Blocks of a multiprocessor: `FewShape`, few.rs. None where activations are too many."""
        shared = 4672 + tokens * (units_of(cols) * UNIT_COLS + 16) * 2
        if shared + self.rings_min > card.shared_block or tokens > 1 and (tokens > 4 or tokens * cols > 16384):
            return None
        return max(1, min(self.blocks, card.shared_multiprocessor // (shared + self.rings_min + 1024)))

    def cost(self, card, loops, product, form, tokens):
        matrices = 2 if product.gated else 1
        cut = parts(card, product)
        groups = ceil(product.row_blocks(STRIP_ROWS * matrices) * cut / 8)
        blocks = min(groups, card.multiprocessors * self.resident(card, tokens, product.cols))
        resident, rounds = ceil(blocks / card.multiprocessors), groups / blocks
        turn = loops.count(self.kernel, form.names)
        weights = form.bytes(product.all_rows, product.cols)
        own = ceil(units_of(product.cols) / cut)
        chain = form.bytes(STRIP_ROWS, own * UNIT_COLS)
        filled = blocks * 8 * min(self.ahead, chain)
        # A chain's units, one after the other, or all resident warps' instructions.
        wait = own * max(turn, UNIT_CHAIN)
        issue = resident * 8 * own * turn / ISSUE
        strip = matrices * (max(wait, issue) + REDUCTION) / card.clock
        instructions = tokens * units_of(product.cols) * sum(self.staging) * resident
        activations = tokens * product.cols * 4
        l2 = blocks * activations
        staging, _ = slowest(l2=l2 / card.l2, latency=0.65e-6, issue=instructions / ISSUE / card.clock)
        stream = (weights - filled) / (STREAMED * card.dram)
        front, bound_front = slowest(staging=staging, memory=filled / card.dram)
        back, bound_back = slowest(loop=rounds * strip, memory=stream)
        bound = bound_front if front > back else bound_back
        flops = 2 * tokens * product.all_rows * product.cols
        return Cost(product.name, self.kernel, LAUNCH + front + back, weights + activations, l2 + weights, flops, blocks,
                    turn, bound)


@dataclass(frozen=True)
class Tiles:
    """kernels-cu/matmul_many.cu: a block has a tile of rows by tokens and a part of the columns, which it takes in
    stages through a ring. Activations are f16, packed by a launch before."""
    tokens_max: int
    kernel: str
    tile_tokens: int
    # Blocks of a multiprocessor that registers and shared memory allow, and stages of the ring.
    blocks: int
    stages: int
    warps: int = 4
    # Seconds of a block beside its stages: the ring's start, sums, results.
    block_seconds: float = 2.2e-6
    # Bytes of shared memory that a multiprocessor reads or writes in a clock.
    shared_bytes: int = 128
    # mma.sync beside wgmma.
    mma_sync: float = 0.6
    packed: bool = True

    def takes(self, card, tokens, cols):
        return tokens <= self.tokens_max

    def stage_cols(self, form):
        """`STAGE_STEPS`, matmul_many.cu."""
        return STEP_COLS * (4 if self.tile_tokens >= 64 and form.bits == 4 else 32 // form.bits)

    def stage(self, card, loops, form, resident):
        """Clocks of a stage of all blocks of a multiprocessor, by what takes them."""
        cols, clock = self.stage_cols(form), card.clock_tensor
        turn = loops.count(self.kernel, form.names)
        copied = TILE_ROWS * cols * form.bits / 8 + self.tile_tokens * cols * 2
        # Each warp reads all of the tile's activations.
        read = copied + (self.warps - 1) * self.tile_tokens * cols * 2
        return turn, dict(
            issue=resident * self.warps * turn / ISSUE,
            shared_memory=resident * (copied + read) / self.shared_bytes,
            l2=resident * copied / card.l2_bytes_a_clock(clock),
            latency=DRAM_LATENCY / (self.stages - 1),
            tensor=resident * TILE_ROWS * self.tile_tokens * cols / (card.tensor_macs * self.mma_sync))

    def cost(self, card, loops, product, form, tokens):
        cut = parts(card, product)
        tiles = product.row_blocks(TILE_ROWS) * ceil(tokens / self.tile_tokens)
        blocks = tiles * cut
        each = ceil(blocks / card.multiprocessors)
        resident = min(self.blocks, each)
        stages = ceil(units_of(product.cols) / cut) * UNIT_COLS / self.stage_cols(form)
        turn, clocks = self.stage(card, loops, form, resident)
        stage, bound = slowest(**clocks)
        waves = each / resident
        # The block that comes last adds up the parts.
        sums = self.tile_tokens * TILE_ROWS * 4 if cut > 1 else 0
        join = cut * sums / 64 / card.clock_tensor
        weights = form.bytes(product.all_rows, product.cols)
        seconds, slow = slowest(
            stages=waves * (stages * stage / card.clock_tensor + self.block_seconds) + join,
            memory=weights / (STREAMED * card.dram) + self.block_seconds + join)
        activations = tokens * product.cols * 2
        l2 = weights + tiles * self.tile_tokens * product.cols * 2 + 2 * blocks * sums
        flops = 2 * tokens * product.all_rows * product.cols
        bound = slow if slow == "memory" else bound
        return Cost(product.name, self.kernel, LAUNCH + seconds, weights + activations, l2, flops, blocks, turn, bound)


@dataclass(frozen=True)
class Wgmma:
    """kernels-cu/sm90_matmul_many.cu: a block a multiprocessor works off tiles, fed by bulk copies."""
    kernels: str = "sm90_matmul_many_{rows}_{tokens}"
    shapes: tuple = ((256, 128), (256, 64), (128, 128), (128, 64))
    # Tokens whose multiplication takes as long as it takes to make the operand.
    operand_tokens: int = 80
    # A tile's time beside its steps, in clocks for each 64 sums of a lane: results are stored, and read before
    # where they are added to.
    store_clocks: int = 1200
    add_clocks: int = 3600
    packed: bool = True

    def takes(self, card, tokens, cols):
        return True

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
            rows, columns = shape
            rounds = ceil(product.row_blocks(rows) * ceil(tokens / columns) / card.multiprocessors)
            tensor = rows * max(columns, self.operand_tokens) // 128
            data = rows * STEP_COLS * form.bits // 8 + columns * STEP_COLS * 2
            return rounds * max(tensor, 100 * data // 2450), rounds * tensor

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
