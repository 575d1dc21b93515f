"""What the instructions of :mod:`numbacaps.device.instructions.ptx.clusters` do.

Whose memory is written must have begun, and must not have ended.
"""

from numbacaps.device.turns import this_block


def cluster_meet():
    """All threads of a cluster wait for each other."""
    this_block().cluster.meet()


cluster_leave = cluster_meet


def fence_barriers():
    """Everything is in order here."""


def copy_to_block(rank, array, index, size, barrier):
    """Copy a run of a shared array to where the cluster's block of that rank has it; its barrier counts the bytes in."""
    own, other = this_block(), this_block().cluster.blocks[int(rank)]
    first, itemsize = int(index), array.dtype.itemsize
    assert first * itemsize % 16 == 0 and size % 16 == 0, "misaligned"
    assert other.threads, "the block has ended, and its shared memory is gone"
    (name,) = (name for name, one in own.common.items() if one is array)
    run = slice(first, first + int(size) // itemsize)
    other.common[name][run] = array[run]
    other.common["barriers"][int(barrier)].take(size=-int(size))
