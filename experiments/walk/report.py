"""A walk told as text: the progress while it runs, and the report of a `Trace`."""

import sys
from pathlib import Path

from experiments.walk.numbers import in_numbers

_TITLES = {
    "forward": ("Forward: Algorithm 3", "===================="),
    "backward": (
        "Backward: Algorithm 4",
        "=====================",
        "dO = O - T, the gradient of half the squared length of O - T, for a seeded target T",
        "I' and K' of the forward pass serve again",
    ),
}
_UNITS = ((1, "s"), (1e-3, "ms"), (1e-6, "us"))


class Progress:
    """One line on what is being done: rewritten in place on a terminal, else a line each time."""

    def __init__(self, stream=None):
        self.stream = sys.stderr if stream is None else stream
        self.in_place = self.stream.isatty()
        self.width = 0

    def __call__(self, doing):
        if self.in_place:
            self.stream.write("\r" + doing.ljust(self.width))
            self.width = len(doing)
        else:
            self.stream.write(f"walk: {doing}\n")
        self.stream.flush()

    def clear(self):
        """Leave no half line behind."""
        if self.in_place and self.width:
            self.stream.write("\r" + " " * self.width + "\r")
            self.stream.flush()
            self.width = 0


def report(trace):
    """The whole report but its last line.

    Parameters
    ----------
    trace : experiments.walk.records.Trace

    Returns
    -------
    str
    """
    lines = _setting(trace)
    direction = None
    for number, stage in enumerate(trace.stages, start=1):
        if stage.direction != direction:
            direction = stage.direction
            lines += ["", *_TITLES[direction]]
        lines += ["", *_stage(number, stage, trace.simulated)]
        lines += [f"    {line}" for line in in_numbers(stage, trace)]
    return "\n".join(lines + _algorithms(trace))


def verdict(trace):
    """The last line: how many records passed and failed."""
    return f"walk: {len(trace.records) - trace.failed} passed, {trace.failed} failed"


def _setting(trace):
    """What is convolved with what, and where."""
    g, patches, product = trace.plan.geometry, trace.plan.patches, trace.plan.product
    options = trace.plan.options
    rows, columns = patches.pixels.shape[1:]
    height, width = patches.patch
    title = "One capsule convolution, step by step"
    facts = {
        "image": f"{Path(options.image).name}, {rows} x {columns} pixels: "
        f"{g.H} x {g.W} capsules, each a patch of {height} x {width}",
        "product": f"{product.spec}, that is G = {g.G}, D1 = {g.D1}, D2 = {g.D2}, D3 = {g.D3}",
        "window": "{} x {}, stride {} x {}, padding {} x {}, dilation {} x {}".format(
            g.KH, g.KW, *g.stride, *g.padding, *g.dilation
        ),
        "channels": f"C = {g.C} in, P = {g.P} out",
        "sums": f"Q = {g.Q} products for each of L = {g.OH} x {g.OW} = {g.L} output positions",
        "runs on": f"{trace.device}, in {options.dtype}",
    }
    if any(patches.cropped):
        rows, columns = patches.cropped
        facts["cropped"] = f"{rows} rows and {columns} columns at the edge fill no patch"
    if g.C > 1:
        facts["shifted"] = "input channel c is the image shifted c pixels to the right"
    if not trace.simulated:
        facts["times"] = "medians of launches in a row; some tens of us of each are the host's"
    facts["errors"] = "largest difference from the float64 reference over its largest value"
    return [title, "=" * len(title), *(f"{name:<10}{fact}" for name, fact in facts.items())]


def _stage(number, stage, simulated):
    """One stage, in five lines or six."""
    operands = [("in ", operand) for operand in stage.inputs] + [("out", stage.output)]
    wide = max(len(operand.name) for _, operand in operands)
    return [
        f"{number:>2}  {stage.paper}    [{stage.where}]",
        f"    {stage.formula}",
        *(f"    {way} {o.name:<{wide}}  ({o.axes}) = {o.shape}" for way, o in operands),
        f"    {_cost(stage, simulated)}, error {_error(stage.check)}: {_mark(stage)}",
    ]


def _mark(record):
    return "passed" if record.passed else "FAILED"


def _cost(record, simulated):
    """Bytes and FLOP; on a GPU the time, and the rates they make. The simulator's times mean nothing."""
    words = [f"{record.bytes:,} bytes", f"{record.flop:,} FLOP"]
    if simulated:
        return ", ".join(words)
    words.append(_duration(record.seconds))
    if record.seconds:
        words.append(f"{record.bytes / record.seconds / 1e9:.3g} GB/s")
        if record.flop:
            words.append(f"{record.flop / record.seconds / 1e9:.3g} GFLOP/s")
    return ", ".join(words)


def _error(check):
    error = f"{check.error:.1e}" if check.error else "0"
    return f"{error} (at most {check.tolerance:.1e})"


def _duration(seconds):
    """Three digits and a unit."""
    if seconds is None:
        return "not timed"
    unit, name = next((pair for pair in _UNITS if seconds >= pair[0]), _UNITS[-1])
    return f"{seconds / unit:.3g} {name}"


def _algorithms(trace):
    """The whole convolutions, and what laying out costs beside them."""
    if not trace.algorithms:
        return []
    title = "Whole convolutions, each against the loops of Algorithm 2"
    lines = ["", title, "=" * len(title)]
    lines += ["bytes: the fewest that each pass can move; backward is two passes, one a gradient"]
    name = None
    for record in trace.algorithms:
        if record.name != name:
            name = record.name
            lines += ["", f"{name}: {record.summary}"]
        inputs = ", ".join(operand.name for operand in record.inputs)
        outputs = ", ".join(check.operand.name for check in record.checks)
        lines.append(f"    {record.direction} ({inputs}) -> ({outputs})")
        for check in record.checks:
            operand = check.operand
            lines.append(f"    out {operand.name:<2}  ({operand.axes}) = {operand.shape}")
        errors = ", ".join(f"{check.operand.name} {_error(check)}" for check in record.checks)
        lines.append(f"    {_cost(record, trace.simulated)}")
        lines.append(f"    error {errors}: {_mark(record)}")
    return lines + ["", *_laid_out(trace)]


def _laid_out(trace):
    """How many bytes the five forward stages move, beside the fewest possible."""
    staged = sum(stage.bytes for stage in trace.stages if stage.direction == "forward")
    least = next(record.bytes for record in trace.algorithms if record.direction == "forward")
    return [
        f"The forward stages move {staged:,} bytes together, {staged / least:.0f} times the fewest."
    ]
