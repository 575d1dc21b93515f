"""What figures of bars share: bars of times on a logarithmic scale, names left of them."""

from experiments.plots.canvas import limits, log_scale
from experiments.plots.lines import Time
from experiments.plots.rows import reason


def time_of(row):
    """The time of a row of a CSV with columns of its own, or why it has none."""
    ms = float(row["ms"]) if row["ms"] else None
    return Time(ms, "" if ms else reason(row))


def time_scale(axes, times, room):
    """Make the horizontal axis logarithmic milliseconds.

    Parameters
    ----------
    axes : matplotlib.axes.Axes
    times : iterable of Time
        What it will show.
    room : float
        Share of the axis left beside the longest bar, for its number.
    """
    low, high = limits([time.ms for time in times if time.ms] or [1], 1.6)
    axes.set_xlim(low, high * (high / low) ** room)
    log_scale(axes.xaxis)
    axes.set_xlabel("ms, log scale")


def name_bars(axes, bottom, names, size):
    """Lay out bars one below the other.

    Parameters
    ----------
    axes : matplotlib.axes.Axes
    bottom : float
        Where a bar after the last would be; the first is at 0.
    names : dict of float to str
        What is written left of the panel, by place.
    size : float
        Of the names.
    """
    axes.set_ylim(bottom - 0.4, -0.6)
    axes.grid(False, axis="y")
    axes.set_yticks(list(names), list(names.values()), size=size)
    axes.tick_params(axis="y", length=0)


def draw_bar(axes, y, time, line, words="", **look):
    """One bar from the axis, with its number and words; or in its place the reason why there is none."""
    low = axes.get_xlim()[0]
    how = {"size": 8, "va": "center", "xytext": (4, 0), "textcoords": "offset points"}
    if time.ms is None:
        axes.annotate(f"× {time.reason}", (low, y), color=line.colour, **how)
        return
    hatch = "" if line.precision == "ieee" else "..."
    look = {"facecolor": line.colour, "hatch": hatch, "edgecolor": "white", "lw": 0} | look
    axes.barh(y, time.ms - low, left=low, height=0.82, **look)
    axes.annotate(f"{time}{words}", (time.ms, y), **how)
