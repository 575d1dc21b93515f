"""What GPUs are: the limits of each, and rates that were measured on them.

:func:`current` describes the GPU that kernels run on: its limits come from the driver, its rates from
:data:`RATES`, by its name. Where a name is not there, the rates are those of :data:`H100`, and
``rates_from`` says that they are guessed.

Tables of tiles whose choice decides the order of a sum must not depend on the GPU at hand. They take
the limits of :data:`H100`, which every GPU of compute capability 9.0 shares.
"""

from dataclasses import dataclass
from functools import lru_cache

from numbacaps.device import target

WARPGROUPS = (9, 0)  # the one compute capability that has warpgroup products
MMA_SYNC = (8, 0)  # the first with products of warps of TF32, float16 and bfloat16, and cp.async
BFLOAT16 = (8, 0)  # the first compute capability that rounds to bfloat16
EARLY_START = (9, 0)  # the first with programmatic dependent launch
CLUSTERS = (9, 0)  # the first whose blocks share their shared memory, in clusters
# Bytes of shared memory that a block gets without asking the driver for more; so on every GPU.
SHARED_WITHOUT_ASKING = 48 * 1024
MOST_REGISTERS = 255  # of a thread; so on every GPU since compute capability 3.5
MOST_SET_REGISTERS = 240  # of a thread that asks for more (setmaxnreg), as the kernels do
LARGEST_BOX = 256  # indices along an axis that one TMA copy takes
SHARED_BYTES_A_CYCLE = (
    128  # that a multiprocessor's shared memory takes or gives: 32 banks of 4 bytes
)


@dataclass(frozen=True)
class Rates:
    """What was measured of the die GH100, which the H100 SXM and the H200 share.

    The two cards differ in their memory. All that is here happens between the L2 cache and a
    multiprocessor, or inside one, in cycles of the multiprocessor; so a rate of one card is taken for the
    other, too. Each says on which card it was measured and since when the models use it. "Clocks" are read inside
    a kernel; where no way is said, none was written down.

    Attributes
    ----------
    box_bytes_a_cycle : float
        From the L2 cache to each multiprocessor by TMA, boxes of the gathered array, all
        multiprocessors reading. Clocks, H100, 2026-11-22.
    packed_bytes_a_cycle : float
        The same of the packed kernel by bulk copies, all multiprocessors reading the same bytes.
        Clocks, H100, 2026-11-22: 100 and more.
    loaded_kernel_bytes_a_cycle : float
        The same of a kernel that threads load into registers, without copies, all multiprocessors
        reading the same bytes. Clocks, CUDA C and Numba, H200, 2026-11-23.
    box_row_cycles, whole_box_row_cycles : float
        Cycles more for each row of a box: one that begins at a multiple of 64 bytes, and one that need
        not. H100, 2026-11-22.
    capsule_rows_a_cycle, apart_capsule_rows_a_cycle : float
        Rows of capsules a cycle by TMA: of all slots, and of every second or so. Clocks, H200,
        2026-11-23.
    written_bytes_a_cycle : float
        From each multiprocessor, all of them writing. H100, 2026-11-22; the H200's result
        was 32 where nothing else was read (2026-11-23).
    batch_cycles, batch_cycles_of_three : int
        Cycles from a batch of products to the next where another warpgroup has products, in one term
        and in three.
        H100, 2026-11-22.
    batch_ahead_cycles : int
        Fewer, where the batch is loaded ahead. H100, 2026-11-22.
    alone_cycles : int
        Cycles more where no other warpgroup has products: waiting, converting, latency. H100,
        2026-11-22.
    first_cycles : int
        Until the first bytes are there, the same for boxes and for loads. H100 (2026-11-22)
        and H200 (2026-11-23).
    result_cycles : int
        For a tile's result, besides writing it. H100, 2026-11-22.
    part_cycles : int
        For a tile of rung 6, and again for each warpgroup's sums that are added. H200,
        2026-11-23.
    pack_cycles : int
        What packing the kernel adds to a product. H200, 2026-11-23.
    split_k_bytes_a_cycle : float
        As ``box_bytes_a_cycle``, of both operands of split-K. Card not written down, 2026-11-21.
    split_k_chain_cycles : int
        From one chain of products of split-K to the next. Card not written down, 2026-11-21.
    split_k_block_cycles : int
        Of a block of split-K besides its products, with its result. Card not written down, 2026-11-21.
    split_k_sum_bytes_a_cycle : float
        Of the whole GPU, of all splits' sums, which are written and read. Card not written down, 2026-11-22.
    """

    box_bytes_a_cycle: float = 30
    packed_bytes_a_cycle: float = 100
    loaded_kernel_bytes_a_cycle: float = 34
    box_row_cycles: float = 0.5
    whole_box_row_cycles: float = 3
    capsule_rows_a_cycle: float = 0.5
    apart_capsule_rows_a_cycle: float = 0.25
    written_bytes_a_cycle: float = 28
    batch_cycles: int = 200
    batch_cycles_of_three: int = 150
    batch_ahead_cycles: int = 100
    alone_cycles: int = 350
    first_cycles: int = 1500
    result_cycles: int = 400
    part_cycles: int = 300
    pack_cycles: int = 2500
    split_k_bytes_a_cycle: float = 28
    split_k_chain_cycles: int = 400
    split_k_block_cycles: int = 6000
    split_k_sum_bytes_a_cycle: float = 3000


GH100 = Rates()
RATES = {"NVIDIA H100 80GB HBM3": GH100, "NVIDIA H200": GH100}  # by the driver's name


@dataclass(frozen=True)
class Gpu:
    """A GPU's limits, and its rates.

    Attributes
    ----------
    name : str
        As the driver says it.
    compute_capability : tuple of int
    multiprocessors : int
    shared_bytes : int
        Shared memory that a block can ask the driver for.
    registers : int
        Of a multiprocessor, 32 bits each.
    rates : Rates
    rates_from : str
        Whose rates they are; whether they are guessed.
    """

    name: str
    compute_capability: tuple
    multiprocessors: int
    shared_bytes: int
    registers: int
    rates: Rates
    rates_from: str

    @classmethod
    def of(cls, device):
        """The GPU that a Numba device is: limits from the driver, rates by its name."""
        name = device.name
        known = RATES.get(name)
        return cls(
            name,
            tuple(device.compute_capability),
            device.MULTIPROCESSOR_COUNT,
            device.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
            device.MAX_REGISTERS_PER_MULTIPROCESSOR,
            known or GH100,
            f"measured on {name}'s die" if known else f"guessed for {name}: the H100's",
        )

    @property
    def has_warpgroups(self):
        """It has warpgroup products."""
        return self.compute_capability == WARPGROUPS

    @property
    def has_mma_sync(self):
        """It has products of warps (mma.sync) of TF32, float16 and bfloat16."""
        return self.compute_capability >= MMA_SYNC

    @property
    def has_bfloat16(self):
        """It rounds to bfloat16."""
        return self.compute_capability >= BFLOAT16

    @property
    def has_clusters(self):
        """Its blocks share their shared memory, in clusters."""
        return self.compute_capability >= CLUSTERS


# Limits: CUDA C++ Programming Guide, technical specifications of compute capability 9.0.
H100 = Gpu(
    "NVIDIA H100 80GB HBM3", (9, 0), 132, 227 * 1024, 65536, GH100, "measured on its die, GH100"
)
# Few multiprocessors, so that blocks of persistent kernels take more than one tile.
SIMULATED = Gpu(
    "Numba's simulator",
    (9, 0),
    2,
    227 * 1024,
    65536,
    GH100,
    "guessed for the simulator: the H100's",
)


def current():
    """The GPU that kernels run on, or :data:`SIMULATED`."""
    if target.SIMULATED:
        return SIMULATED
    return _of_device(target.cuda.get_current_device().id)


@lru_cache
def _of_device(number):
    device = target.cuda.get_current_device()
    assert device.id == number, "kept by the current device's number"
    return Gpu.of(device)


def multiprocessors():
    """Of the GPU that kernels run on."""
    return current().multiprocessors
