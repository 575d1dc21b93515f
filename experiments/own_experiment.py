"""How time grows with the window, of small capsules and of large: an experiment of one's own, to copy and to change.

``python -m experiments.own_experiment`` measures on a GPU; ``--algorithms numpy`` on the host, without one.
"""

import sys

from experiments.measuring import own
from experiments.sweep import points

WINDOWS = ("windows", ("KH",), (1, 3, 5))  # a name, axes that move together, their values
CAPSULES = ("of capsules", ("D1", "D2", "D3"), (2, 4))
LAYERS = points(vary=[WINDOWS, CAPSULES], fix=[("N", 8), ("C", 8), ("P", 8)])  # all combinations

if __name__ == "__main__":
    sys.exit(own.main("own_experiment", __doc__, LAYERS))
