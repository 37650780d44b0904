"""Which kernels a step is made of. What changes in kernels-cu/ or in the choice between kernels is changed
here, and nowhere else."""
from dataclasses import dataclass

from others import Decode, Packing, Prefill, Rest
from products import Few, Tiles, Wgmma


@dataclass(frozen=True)
class Forms:
    # The first that takes a product is launched.
    products: tuple
    packing: Packing = Packing()
    decode: Decode = Decode()
    prefill: Prefill = Prefill()
    rest: Rest = Rest()
    # Tokens of a prompt that a step takes.
    chunk: int = 2048

    def product(self, card, loops, product, form, tokens):
        """A launch, with the packing before it."""
        kind = next(kind for kind in self.products if kind.takes(card, tokens, product.cols))
        cost = kind.cost(card, loops, product, form, tokens)
        if getattr(kind, "packed", False):
            sm90 = isinstance(kind, Wgmma)
            cost.before.append(self.packing.cost(card, loops, product.cols, tokens, sm90))
        return cost


# What the tree has: all its kernels have loop rows, which ci/sass.sh checks by a run.
CURRENT = Forms(
    products=(
        Few(),
        Tiles(16, "matmul_many_16", tile_tokens=16, blocks=3, stages=5),
        Tiles(32, "matmul_many_32", tile_tokens=32, blocks=3, stages=4),
        Tiles(64, "matmul_many_64", tile_tokens=64, blocks=2, stages=4),
        Wgmma(),
    ),
)
