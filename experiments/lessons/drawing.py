"""What the lessons' pictures are made of: heat maps, bars, outlines; in the colours of the walk."""

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import NullFormatter

from experiments.walk.pictures.canvas import NEGATIVE, OUTLINE, ROLES

_READABLE = 8  # rows or columns of numbers that can still be read


def page(columns, rows=1, width=3.2, height=3.4):
    """A figure of panels, and their axes, row by row.

    Parameters
    ----------
    columns, rows : int
    width, height : float
        Of a panel, inches.
    """
    size = width * columns, height * rows
    figure = Figure(figsize=size, layout="constrained", facecolor="white")
    return figure, figure.subplots(rows, columns, squeeze=False).ravel().tolist()


def heat(axes, matrix, role, title, most=None, numbers=False):
    """A matrix as a heat map: white is 0, the role's colour positive, grey negative.

    Parameters
    ----------
    axes : matplotlib.axes.Axes
    matrix : ndarray of two axes
    role : str
        Of :data:`experiments.walk.pictures.ROLES`.
    title : str
    most : float, optional
        What has the full colour; by default the largest magnitude.
    numbers : bool
        Write them into the cells, where they can be read.
    """
    matrix = np.asarray(matrix, float)
    most = most or np.abs(matrix).max() or 1.0
    colours = LinearSegmentedColormap.from_list(role, [NEGATIVE, "white", ROLES[role]])
    look = {"cmap": colours, "vmin": -most, "vmax": most, "interpolation": "nearest"}
    axes.imshow(matrix, aspect="equal", **look)
    axes.set(title=title, xticks=[], yticks=[])
    if numbers and max(matrix.shape) <= _READABLE:
        for place in np.ndindex(matrix.shape):
            colour = "white" if abs(matrix[place]) > 0.7 * most else OUTLINE
            at = {"ha": "center", "va": "center", "color": colour, "fontsize": 8}
            axes.text(place[1], place[0], f"{matrix[place]:.3g}", **at)


def outline(axes, row, column, rows, columns, colour=OUTLINE):
    """A frame around some cells of a heat map."""
    corner = column - 0.5, row - 0.5
    axes.add_patch(Rectangle(corner, columns, rows, fill=False, edgecolor=colour, lw=2))


def bars(axes, values, role, title, unit, logarithmic=False):
    """Horizontal bars with their numbers.

    Parameters
    ----------
    values : dict of str to float
        From the top.
    role : str, or list of str
        One for all bars, or one for each.
    unit : str
    logarithmic : bool
    """
    roles = [role] * len(values) if isinstance(role, str) else role
    drawn = axes.barh(list(values), list(values.values()), color=[ROLES[one] for one in roles])
    axes.bar_label(drawn, [_short(value) for value in values.values()], padding=3)
    axes.invert_yaxis()
    axes.margins(x=0.18)
    axes.set(title=title, xlabel=unit + (", log scale" if logarithmic else ""))
    if logarithmic:
        axes.set_xscale("log")
        axes.xaxis.set_minor_formatter(NullFormatter())
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _short(value):
    """A number of a bar."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def pixels(capsules):
    """One channel of capsules (H, W, D1, D2) laid out as the picture that they were cut from."""
    H, W, D1, D2 = capsules.shape
    return capsules.swapaxes(1, 2).reshape(H * D1, W * D2)
