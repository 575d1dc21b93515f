"""The axes of a sweep: where the values of the first stand, and what the others are set to."""

import math
import re

from experiments.measuring import records
from experiments.plots.rows import at, distinct


class Scale:
    """Where the values of a sweep's axis stand: at their logarithms, or evenly if they have none."""

    def __init__(self, rows, axis):
        self.column = axis[0]
        values = distinct(rows, self.column)
        numbers = all(re.fullmatch(r"[1-9]\d*", value) for value in values)
        self.values = sorted(values, key=int) if numbers else values
        self.places = [math.log2(int(v)) for v in self.values] if numbers else range(len(values))
        same = [c for c in axis if all(row[c] == row[self.column] for row in rows)]
        self.label = " = ".join(same)
        if len(same) == 1:
            self.label += f": {records.COLUMNS[self.column]}"
        for column in axis:
            if column not in same:
                cells = [part[0][column] for part in self.split(rows)]
                self.label += f"   ({column} = {', '.join(cells)})"

    def split(self, rows):
        """The rows at each of the values."""
        return [at(rows, **{self.column: value}) for value in self.values]

    def apply(self, axes):
        """Ticks, label and limits of the horizontal axis."""
        axes.set_xticks(self.places, self.values)
        axes.set_xlabel(self.label)
        span = self.places[-1] - self.places[0]
        axes.set_xlim(self.places[0] - 0.03 * span, self.places[-1] + 0.03 * span)


def settings_of(rows, columns):
    """What the other axes are set to, as cells: one empty setting if there are none."""
    found = dict.fromkeys(tuple(row[column] for column in columns) for row in rows)
    return [dict(zip(columns, values)) for values in found]
