"""What figures share: their style, the sheet with its title, scales, labels at ends, file bytes.

A figure is a :class:`matplotlib.figure.Figure`. Lengths are inches from the top left.
"""

import io
import math

from matplotlib import rcParams
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from experiments.plots.rows import distinct, is_predicted

QUIET = "#666666"
STYLE = {
    "svg.hashsalt": "numbacaps",  # the same ids, so the same bytes, every time
    "svg.fonttype": "none",  # text stays text
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": "#e4e4e4",
    "axes.edgecolor": "#888888",
    "hatch.linewidth": 0.6,
    "lines.linewidth": 1.8,
    "lines.markersize": 4,
    "text.parse_math": False,  # a workload's name is whatever its user wrote
}


class Sheet:
    """A figure with a title, on which panels are placed in inches from the top left.

    Parameters
    ----------
    width, height : float
    title : str
    notes : sequence of str
        Lines under the title.
    rows : list of dict
        What the figure shows: it names their GPU, and says if any is a prediction.
    """

    def __init__(self, width, height, title, notes, rows):
        self.width, self.height = width, height
        self.figure = Figure(figsize=(width, height), facecolor="white")
        if is_predicted(rows):
            look = {"size": 64, "color": "#c00000", "alpha": 0.13, "weight": "bold"}
            look |= {"rotation": 28, "ha": "center", "va": "center"}
            self.figure.text(0.5, 0.5, "PREDICTION", **look)
            title = f"PREDICTION, not measured: {title}"
        self.text(0.3, 0.35, title, size=14, weight="bold")
        gpus = ", ".join(distinct(rows, "gpu"))
        cards = len({row.get("gpu_uuid") for row in rows})
        gpus += f", {cards} cards" if cards > 1 else ""
        for i, note in enumerate((f"{gpus}; float32 unless a label says otherwise", *notes)):
            self.text(0.3, 0.66 + 0.23 * i, note, color=QUIET)

    def text(self, x, y, words, **look):
        """Words that begin at a place of the sheet."""
        look = {"size": 10, "ha": "left", "va": "center"} | look
        self.figure.text(x / self.width, 1 - y / self.height, words, **look)

    def panel(self, x, y, width, height, title=""):
        """Axes whose corner is at a place of the sheet."""
        bottom = 1 - (y + height) / self.height
        box = (x / self.width, bottom, width / self.width, height / self.height)
        axes = self.figure.add_axes(box)
        axes.set_title(title, loc="left", size=11, weight="bold")
        axes.grid(True, which="major")
        return axes


# ---- scales


def limits(values, factor):
    """Limits of a logarithmic axis that leave so much room around the values."""
    return min(values) / factor, max(values) * factor


def log_scale(axis, words=lambda value, _: f"{value:g}"):
    """Make an axis logarithmic, with ticks at 1, 2 and 5 where it spans little."""
    getattr(axis.axes, f"set_{axis.axis_name}scale")("log")
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 300 else (1,)))
    axis.set_major_formatter(FuncFormatter(words))
    axis.set_minor_formatter(NullFormatter())


def log_height(axes, **words):
    """Make the vertical axis logarithmic, as high as the curves that were drawn."""
    heights = [y for curve in axes.lines for y in curve.get_ydata() if math.isfinite(y)]
    axes.set_ylim(limits(heights, 1.5))
    log_scale(axes.yaxis, **words)


def cross():
    """The look of the cross that stands where something failed: twice as large as a point."""
    size, width = (rcParams[f"lines.{name}"] for name in ("markersize", "linewidth"))
    return {"marker": "x", "ms": 2 * size, "mew": 1.1 * width}


def end_in_cross(axes, last, x, y, colour):
    """Dots from a curve's last point, at ``last``, to the cross at ``x``, where what came next failed."""
    axes.plot([last, x], [y, y], color=colour, lw=0.8, ls=":")
    axes.plot([x], [y], color=colour, **cross())


# ---- labels at the ends of curves


def label_room(count):
    """Height that so many labels need."""
    return max(2.9, 0.18 * count)


def label_ends(axes, ends, height):
    """Write each (x, y, words, colour) right of the panel, beside the curve's end if it can be."""
    pixels = [axes.transData.transform(end[:2]) for end in ends]
    places = [axes.transAxes.inverted().transform(pixel)[1] for pixel in pixels]
    for (x, y, words, colour), place in zip(ends, spread(places, 0.17 / height, 0, 1)):
        arrow = {"arrowstyle": "-", "color": colour, "lw": 0.6, "ls": ":"}
        arrow["relpos"] = (0, 0.5)  # ends left of the words, so that it strikes none through
        axes.annotate(
            words,
            (x, y),
            (1.03, place),
            textcoords="axes fraction",
            size=9,
            color=colour,
            va="center",
            annotation_clip=False,
            arrowprops=arrow,
        )


def spread(places, gap, low, high):
    """Places moved as little as can be so that they are ``gap`` apart, inside low to high.

    Least squares: in sorted order, places less their share of gaps must not decrease, and runs that
    do are pooled at their mean.
    """
    order = sorted(range(len(places)), key=lambda i: places[i])
    pools = []  # mean, count
    for rank, i in enumerate(order):
        mean, count = places[i] - rank * gap, 1
        while pools and pools[-1][0] > mean:
            before, more = pools.pop()
            mean = (mean * count + before * more) / (count + more)
            count += more
        pools.append((mean, count))
    levels = [mean for mean, count in pools for _ in range(count)]
    top = high - gap * (len(places) - 1)
    moved = [0.0] * len(places)
    for rank, i in enumerate(order):
        moved[i] = max(low, min(levels[rank], top)) + rank * gap
    return moved


# ---- files


def file_bytes(figure):
    """The bytes of a figure's files by extension; nothing in them tells when they were made."""
    files = {}
    for extension, metadata in (("png", {"Software": None}), ("svg", {"Date": None})):
        stream = io.BytesIO()
        figure.savefig(stream, format=extension, dpi=150, metadata=metadata)
        files[extension] = stream.getvalue()
    return files
