"""The rows of the experiment torch_layers: their columns, and ours beside plain PyTorch's best as it is told of them.

==========  =================================================================================================
measured    "host": what a call of a layer costs the host; "step": a training step
workload    a layer of experiments.fused; a step's are :data:`experiments.measuring.torch_steps.WORKLOADS`
what        of a call "forward" or "training", which is forward and both gradients; of a step how it is run
precision   "default", float32 without TF32, or "tf32"
contestant  of a call :data:`CALLERS`, of a step :data:`STEPPERS`
==========  =================================================================================================
"""

from typing import NamedTuple

from experiments.measuring.listing import cells_of

NAME = "torch"
KEYS = ("measured", "workload", "what", "precision", "contestant")
VALUES = ("ms", "host_us", "peak_mb", "error", "note")
PRECISIONS = ("default", "tf32")
PASSES = ("forward", "training")
MODES = ("eager", "graph", "compiled", "compiled-graph")
LAYOUTS = ("nchw", "channels_last")
OPERATOR, PLAN = "operator", "plan"
CALLERS = (OPERATOR, PLAN, *(f"conv2d-{layout}" for layout in LAYOUTS))
MODULES, NETWORK = "modules", "nn"
TWINS = tuple(f"twin-{layout}" for layout in LAYOUTS)
STEPPERS = (MODULES, *TWINS, NETWORK)


class Call(NamedTuple):
    """Host microseconds of a layer's call; None where there is no time.

    Attributes
    ----------
    workload, what, precision : str
    operator, plan : float or None
    conv2d : float or None
        Of the layout that takes least.
    """

    workload: str
    what: str
    precision: str
    operator: float | None
    plan: float | None
    conv2d: float | None


class Step(NamedTuple):
    """A training step's rows; None where one was not measured.

    Attributes
    ----------
    workload, mode, precision : str
    modules, twin, network : dict or None
        Ours, plain PyTorch's in the layout that takes least, :mod:`numbacaps.nn`'s own.
    """

    workload: str
    mode: str
    precision: str
    modules: dict | None
    twin: dict | None
    network: dict | None

    @property
    def ratio(self):
        """The twin's milliseconds over ours; None without both."""
        return ratio(number(self.twin, "ms"), number(self.modules, "ms"))


def ratio(above, below):
    """A quotient; None without both."""
    return above / below if above and below else None


def number(row, column):
    """A cell as a number; None where it is empty, or there is no row."""
    return float(row[column]) if row and row[column] else None


def calls(rows):
    """The :class:`Call` of each layer, pass and precision that there are rows of."""
    found = []
    for names, group in _groups(rows, "host"):
        us = {name: number(row, "host_us") for name, row in group.items()}
        theirs = [us[name] for name in CALLERS if name.startswith("conv2d") and us.get(name)]
        found.append(Call(*names, us.get(OPERATOR), us.get(PLAN), min(theirs, default=None)))
    return found


def steps(rows):
    """The :class:`Step` of each workload, mode and precision that there are rows of."""
    found = []
    for names, group in _groups(rows, "step"):
        timed = [group[name] for name in TWINS if number(group.get(name), "ms")]
        twin = min(timed, key=lambda row: float(row["ms"]), default=None)
        ours, network = (group.get(name) for name in (MODULES, NETWORK))
        found.append(Step(*names, ours, twin, network))
    return found


def _groups(rows, measured):
    """((workload, what, precision), rows by contestant) of what was measured together."""
    found = {}
    for row in rows:
        if row["measured"] == measured:
            names = row["workload"], row["what"], row["precision"]
            found.setdefault(names, {})[row["contestant"]] = row
    order = (*PASSES, *MODES)

    def rank(group):
        workload, what, precision = group[0]
        return workload, order.index(what), precision

    return sorted(found.items(), key=rank)


def told(rows):
    """The lines that are printed of the rows."""
    lines = []
    if found := calls(rows):
        lines += [
            f"{'host us of a call':18}{'':10}{'class':9}{'operator':>9}{'plan':>7}{'ratio':>7}{'conv2d':>8}{'ratio':>7}"
        ]
        for one in found:
            numbers = one.operator, one.plan, ratio(one.operator, one.plan), one.conv2d
            numbers += (ratio(one.operator, one.conv2d),)
            cells = cells_of(numbers, ("9.1f", "7.1f", "7.2f", "8.1f", "7.2f"))
            lines.append(f"{one.workload:18}{one.what:10}{one.precision:9}{cells}")
    if found := steps(rows):
        lines.append(
            f"{'ms of a step':14}{'':16}{'class':9}{'modules':>9}{'twin':>9}{'ratio':>7}{'nn':>9}{'MB':>8}{'twin':>8}"
        )
        for one in found:
            numbers = number(one.modules, "ms"), number(one.twin, "ms"), one.ratio
            numbers += (
                number(one.network, "ms"),
                *(number(row, "peak_mb") for row in (one.modules, one.twin)),
            )
            cells = cells_of(numbers, ("9.3f", "9.3f", "7.2f", "9.3f", "8.1f", "8.1f"))
            lines.append(f"{one.workload:14}{one.mode:16}{one.precision:9}{cells}")
    for row in rows:
        if row["note"]:
            lines.append(f"  {' '.join(row[name] for name in KEYS)}: {row['note']}")
    return lines
