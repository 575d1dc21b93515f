"""The rows of the experiment routing: their columns, and ours beside the best opponent as it is told of them.

==========  ==================================================================================================
workload    a routing problem of a published network, with its batch
pass        "forward", or "training", forward and backward
contestant  "fused", ours as PyTorch's operator; "graph", ours as a CUDA graph; "stored", ours with its votes stored,
            as a CUDA graph, which no ratio counts; "torch", votes that PyTorch stores; "torch_graph", the same as a
            CUDA graph; "compiled", by torch.compile, which has graphs of its own
extra_mb    bytes beside operands and results at the most
error       the largest difference from float64, over the largest element
==========  ==================================================================================================
"""

from typing import NamedTuple

from experiments.measuring.listing import cells_of

NAME = "routing"
KEYS = ("workload", "pass", "contestant")
VALUES = ("ms", "extra_mb", "operands_mb", "votes_mb", "error", "note")
OURS, THEIRS = ("fused", "graph"), ("torch", "torch_graph", "compiled")
STORED = "stored"  # ours, to show what it takes to store votes
CONTESTANTS = (*OURS, STORED, *THEIRS)


class Case(NamedTuple):
    """A workload and pass, and who computed it.

    Attributes
    ----------
    workload, wanted : str
    rows : dict of str to dict
        By contestant.
    """

    workload: str
    wanted: str
    rows: dict

    def number(self, contestant, column):
        """What its row has in a column; None where it was not measured or failed."""
        row = self.rows.get(contestant)
        return float(row[column]) if row and row[column] else None

    def ms(self, contestant):
        """Its time; None where it was not measured or failed."""
        return self.number(contestant, "ms")

    @property
    def ratio(self):
        """The best opponent's time over our best; None where one is lacking."""
        ours, theirs = (
            [ms for ms in map(self.ms, names) if ms is not None] for names in (OURS, THEIRS)
        )
        return min(theirs) / min(ours) if ours and theirs else None

    @property
    def ours(self):
        """A row of ours with a time, that of the graph first; None if there is none."""
        return next((self.rows[name] for name in OURS[::-1] if self.ms(name)), None)

    def peak(self, contestant):
        """The most memory, over that of operands and results."""
        row = self.rows[contestant]
        return 1 + float(row["extra_mb"]) / float(row["operands_mb"])


def cases(rows):
    """Every workload and pass of rows, in their order."""
    found = {}
    for row in rows:
        found.setdefault((row["workload"], row["pass"]), {})[row["contestant"]] = row
    return [Case(*key, own) for key, own in found.items()]


def told(rows):
    """The lines of the printed table: times, and how often ours goes into the best opponent's."""
    lines = [f"{'ms':18}{'pass':10}" + "".join(f"{name:>12}" for name in CONTESTANTS)]
    lines[0] += f"{'ratio':>8}{'peak':>7}{'error':>10}"
    for case in cases(rows):
        times = cells_of(map(case.ms, CONTESTANTS), ["12.4g"] * len(CONTESTANTS))
        line = f"{case.workload:18}{case.wanted:10}{times}{cells_of([case.ratio], ['8.1f'])}"
        if case.ours:
            peak = case.peak(case.ours["contestant"])
            line += f"{peak:7.2f}{float(case.ours['error']):10.1e}"
        lines.append(line)
        lines += [f"  {name}: {row['note']}" for name, row in case.rows.items() if row["note"]]
    return lines
