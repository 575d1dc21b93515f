"""What figures for print share: a column of panels, below them the legend and where the rows come from.

Lengths are inches. The legend's height is known from its entries before anything is placed, so nothing collides.
"""

import io

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from experiments.plots.canvas import QUIET
from experiments.plots.canvas import STYLE as SCREEN
from experiments.plots.rows import distinct, is_predicted

WIDTH = 3.4  # of a column of two
STYLE = SCREEN | {
    "pdf.fonttype": 42,  # text stays text
    "font.size": 7,
    "axes.titlesize": 7.5,
    "axes.linewidth": 0.6,
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.1,
    "lines.markersize": 3.2,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.minor.width": 0.4,
    "ytick.minor.width": 0.4,
}
MARKS = {"ieee": "o", "tf32x3": "^", "tf32": "s", "float16": "D", "bfloat16": "P"}
_LEFT, _RIGHT, _TOP, _BETWEEN = 0.55, 0.08, 0.22, 0.5
_ENTRY, _ORIGIN = 0.125, 0.16  # a line of the legend; the line below it
_MOST = 46  # letters of an entry
_LONGEST = 23  # letters of an entry that two fit of beside each other


def mark(line):
    """The mark of a line's precision."""
    return MARKS.get(line.precision, "v")


def name(line):
    """A line's label; that it is an opponent's best layout is left to the caption."""
    return short(line.label.removesuffix(" best layout"), _MOST)


def short(words, most):
    """A text, cut to at most ``most`` letters."""
    return words if len(words) <= most else words[: most - 1] + "…"


def entry(line):
    """The legend's entry of a line that is drawn as a curve."""
    look = {"color": line.colour, "ls": line.dashes, "marker": mark(line)}
    return Line2D([], [], label=name(line), **look)


def dot(label, colour, marker, **look):
    """The legend's entry of a mark that no curve joins."""
    return Line2D([], [], color=colour, marker=marker, ls="", label=label, **look)


def column(heights, titles, entries, rows, left=_LEFT):
    """A figure of panels one below the other.

    Parameters
    ----------
    heights : list of float
        Of the panels.
    titles : list of str
    entries : list of matplotlib.lines.Line2D
        Of the legend.
    rows : list of dict
        What the figure shows: they name GPU and dates, and say if any is a prediction.
    left : float
        Room for what is written left of the panels.

    Returns
    -------
    figure : matplotlib.figure.Figure
    panels : list of matplotlib.axes.Axes
    """
    across = 2 if max((len(one.get_label()) for one in entries), default=0) <= _LONGEST else 1
    legend = _ENTRY * -(-len(entries) // across)
    total = _TOP + sum(heights) + _BETWEEN * len(heights) + legend + _ORIGIN
    figure = Figure(figsize=(WIDTH, total), facecolor="white")
    panels, top = [], total - _TOP
    for height, title in zip(heights, titles):
        width = (WIDTH - left - _RIGHT) / WIDTH
        box = (left / WIDTH, (top - height) / total, width, height / total)
        panels.append(figure.add_axes(box))
        panels[-1].set_title(title, loc="left", weight="bold", pad=3)
        top -= height + _BETWEEN
    look = {"frameon": False, "fontsize": 6.5, "handlelength": 2.8, "columnspacing": 1.2}
    look |= {"borderaxespad": 0, "borderpad": 0, "labelspacing": 0.25, "ncols": across}
    if entries:
        place = (0.12 / WIDTH, (_ORIGIN + legend + 0.05) / total)
        figure.legend(handles=entries, loc="upper left", bbox_to_anchor=place, **look)
    figure.text(0.12 / WIDTH, 0.07 / total, _origin(rows), size=5.5, color=QUIET, va="center")
    if is_predicted(rows):
        look = {"size": 26, "color": "#c00000", "alpha": 0.15, "weight": "bold", "rotation": 40}
        figure.text(0.5, 0.5, "PREDICTION", ha="center", va="center", **look)
    return figure, panels


def _origin(rows):
    """GPU and dates, and that rows are predictions where they are."""
    dates = sorted(row["timestamp"][:10] for row in rows if row["timestamp"])
    when = " to ".join(dict.fromkeys((*dates[:1], *dates[-1:])))
    cards = len(set(distinct(rows, "gpu_uuid")))
    words = [", ".join(distinct(rows, "gpu")), f"{cards} cards" if cards > 1 else "", when]
    words.append("PREDICTION, not measured" if is_predicted(rows) else "")
    return "; ".join(filter(None, words))


def file_bytes(figure):
    """The bytes of a figure's files by extension; nothing in them tells when they were made."""
    files = {}
    for extension, date in (("pdf", "CreationDate"), ("svg", "Date")):
        stream = io.BytesIO()
        figure.savefig(stream, format=extension, metadata={date: None})
        files[extension] = stream.getvalue()
    return files
