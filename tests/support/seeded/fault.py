"""What a seeded fault is."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """A wrong line.

    Attributes
    ----------
    what : str
        In words.
    path : str
        The file, from the repository's root.
    right, wrong : str
        What stands there, once, and what stands there instead.
    tests : str
        What ought to catch it: arguments of pytest, with spaces between.
    tier : str
    """

    what: str
    path: str
    right: str
    wrong: str
    tests: str
    tier: str = "simulator"
