"""What a launch writes, in words: which of the launches that look alike is meant."""

import numpy as np

from experiments.walk.watch import ATOMIC, READ, WRITE


def purpose(launch, operands):
    """What a launch does to the arrays of a convolution.

    Parameters
    ----------
    launch : experiments.walk.watch.Launch
    operands : dict of str to experiments.walk.trace.Operand
        By name.

    Returns
    -------
    str
        Such as ``"writes dI at rows 1, 3, 5 and columns 0, 2, 4, 6"``; empty if it writes nothing.
    """
    reads = any(len(launch.of(i, READ)) for i, m in enumerate(launch.memories) if not m.shared)
    found = []
    for number, memory in enumerate(launch.memories):
        adds, writes = launch.of(number, ATOMIC), launch.of(number, WRITE)
        if memory.shared or not len(adds) + len(writes):
            continue
        verb = "adds to" if len(adds) else "writes" if reads else "clears"
        elements = np.unique((adds if len(adds) else writes)[:, 4])
        found.append(f"{verb} {_part(elements, memory, operands.get(memory.name))}")
    return ", ".join(found)


def _part(elements, memory, operand):
    """Which part of an array some elements are."""
    if operand is None:
        return "partial sums"
    if len(elements) == operand.array.size:
        return f"all of {memory.name}"
    axes = operand.axes.split(", ")
    if "H" not in axes:
        return f"{len(elements)} of {operand.array.size} elements of {memory.name}"
    index = np.unravel_index(elements, operand.shape)
    rows, columns = (_listed(index[axes.index(axis)]) for axis in "HW")
    return f"{memory.name} at rows {rows} and columns {columns}"


def _listed(places):
    """1, 3, 5: the different places of an axis."""
    return ", ".join(map(str, np.unique(places).tolist()))
