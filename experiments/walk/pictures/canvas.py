"""A page measured in inches from its upper left corner, with a title, a legend, and capsules as tiles.

One colour for each role: white is 0, the role's colour positive, grey negative. y runs downwards.
"""

from dataclasses import dataclass

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import ConnectionPatch, Rectangle

ROLES = {
    "input": "#1f5fa8",
    "kernel": "#d97706",
    "product": "#7c3aa8",
    "output": "#1a7f4e",
    "gradient": "#c2273f",
}
NEGATIVE, OUTLINE, FRAME, QUIET = "#5b5b5b", "#111111", "#b9b9b9", "#666666"
_MAPS = {
    role: LinearSegmentedColormap.from_list(role, [NEGATIVE, "white", colour])
    for role, colour in ROLES.items()
}
_MOST_NUMBERS = 6  # rows or columns of a capsule whose numbers can still be read


@dataclass(frozen=True)
class Box:
    """A rectangle on the canvas, inches."""

    x: float
    y: float
    width: float
    height: float

    @property
    def right(self):
        return self.x + self.width

    @property
    def bottom(self):
        return self.y + self.height

    @property
    def middle(self):
        return self.x + self.width / 2, self.y + self.height / 2


class Canvas:
    """A page measured in inches from its upper left corner, with a title, a legend and tiles."""

    def __init__(self, width, height, title, where, shapes, roles, note):
        self.width, self.height = width, height
        self.figure = Figure(figsize=(width, height), facecolor="white")
        self.axes = self.figure.add_axes((0, 0, 1, 1))
        self.axes.set(xlim=(0, width), ylim=(height, 0), autoscale_on=False)
        self.axes.axis("off")
        self.text(0.4, 0.42, title, size=16, weight="bold", ha="left")
        self.text(0.4, 0.76, where, size=11, color=QUIET, ha="left")
        self.text(0.4, 1.04, shapes, size=10, color=QUIET, ha="left", family="monospace")
        self._legend(roles, note)

    def _legend(self, roles, note):
        """What the colours mean, along the lower edge."""
        x, y = 0.4, self.height - 0.28
        for role in roles:
            gradient = np.linspace(-1, 1, 64)[None]
            self.pixels(Box(x, y - 0.07, 0.4, 0.14), gradient, role, 1.0)
            self.text(x + 0.47, y, role, size=10, color=ROLES[role], ha="left")
            x += 0.75 + 0.085 * len(role)
        if not roles:
            return
        words = "white 0, colour positive, grey negative"
        words += f";   black outline: {note}" if note else ""
        self.text(self.width - 0.4, y, words, size=10, color=QUIET, ha="right")

    def text(self, x, y, words, size=10, color=OUTLINE, ha="center", va="center", **more):
        self.axes.text(x, y, words, fontsize=size, color=color, ha=ha, va=va, **more)

    def pixels(self, box, matrix, role, scale):
        """A matrix as a heat map that fills the box."""
        self.axes.imshow(
            matrix,
            extent=(box.x, box.right, box.bottom, box.y),
            cmap=_MAPS[role],
            vmin=-scale,
            vmax=scale,
            interpolation="nearest",
            aspect="auto",
        )

    def outline(self, box, color=OUTLINE, width=2.2, zorder=3, **more):
        look = {"fill": False, "edgecolor": color, "lw": width, "zorder": zorder}
        self.axes.add_patch(Rectangle((box.x, box.y), box.width, box.height, **look, **more))

    def bar(self, box, color):
        """A filled rectangle."""
        self.axes.add_patch(Rectangle((box.x, box.y), box.width, box.height, color=color, lw=0))

    def tile(self, box, matrix, role, scale, numbers=False):
        """A capsule as a heat map in a frame; with its numbers if they can be read."""
        self.pixels(box, matrix, role, scale)
        self.outline(box, ROLES[role] if numbers else FRAME, 1.6 if numbers else 0.6)
        rows, columns = matrix.shape
        if not numbers or max(rows, columns) > _MOST_NUMBERS:
            return
        high, wide = box.height / rows, box.width / columns
        for i, j in np.ndindex(rows, columns):
            value = matrix[i, j]
            self.text(
                box.x + (j + 0.5) * wide,
                box.y + (i + 0.5) * high,
                _number(value, 2 if wide > 0.6 else 1),
                size=min(10, 25 * min(wide, high)),
                color="white" if abs(value) > 0.7 * scale else OUTLINE,
            )

    def arrow(self, start, end, color=QUIET, bend=0.0):
        self.axes.add_patch(
            ConnectionPatch(
                start,
                end,
                "data",
                arrowstyle="-|>",
                mutation_scale=13,
                connectionstyle=f"arc3,rad={bend}",
                color=color,
                lw=1.4,
            )
        )

    def zoom(self, small, large):
        """Two thin lines that say: the large box is the small one, enlarged."""
        for y_small, y_large in ((small.y, large.y), (small.bottom, large.bottom)):
            self.axes.plot(
                (small.right, large.x), (y_small, y_large), color=OUTLINE, lw=0.8, ls=(0, (4, 3))
            )

    def sheet(self, place, tiles, rows, columns, role, scale):
        """A table of capsules; a capsule fills nine tenths of its cell.

        Parameters
        ----------
        place : Box
            The table's; see `table_size`.
        tiles : callable
            ``tiles(row, column)`` is a matrix.
        rows, columns : list of int or None
            What to show, with None for a gap; see `shown`.

        Returns
        -------
        dict
            Box of the cell of each (row, column).
        """
        boxes = {}
        width, height = place.width / len(columns), place.height / len(rows)
        for i, row in enumerate(rows):
            for j, column in enumerate(columns):
                box = Box(place.x + j * width, place.y + i * height, width, height)
                if row is None or column is None:
                    dots = "···" if row is not None else "⋮"
                    self.text(*box.middle, dots, size=9, color=QUIET)
                    continue
                matrix = tiles(row, column)
                self.tile(fitted(box, matrix.shape, 0.9), matrix, role, scale)
                boxes[row, column] = box
        return boxes


def _number(value, decimals):
    """A rounded number with a real minus sign, and no sign at zero."""
    return f"{value:z.{decimals}f}".replace("-", "−")


def fitted(box, shape, share=1.0):
    """The largest box of a matrix's proportions in the middle of another."""
    rows, columns = shape
    pitch = share * min(box.width / columns, box.height / rows)
    width, height = columns * pitch, rows * pitch
    x, y = box.middle
    return Box(x - width / 2, y - height / 2, width, height)


def table_size(shape, rows, columns, width, height):
    """(width, height) of the largest table of capsules of a shape that fits.

    Cells have the capsules' proportions, but none narrower than 1 to 2, and at most 1.6 inches.
    """
    aspect = min(max(shape[0] / shape[1], 0.5), 2.0)
    cell = min(width / len(columns), height / len(rows) / aspect, 1.6, 1.6 / aspect)
    return cell * len(columns), cell * aspect * len(rows)


def around(boxes):
    """The smallest box around some boxes."""
    boxes = list(boxes)
    x, y = min(box.x for box in boxes), min(box.y for box in boxes)
    right, bottom = max(box.right for box in boxes), max(box.bottom for box in boxes)
    return Box(x, y, right - x, bottom - y)


def shown(count, most, keep=()):
    """Which of ``count`` indices to show in ``most`` places, with None where some are left out.

    Parameters
    ----------
    count, most : int
    keep : iterable of int
        Indices that must be shown, fewer than ``most``.

    Returns
    -------
    list of int or None
        In order. Besides those to keep, their neighbours; without any, the first ones.
    """
    if count <= most:
        return list(range(count))
    chosen = set(keep)
    for distance in range(most):
        for index in [kept + side for kept in keep or [0] for side in (-distance, distance)]:
            if 0 <= index < count and len(_with_gaps(chosen | {index}, count)) <= most:
                chosen.add(index)
    return _with_gaps(chosen, count)


def _with_gaps(chosen, count):
    """Sorted indices with None for every run that is missing."""
    places, following = [], 0
    for index in sorted(chosen):
        if index > following:
            places.append(None)
        places.append(index)
        following = index + 1
    return places + [None] * (following < count)
