"""One small product of a walk in numbers: an input capsule, a kernel capsule, their vote, and the sum of all votes.

The input capsule is the one with the most ink, so that little of it is 0. The output channel is the first, and of
capsules of rank 3 the first of their G matrices is shown.
"""

import numpy as np

_MOST = 4  # rows and columns that are printed of a matrix


def in_numbers(stage, trace):
    """What a stage makes of the example, as lines of text.

    Parameters
    ----------
    stage : experiments.walk.records.StageRecord
    trace : experiments.walk.records.Trace

    Returns
    -------
    list of str
        Empty for a stage that only copies what was shown before, and for backward ones.
    """
    l, q = _example(trace)
    g, arrays = trace.plan.geometry, trace.operands
    x, w, vote = (arrays[name].array for name in ("I'", "K'", "O'"))
    x, w, vote = x[0, 0, l, q, 0], w[0, l, q, 0], vote[0, 0, l, q, 0]
    total = arrays["O"].array.reshape(g.N, g.P, g.L, g.G, g.D1, g.D3)[0, 0, l, 0]
    told = {
        "capsule_im2col": (f"an input capsule, I_flat[0,{l},{q}]", x),
        "kernel_extend": (f"its kernel capsule, K'[0,{l},{q}]", w),
        "strided_batched_matmul": (
            f"one product (a vote), I' @ K' = O'[0,0,{l},{q}]",
            x,
            "@",
            w,
            "=",
            vote,
        ),
        "output_reduce": (f"the sum of {g.Q} votes, that one among them, O[0,0,{l}]", total),
    }
    title, *parts = told.get(stage.name, ("",))
    return [f"{title}:", *_beside(parts)] if title else []


def _example(trace):
    """(l, q): the window, and the place in it, of the input capsule with the most ink."""
    columns = np.abs(trace.operands["I_flat"].array[0, :, :, 0])
    ink = columns.sum(axis=(2, 3))
    return map(int, np.unravel_index(np.argmax(ink), ink.shape))


def _beside(parts):
    """Matrices, and the signs between them, side by side."""
    blocks = [[part] if isinstance(part, str) else _rows(part) for part in parts]
    height = max(map(len, blocks))
    wide = [max(map(len, block)) for block in blocks]
    padded = [
        [""] * ((height - len(block)) // 2) + block + [""] * ((height - len(block) + 1) // 2)
        for block in blocks
    ]
    lines = zip(*padded)
    return ["  ".join(text.ljust(n) for text, n in zip(line, wide)).rstrip() for line in lines]


def _rows(matrix):
    """A matrix as text; of a large one the beginning."""
    rows = [
        " ".join(f"{value:6.3f}" for value in row[:_MOST]) + " ..." * (len(row) > _MOST)
        for row in matrix[:_MOST]
    ]
    return rows + ["   ..."] * (len(matrix) > _MOST)
