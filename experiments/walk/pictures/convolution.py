"""Figures 1 and 2: a convolution maps tensors to numbers, a capsule convolution tensors to tensors."""

import numpy as np

from experiments.walk.figures import ones, scalar_convolution
from experiments.walk.pictures.canvas import QUIET, ROLES, Box, Canvas, fitted


def convolution(view):
    """1: both, over the same digit; and the paper's own examples, all of ones."""
    g, examples = view.geometry, ones()
    canvas = Canvas(
        13,
        8.6,
        "A convolution, and a capsule convolution",
        "Figure 1: a window of numbers times weights is one number.   Figure 2: a window of capsules "
        "times kernel capsules is one capsule.",
        "",
        ("input", "kernel", "output"),
        None,
    )
    _scalars(canvas, view, examples["scalars"])
    p = int(np.abs(view.tiles("O")[0, :, *view.position]).sum(axis=(1, 2)).argmax())
    y, side = 5.0, 2.5
    cells = [(c * g.KH + kh, kw) for c in range(g.C) for kh in range(g.KH) for kw in range(g.KW)]
    rows, columns = list(range(g.C * g.KH)), list(range(g.KW))
    inputs, kernels = (
        view.tiles("I_flat")[0, view.l],
        view.tiles("K")[p].reshape(len(cells), g.G * g.D2, g.D3),
    )
    for x, name, role, tiles in ((0.6, "I", "input", inputs), (4.3, "K", "kernel", kernels)):
        place = fitted(
            Box(x, y, side, side), (len(rows) * tiles.shape[1], len(columns) * tiles.shape[2])
        )
        canvas.sheet(place, lambda i, j: tiles[i * g.KW + j], rows, columns, role, view.scale(name))
        canvas.text(
            place.middle[0], place.y - 0.18, f"{len(cells)} capsules of {name}", color=ROLES[role]
        )
    canvas.text(3.7, y + side / 2, "@", size=16, color=QUIET)
    canvas.text(7.5, y + side / 2, "sum  →", size=14, color=QUIET)
    total = view.tiles("O")[(0, p, *view.position)]
    place = fitted(Box(8.3, y + 0.3, 1.9, 1.9), total.shape)
    canvas.tile(place, total, "output", view.scale("O"), numbers=True)
    canvas.text(place.middle[0], place.y - 0.18, "one capsule of O", color=ROLES["output"])
    _example(
        canvas,
        Box(11.0, y + 0.3, 1.5, 1.5),
        np.array(examples["capsules"])[0, 0, 0],
        ("5 x 5 capsules of 3 x 3 x 3 ones", "under 4 x 4 of them:", "every number 16 x 3 = 48"),
    )
    return canvas


def _scalars(canvas, view, example):
    """The upper half: pixels of the digit under one number of each kernel capsule."""
    told, y, side = scalar_convolution(view.trace), 1.6, 2.3
    window, kernel = np.array(told["window"]), np.array(told["kernel"])
    for x, role, matrix in ((0.6, "input", window), (4.3, "kernel", kernel)):
        place = fitted(Box(x, y, side, side), matrix.shape)
        canvas.tile(place, matrix, role, float(np.abs(matrix).max()) or 1.0, numbers=True)
        words = "pixels of the digit" if role == "input" else "weights"
        canvas.text(place.middle[0], y - 0.18, words, color=ROLES[role])
    canvas.text(3.7, y + side / 2, "·", size=16, color=QUIET)
    canvas.text(7.5, y + side / 2, "sum  →", size=14, color=QUIET)
    total = np.array([[told["sum"]]])
    place = Box(8.85, y + side / 2 - 0.4, 0.8, 0.8)
    canvas.tile(place, total, "output", float(np.abs(total).max()) or 1.0, numbers=True)
    canvas.text(place.middle[0], place.y - 0.18, "one number", color=ROLES["output"])
    _example(
        canvas,
        Box(11.0, y + 0.3, 1.5, 1.5),
        np.array(example)[0],
        ("5 x 5 x 4 ones under", "4 x 4 x 3 ones:", "every number 4 x 4 x 3 = 48"),
    )


def _example(canvas, place, matrix, words):
    """A corner of what the paper's example comes to, as the kernels wrote it."""
    canvas.tile(
        fitted(place, matrix.shape), matrix, "output", float(matrix.max()) * 1.6, numbers=True
    )
    canvas.text(place.middle[0], place.y - 0.18, "the paper's example, run", size=9, color=QUIET)
    for i, line in enumerate(words):
        canvas.text(place.middle[0], place.bottom + 0.15 + 0.18 * i, line, size=9, color=QUIET)
