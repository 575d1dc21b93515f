"""What the instructions of :mod:`numbacaps.device.instructions.ptx.registers` do.

How many registers a thread has is not checked here.
"""

import time

import numpy as np

from numbacaps.device.instructions.simulated.block import Warp
from numbacaps.device.turns import this_thread


def more_registers(number):
    """Registers are not counted here."""


def fewer_registers(number):
    """Registers are not counted here."""


def float_of(bits):
    """The float32 that some bits are."""
    return np.uint32(bits).view(np.float32)


def unforeseen(value):
    """The value: nothing is unrolled here."""
    return value


def unroll_loops():
    """Nothing is unrolled here."""


def pinned(value):
    """The value: registers are not counted here."""
    return value


clock = time.perf_counter_ns


def shuffle(value, lane):
    """What a lane of the warp gives as ``value``."""
    thread = this_thread()
    warp = Warp.of(thread)
    # Who has met the others has read what they gave the time before, so two places take turns.
    turn = thread.shuffles = 1 - vars(thread).get("shuffles", 0)
    warp.values[turn, thread.threadIdx.x % 32] = value
    warp.meet()
    return warp.values[turn, lane]


expm1 = np.expm1  # which keeps the type, as a GPU does


def inverse_root(value):
    """1 / sqrt(value)."""
    return 1 / np.sqrt(value)


def larger(one, other):
    """The larger of two numbers; of a number and NaN the number."""
    return np.fmax(one, other)


def permuted_bytes(one, other, selector):
    """Four of two words' 8 bytes, each named by 4 bits of ``selector``, the lowest first."""
    both = np.array([one, other], np.float32).view(np.uint8)
    return both[[int(selector) >> 4 * i & 7 for i in range(4)]].view(np.float32)[0]


def cut_tf32(value):
    """Without the bits that TF32 has not."""
    return (np.asarray(value, np.float32).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


def to_tf32(value):
    """Rounded to TF32, to nearest, ties away from zero."""
    whole = np.asarray(value, np.float32).view(np.uint32)
    return ((whole + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)[()]


def from_bfloat16(element):
    """The number that a bfloat16 is, of its bits."""
    return (np.asarray(element, np.uint32) << np.uint32(16)).view(np.float32)[()]


def to_bfloat16(value):
    """The bits of the nearest bfloat16, of two the even one."""
    whole = np.asarray(value, np.float32).view(np.uint32)
    if np.isnan(value):
        return np.uint16(0x7FFF)
    return np.uint16((whole + np.uint32(0x7FFF) + (whole >> 16 & np.uint32(1))) >> 16)


def _bits_of_float16(value):
    return np.float16(value).view(np.uint16)


def _halves(bits_of):
    """Two numbers rounded to two bytes each, in 4."""

    def halves(one, other):
        low, high = (int(bits_of(value)) for value in (one, other))
        return np.uint32(high << 16 | low).view(np.float32)

    return halves


HALVES = {"float16": _halves(_bits_of_float16), "bfloat16": _halves(to_bfloat16)}
