"""What one launch costs: bytes, instructions, blocks, and the microseconds that follow from them."""
from dataclasses import dataclass, field


@dataclass
class Cost:
    name: str
    kernel: str
    seconds: float
    # From memory, and through the second-level cache.
    dram: float
    l2: float
    flops: float = 0.0
    blocks: int = 0
    # Instructions of a turn of the loop that decides.
    turn: int = 0
    # What is slowest, in words.
    bound: str = ""
    # Launches that go before it, packing activations.
    before: list = field(default_factory=list)

    @property
    def us(self):
        return self.seconds * 1e6

    @property
    def all_us(self):
        return self.us + sum(other.us for other in self.before)

    @property
    def all_seconds(self):
        return self.seconds + sum(other.seconds for other in self.before)


def slowest(**seconds):
    """The longest of some times, and its name."""
    name = max(seconds, key=seconds.get)
    return seconds[name], name.replace("_", " ")
