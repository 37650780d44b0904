"""That the forms choose as the backend does: cases of the unit tests of matmul.rs and sm90_matmul.rs, on an H200."""
from cards import CARDS
from forms import BEFORE
from shapes import FORMATS, Product

CARD = CARDS["h200"]
# Tokens and columns to blocks a multiprocessor and units of columns that are staged at a time.
STAGED = {(1, 14336): (2, 112), (3, 14336): (2, 112), (7, 14336): (1, 112), (8, 8960): (1, 70), (9, 8960): (1, 70),
          (16, 2048): (2, 16), (16, 14336): (1, 48), (17, 100): (1, 1), (32, 2048): (1, 16)}
# Rows of the products and tokens to rows and tokens of a tile.
TILES = {((2048,), 512): (128, 64), ((4096,), 512): (128, 128), ((2048, 512, 512), 512): (128, 128),
         ((14336,), 512): (256, 128), ((4096,), 2048): (256, 128)}


def check():
    for (tokens, cols), expected in STAGED.items():
        few = next(kind for kind in BEFORE.products if tokens <= kind.tokens_max)
        found = few.shape(CARD, tokens, cols)
        assert found == expected, f"{tokens} tokens x {cols}: expected {expected}, found {found}"
    for (rows, tokens), expected in TILES.items():
        found = BEFORE.products[-1].shape(CARD, None, Product("", rows, 4096), FORMATS["w8g128"], tokens)
        assert found == expected, f"{rows} x {tokens}: expected {expected}, found {found}"
