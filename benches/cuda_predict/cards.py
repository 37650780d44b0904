"""The cards, and the constants of the model: what memory, caches and schedulers are taken to do."""
from dataclasses import dataclass

# Seconds from the end of a kernel's predecessor to the kernel's own loads: graph replay, dependent launch.
LAUNCH = 0.8e-6
# Of the memory's bandwidth, what a loop that waits for its loads reaches.
STREAMED = 0.93
# Warp instructions that a multiprocessor issues in a clock.
ISSUE = 4
# Clocks until a load has its value: from memory where the line is prefetched or in the second-level cache.
L2_LATENCY = 550
DRAM_LATENCY = 900
# Clocks of a unit's mma instructions, each of which waits for the sums of the one before it.
UNIT_CHAIN = 8 * 34
# Clocks of the sum over a block's warps, behind each strip of `matmul_few`.
REDUCTION = 350


@dataclass(frozen=True)
class Card:
    """Rates in bytes, operations and clocks a second."""
    name: str
    dram: float
    l2: float = 5.5e12
    multiprocessors: int = 132
    shared_block: int = 227 << 10
    shared_multiprocessor: int = 228 << 10
    # Kernels that wait for memory, and kernels of tensor cores.
    clock: float = 1.9e9
    clock_tensor: float = 1.7e9
    # Multiply-adds of wgmma on f16, a multiprocessor and clock.
    tensor_macs: int = 2048

    @property
    def flops(self):
        return 2 * self.tensor_macs * self.multiprocessors * self.clock_tensor

    def l2_bytes_a_clock(self, clock):
        """What a multiprocessor gets from the second-level cache if all ask."""
        return self.l2 / self.multiprocessors / clock


CARDS = {"h100": Card("H100 SXM", dram=3.05e12), "h200": Card("H200", dram=4.35e12)}
