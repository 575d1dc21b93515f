"""The figure of the layers for PyTorch: training steps, and what a call costs the host, beside plain PyTorch."""

from experiments.measuring import torch_rows
from experiments.measuring.torch_rows import PRECISIONS
from experiments.plots.bars import draw_bar, name_bars, time_of, time_scale
from experiments.plots.canvas import Sheet
from experiments.plots.lines import FOLD, Line, Time
from experiments.plots.rows import Lacking, distinct

_BARS = {  # by the attribute of a step or a call
    "modules": Line("numbacaps.torch", "fused", "ieee", ()),
    "twin": Line("plain PyTorch", FOLD, "ieee", ()),
    "network": Line("numbacaps.nn", "indexed", "ieee", ()),
    "operator": Line("numbacaps.torch", "fused", "ieee", ()),
    "plan": Line("a plan's own call", "indexed", "ieee", ()),
    "conv2d": Line("conv2d", FOLD, "ieee", ()),
}
_WIDTH, _LEFT, _GAP = 3.6, 2.6, 0.5  # inches


def draw(rows):
    """Bars: a row of panels for each workload and each layer, a panel for each class of precision.

    Parameters
    ----------
    rows : list of dict
        Of the experiment torch_layers.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    Lacking
        No rows.
    """
    if not rows:
        raise Lacking("no rows of calls and steps")
    blocks = [_steps(name, rows) for name in distinct(_measured(rows, "step"), "workload")]
    blocks += [_calls(name, rows) for name in distinct(_measured(rows, "host"), "workload")]
    shown = [name for name in PRECISIONS if name in distinct(rows, "precision")]
    heights = [0.17 * _bottom(bars) for _, _, bars in blocks]
    sheet = Sheet(
        _LEFT + len(shown) * (_WIDTH + _GAP),
        1.5 + sum(height + 1.0 for height in heights),
        "Layers for PyTorch beside plain PyTorch: training steps, and calls",
        ("medians; plain PyTorch in the faster of its layouts; in brackets its peak memory, MB",),
        rows,
    )
    top = 1.5
    for (title, unit, bars), height in zip(blocks, heights):
        for i, precision in enumerate(shown):
            own = {key[1:]: one for key, one in bars.items() if key[0] == precision}
            if own:
                place = _LEFT + i * (_WIDTH + _GAP), top
                axes = sheet.panel(*place, _WIDTH, height, f"{title}, {precision}")
                _draw_panel(axes, own, _places(bars), named=precision == next(iter(bars))[0])
                axes.set_xlabel(f"{unit}, log scale")
        top += height + 1.0
    return sheet.figure


def _measured(rows, what):
    return [row for row in rows if row["measured"] == what]


def _steps(workload, rows):
    """(title, unit, {(precision, mode, attribute): (Time, words behind it)}) of a workload's steps."""
    bars = {}
    for step in torch_rows.steps(rows):
        for name in ("modules", "twin", "network"):
            row = getattr(step, name)
            if step.workload == workload and row:
                peak = torch_rows.number(row, "peak_mb")
                words = f"  ({peak:.0f})" if peak else ""
                bars[step.precision, step.mode, name] = time_of(row), words
    return f"step of {workload}", "ms", bars


def _calls(layer, rows):
    """The same of a layer's calls."""
    bars = {
        (call.precision, call.what, name): (Time(getattr(call, name), "failed"), "")
        for call in torch_rows.calls(rows)
        if call.workload == layer
        for name in ("operator", "plan", "conv2d")
    }
    return f"call of {layer}", "us of the host", bars


def _places(bars):
    """Where each (mode or pass, attribute) has its bar, the same in all panels; those of a mode together."""
    found, y = {}, 0.0
    for group in dict.fromkeys(key[1] for key in bars):
        for name in dict.fromkeys(key[2] for key in bars if key[1] == group):
            found[group, name] = y
            y += 1
        y += 0.6
    return found


def _bottom(bars):
    """Where a bar after the last one would be."""
    places = _places(bars)
    return len(places) + 0.6 * len({group for group, _ in places})


def _draw_panel(axes, bars, places, named):
    """Bars at their places; what was not measured leaves its place free."""
    time_scale(axes, [time for time, _ in bars.values()], room=0.3)
    for key, (time, words) in bars.items():
        draw_bar(axes, places[key], time, _BARS[key[1]], words)
    names = {y: f"{group}, {_BARS[name].label}" for (group, name), y in places.items()}
    name_bars(axes, max(places.values()) + 1, names if named else {}, size=8)
