"""The rows of the experiment routing_curves: their columns, where they are measured, and what is told of them.

==========  ==================================================================================================
network     "digitcaps", dynamic routing of CapsNet, or "em-conv1", EM routing of the matrix capsules' first layer
axis        what varies: "batch" or "iterations"
at          images, or how many iterations
==========  ==================================================================================================

The other columns are those of :mod:`experiments.measuring.routing_rows`.
"""

from experiments.measuring import routing_rows
from experiments.measuring.listing import cells_of
from experiments.measuring.routing_rows import Case

NAME = "routing_curves"
KEYS = ("network", "axis", "at", "pass", "contestant")
VALUES = routing_rows.VALUES
CONTESTANTS = ("graph", "torch_graph", "torch")
IMAGES = {"digitcaps": 128, "em-conv1": 16}  # where the iterations vary
ITERATIONS = 3  # where the batch varies
PLACES = {
    "batch": {"digitcaps": (1, 4, 16, 64, 256, 1024), "em-conv1": (1, 4, 16, 64, 256)},
    "iterations": dict.fromkeys(IMAGES, (1, 2, 3, 5, 8)),
}


def cases(rows):
    """Who computed each place of each curve.

    Parameters
    ----------
    rows : list of dict

    Returns
    -------
    dict of (str, str, int, str) to Case
        By network, axis, place and pass, in their order.
    """
    found = {}
    for row in rows:
        key = row["network"], row["axis"], int(row["at"]), row["pass"]
        found.setdefault(key, {})[row["contestant"]] = row
    return {key: Case(key[0], key[-1], own) for key, own in sorted(found.items())}


def told(rows):
    """The lines of the printed table: times, how often ours goes into PyTorch's best, and both memories."""
    lines = [f"{'ms':11}{'axis':11}{'at':>5}  {'pass':9}"]
    lines[0] += "".join(f"{name:>12}" for name in CONTESTANTS)
    lines[0] += f"{'ratio':>8}{'MB, ours':>11}{'PyTorch':>11}"
    for (network, axis, at, wanted), case in cases(rows).items():
        line = f"{network:11}{axis:11}{at:5}  {wanted:9}"
        line += cells_of(map(case.ms, CONTESTANTS), ["12.4g"] * len(CONTESTANTS))
        memory = (case.number(name, "extra_mb") for name in ("graph", "torch"))
        line += cells_of((case.ratio, *memory), ("8.1f", "11.2f", "11.2f"))
        lines.append(line)
        lines += [f"  {name}: {row['note']}" for name, row in case.rows.items() if row["note"]]
    return lines
