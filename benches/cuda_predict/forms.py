"""Which kernels a step is made of. What changes in kernels-cu/ or in the choice between kernels is changed
here, and nowhere else."""
from dataclasses import dataclass

from others import Decode, Packing, Prefill, Rest
from products import Few, Tiles, Wgmma


@dataclass(frozen=True)
class Forms:
    # By tokens: the first that takes so many.
    products: tuple
    packing: Packing = Packing()
    decode: Decode = Decode()
    prefill: Prefill = Prefill()
    rest: Rest = Rest()
    # Tokens of a prompt that a step takes.
    chunk: int = 2048

    def product(self, card, loops, product, form, tokens):
        """A launch, with the packing before it."""
        kind = next(kind for kind in self.products if tokens <= kind.tokens_max)
        cost = kind.cost(card, loops, product, form, tokens)
        if getattr(kind, "packed", False):
            sm90 = isinstance(kind, Wgmma)
            cost.before.append(self.packing.cost(card, loops, product.cols, tokens, sm90))
        return cost


# Commit 4b28700.
BEFORE = Forms(products=(
    Few(8, "matmul_few_8", tile_tokens=8, blocks=2),
    Few(16, "matmul_few_16", tile_tokens=16, blocks=2),
    Few(32, "matmul_few_32", tile_tokens=32, blocks=1),
    Tiles(64, "matmul_many_64", tile_tokens=64),
    Wgmma(1 << 30),
))

# What is planned: the batch-invariant form everywhere, tiles of 16 to 64 tokens with a warp a strip from 9 tokens
# on, a block a token in `activations`, up to 64 splits, fewer passes of sampling. Its turns are guesses until the
# kernels have rows in ci/sass.table: then `planned_turn` goes, and the kernels' own names stand here.
PLANNED = Forms(
    products=(
        Few(8, "matmul_few_invariant_8", tile_tokens=8, blocks=2, sums=False),
        Tiles(16, "matmul_tile_16", tile_tokens=16, weight_loads=1, blocks=2, planned_turn=150),
        Tiles(32, "matmul_tile_32", tile_tokens=32, weight_loads=1, blocks=2, planned_turn=190),
        Tiles(64, "matmul_tile_64", tile_tokens=64, weight_loads=1, planned_turn=270),
        Wgmma(1 << 30),
    ),
    packing=Packing(warps=8, ahead=4),
    decode=Decode(splits_max=64),
    rest=Rest(sampling=10e-6),
)

# What the tree has: all its kernels have loop rows, which ci/sass.sh checks by a run.
CURRENT = BEFORE

FORMS = {"current": CURRENT, "before": BEFORE, "planned": PLANNED}
