"""The models' shapes and the formats of weights."""
from dataclasses import dataclass


@dataclass(frozen=True)
class Format:
    """Bits of a code, and columns that share a scale of two bytes. Loops of ci/sass.table have its name, or
    that of its bits alone."""
    bits: int
    group: int

    @property
    def names(self):
        return (f"w{self.bits}g{self.group}", f"w{self.bits}")

    def bytes(self, rows, cols):
        return rows * cols * (self.bits / 8 + 2 / self.group)


FORMATS = {"w8g128": Format(8, 128), "w8g32": Format(8, 32), "w4g32": Format(4, 32)}


@dataclass(frozen=True)
class Product:
    """The matrices of one launch: rows of each, their columns, and whether two are a gate and its values."""
    name: str
    rows: tuple
    cols: int
    gated: bool = False
    adds: bool = False

    @property
    def all_rows(self):
        return sum(self.rows)

    def row_blocks(self, height):
        """Tiles of so many rows; of a gate half of them are the other matrix's."""
        if self.gated:
            return -(-self.rows[0] // (height // 2))
        return sum(-(-rows // height) for rows in self.rows)


@dataclass(frozen=True)
class Model:
    name: str
    layers: int
    width: int
    hidden: int
    heads: int
    kv_heads: int
    dim: int
    vocab: int

    def products(self):
        query, kv = self.heads * self.dim, self.kv_heads * self.dim
        return [
            Product("qkv", (query, kv, kv), self.width),
            Product("o", (self.width,), query, adds=True),
            Product("gate+up", (self.hidden, self.hidden), self.width, gated=True),
            Product("down", (self.width,), self.hidden, adds=True),
        ]

    def head(self):
        return Product("head", (self.vocab,), self.width)

    def weight_bytes(self, form):
        layer = sum(form.bytes(product.all_rows, product.cols) for product in self.products())
        return self.layers * layer + form.bytes(self.vocab, self.width)

    def kv_bytes(self, keys):
        """Keys and values of a sequence in f16, in one layer."""
        return keys * 2 * self.kv_heads * self.dim * 2


MODELS = {
    "1b": Model("Llama-3.2-1B", 16, 2048, 8192, 32, 8, 64, 128_256),
    "8b": Model("Llama-3.1-8B", 32, 4096, 14_336, 32, 8, 128, 128_256),
}
