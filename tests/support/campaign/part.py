"""What a part of the campaign is: cases that are known by a seed and a number."""

from collections.abc import Callable
from dataclasses import dataclass

from numbacaps.device.target import SIMULATED

_FAR = 1_000_000  # between the first cases of two shares of a timed part


@dataclass(frozen=True)
class Part:
    """Cases of one kind.

    Attributes
    ----------
    summary : str
        What is looked at, in a line.
    unit : str
        What a case is.
    check : callable
        ``check(seed, number)``: the kinds that the case was of, as words to count; AssertionError where something is
        wrong.
    amount : int
        How much by default: of cases, or, where the part is ``timed``, of minutes.
    few : float
        The same on the simulator.
    timed : bool
        Whether cases are checked until the minutes are over.
    compile : callable, optional
        ``compile(seed, piece)``: compile what a piece of a case takes, in a process that pretends a GPU.
    pieces : int
        Of a case, for ``compile``; they are numbered through all cases.
    shared : bool
        Whether processes side by side may each check a share of the cases.
    alone : bool
        Whether nothing else may run on the GPU meanwhile.
    """

    summary: str
    unit: str
    check: Callable
    amount: int
    few: float
    timed: bool = False
    compile: Callable | None = None
    pieces: int = 1
    shared: bool = False
    alone: bool = False

    def numbers(self, amount, share):
        """(first, behind the last) number of a share's cases; of a timed part there is no last."""
        if self.timed:
            return (share.number - 1) * _FAR, None
        first, last = (int(amount) * n // share.of for n in (share.number - 1, share.number))
        return first, last

    @property
    def default(self):
        """How much on this machine."""
        return self.few if SIMULATED else self.amount
