"""That the forms choose as the backend does: cases of the unit tests of few.rs, many.rs and sm90_matmul.rs, on an
H200."""
from cards import CARDS
from forms import CURRENT
from products import parts_of
from shapes import FORMATS, Product

CARD = CARDS["h200"]
# Tokens and columns to blocks of a multiprocessor, of `matmul_few`.
RESIDENT = {(1, 65536): 1, (4, 4096): 2, (2, 14336): None, (5, 32): None}
# Row blocks and columns to parts of the columns.
PARTS = {(48, 4096): 8, (32, 4096): 8, (224, 4096): 2, (32, 14336): 8, (1002, 4096): 1, (128, 2048): 4, (5, 576): 2,
         (5, 100): 1, (5, 1024): 4, (5, 2048): 8}
# Rows of the products and tokens to rows and tokens of a tile.
TILES = {((2048,), 512): (128, 64), ((4096,), 512): (128, 128), ((2048, 512, 512), 512): (128, 128),
         ((14336,), 512): (256, 128), ((4096,), 2048): (256, 128), ((4096, 1024, 1024), 512): (256, 128)}


def check():
    for (tokens, cols), expected in RESIDENT.items():
        found = CURRENT.products[0].resident(CARD, tokens, cols)
        assert found == expected, f"{tokens} tokens x {cols}: expected {expected}, found {found}"
    for (row_blocks, cols), expected in PARTS.items():
        found = parts_of(row_blocks, cols, CARD.multiprocessors)
        assert found == expected, f"{row_blocks} row blocks x {cols}: expected {expected}, found {found}"
    for (rows, tokens), expected in TILES.items():
        found = CURRENT.products[-1].shape(CARD, None, Product("", rows, 4096), FORMATS["w8g128"], tokens)
        assert found == expected, f"{rows} x {tokens}: expected {expected}, found {found}"
