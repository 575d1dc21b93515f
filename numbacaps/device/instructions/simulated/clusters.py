"""What the instructions of :mod:`numbacaps.device.instructions.ptx.clusters` do.

Whose memory is written must have begun, and must not have ended.
"""

from numbacaps.device.turns import this_block


def cluster_meet():
    """All threads of a cluster wait for each other."""
    this_block().cluster.meet()


def to_block(rank, array, index, value, barrier):
    """Write an element of a shared array as the cluster's block of that rank has it; its barrier counts the bytes in."""
    own, other = this_block(), this_block().cluster.blocks[int(rank)]
    assert other.threads, "the block has ended, and its shared memory is gone"
    (name,) = (name for name, one in own.common.items() if one is array)
    other.common[name][index] = value
    other.common["barriers"][int(barrier)].take(size=-array.dtype.itemsize)
