"""A block's shared memory: named regions that check their overlaps, and the pipeline's part of it."""

from dataclasses import dataclass
from itertools import combinations

from numbacaps.device.gpu import H100
from numbacaps.device.launch import ceil_div
from numbacaps.fused.rung_4_wgmma.tile import SHARED_LIMIT, WARPGROUP

FLOAT = 4  # bytes
LINE = 128  # bytes, to which every region is aligned
BARRIERS = 256  # bytes
MOST_STAGES = BARRIERS // 16 - 1  # two barriers each; one more barrier is the gate
FEWEST_STAGES = 2
WARPGROUPS = 2  # consumers: warpgroups that multiply
WARPS = 4  # of a warpgroup
PRODUCER_REGISTERS = 24  # of a thread whose warpgroup copies


class DoesNotFit(ValueError):
    """A network cannot stay in a multiprocessor; the message is the reason."""


def in_lines(size):
    """Bytes, rounded up to whole lines."""
    return ceil_div(size, LINE) * LINE


@dataclass(frozen=True)
class Region:
    """A run of bytes of shared memory, and when it is in use.

    Attributes
    ----------
    name : str
    begin, bytes : int
        From the aligned beginning of the shared memory.
    first, last : int
        Steps of a pass from which and to which its content is needed.
    """

    name: str
    begin: int
    bytes: int
    first: int
    last: int

    @property
    def element(self):
        """The first element's number."""
        return self.begin // FLOAT

    @property
    def end(self):
        """The first byte behind it."""
        return self.begin + self.bytes

    def meets(self, other):
        """Whether both are in use in some step and share a byte."""
        together = self.first <= other.last and other.first <= self.last
        return together and self.begin < other.end and other.begin < self.end


@dataclass(frozen=True)
class SharedMemory:
    """All regions of a pass.

    Attributes
    ----------
    regions : tuple of Region
    bytes : int
        What a block asks for: all regions, and what aligning the beginning may take.

    Raises
    ------
    ValueError
        Two regions that are in use in the same step overlap, one is not aligned for TMA, or one reaches over the end.
    """

    regions: tuple
    bytes: int

    def __post_init__(self):
        if self.bytes > SHARED_LIMIT:
            raise ValueError(f"{self.bytes} bytes are more than the {SHARED_LIMIT} of a block")
        for region in self.regions:
            if region.begin % 16 or region.first > region.last:
                raise ValueError(f"{region} is not aligned to 16 bytes, or is never in use")
            if region.begin < 0 or region.end + LINE > self.bytes:
                raise ValueError(f"{region} reaches over the {self.bytes} bytes of a block")
        for one, other in combinations(self.regions, 2):
            if one.meets(other):
                raise ValueError(f"{one} and {other} overlap")

    def __getitem__(self, name):
        """The region of a name."""
        return next(region for region in self.regions if region.name == name)


@dataclass(frozen=True)
class Pipeline:
    """Pipeline stages in a ring buffer, through which packed kernels come, and the threads that use them.

    One warpgroup is the producer, which copies by TMA; the others are consumers.

    Attributes
    ----------
    warpgroups : int
        Consumers.
    early, late : int
        Stages that are there in every step; and further ones, where an image's large values lie in other steps.
    begin, pitch, gap : int
        Bytes: where the first stage lies; from one to the next; from behind the early ones to the first late one.
    """

    warpgroups: int
    early: int
    begin: int
    pitch: int
    late: int
    gap: int

    @property
    def stages(self):
        """All stages."""
        return self.early + self.late

    @property
    def empty_at(self):
        """Bytes from a stage's barrier for "full" to the one for "empty"."""
        return 8 * self.stages

    @property
    def gate_at(self):
        """Where the barrier lies that opens the late stages, or the next image."""
        return 16 * self.stages

    @property
    def consumers(self):
        """Threads that multiply."""
        return self.warpgroups * WARPGROUP

    @property
    def threads(self):
        """Threads of a block."""
        return (self.warpgroups + 1) * WARPGROUP

    @property
    def registers(self):
        """What a consumer's thread may have: what the producer leaves."""
        all_of_them = H100.registers // self.threads // 8 * 8 * (self.warpgroups + 1)
        return min(240, (all_of_them - PRODUCER_REGISTERS) // self.warpgroups // 8 * 8)

    def regions(self, steps, late_steps):
        """Its regions: barriers and early stages in all steps, late stages from the first to the last of some."""
        found = (
            Region("barriers", 0, self.gate_at + 8, 0, steps - 1),
            Region("early stages", self.begin, self.early * self.pitch, 0, steps - 1),
        )
        if self.late:
            begin = self.begin + self.early * self.pitch + self.gap
            found += (Region("late stages", begin, self.late * self.pitch, *late_steps),)
        return found
