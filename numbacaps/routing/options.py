"""The forms of routing: what callers may choose, and what they are refused."""

import math
from dataclasses import dataclass, fields

import numpy as np

from numbacaps.forms import normal_range
from numbacaps.geometry import is_int
from numbacaps.messages import did_you_mean, shown

ROUTINGS = ("dynamic", "em")
SOFTMAX_OVER = ("parents", "children")
NORMALISE = ("window", "all")
VOTES = ("children", "sum")
_OF_EM = ("activations", "beta_u", "beta_a", "d_activations")
_OF_DYNAMIC = ("logits",)
_NUMBERS = int, float, np.integer, np.floating
_OPTIONS_OF = {"dynamic": ("softmax_over",), "em": ("normalise", "lam", "epsilon")}


@dataclass(frozen=True)
class Options:
    """A form of routing.

    Attributes
    ----------
    routing : str
        "dynamic" or "em".
    iterations : int
    softmax_over : str
        Of dynamic routing: each child's couplings add up to 1 over the "parents", or each parent's over the "children".
    detach : bool
        Gradients reach votes through the last iteration alone, whose couplings count as constants.
    normalise : str
        Of EM routing: a child's assignments add up to 1 over the parents of a position ("window"), or over all parents
        that the capsule votes for ("all").
    lam : float
        Of EM routing: what the inverse temperature grows to.
    epsilon : float
        Of EM routing: added to variances.
    votes : str
        A vote of each child of a window ("children"), or, of dynamic routing, one of each input channel, the "sum" of those
        of its window.

    Raises
    ------
    TypeError, ValueError
        An argument is none of these.
    """

    routing: str = "dynamic"
    iterations: int = 3
    softmax_over: str = "parents"
    detach: bool = False
    normalise: str = "window"
    lam: float = 0.01
    epsilon: float = 1e-6
    votes: str = "children"

    def __post_init__(self):
        for name, takes in (
            ("routing", ROUTINGS),
            ("softmax_over", SOFTMAX_OVER),
            ("normalise", NORMALISE),
            ("votes", VOTES),
        ):
            check_name(name, getattr(self, name), takes)
        if not is_int(self.iterations):
            raise TypeError(f"iterations is {shown(self.iterations)}; it takes an int")
        object.__setattr__(self, "iterations", int(self.iterations))
        if self.iterations < 1:
            raise ValueError(f"iterations is {self.iterations}; it takes 1 or more")
        if not isinstance(self.detach, (bool, np.bool_)):
            raise TypeError(f"detach is {shown(self.detach)}; it takes True or False")
        object.__setattr__(self, "detach", bool(self.detach))
        for name in ("lam", "epsilon"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, _NUMBERS):
                raise TypeError(f"{name} is {shown(value)}; it takes a number")
            number = _as_float(value)
            if not 0 <= number < math.inf or name == "epsilon" and number == 0:
                least = "more than 0" if name == "epsilon" else "0 or more"
                raise ValueError(f"{name} is {shown(value)}; it takes a finite number, {least}")
            object.__setattr__(self, name, number)
        for routing in ROUTINGS:
            for name in _OPTIONS_OF[routing] if routing != self.routing else ():
                if getattr(self, name) != getattr(type(self), name):
                    raise ValueError(
                        f"{name} is {getattr(self, name)!r}; routing {self.routing!r} takes none"
                    )
        if self.is_summed and self.is_em:
            raise ValueError(
                "votes is 'sum', whose children have no activations; routing 'em' takes 'children'"
            )

    @property
    def is_em(self):
        return self.routing == "em"

    @property
    def is_summed(self):
        """A child is an input channel, whose vote is a sum over the window."""
        return self.votes == "sum"

    @property
    def first(self):
        """The first iteration that a gradient passes through."""
        return self.iterations - 1 if self.detach else 0

    @property
    def temperatures(self):
        """The inverse temperature of every iteration of EM routing."""
        return [self.lam * (1 - 0.95 ** (t + 1)) for t in range(self.iterations)]


def check_numbers(options, dtype, finfo=np.finfo):
    """Refuse numbers of EM routing that are 0 or infinite in the dtype of sums; ``finfo`` is its library's."""
    if not options.is_em:
        return
    least, most = normal_range(dtype, finfo)
    if not least <= options.epsilon <= most:
        said = f"{dtype} takes {least:.3g} to {most:.3g}"
        raise ValueError(f"epsilon is {options.epsilon}; {said}")
    if options.lam > most:
        raise ValueError(f"lam is {options.lam}; {dtype} takes {most:.3g} at most")


def _as_float(number):
    """A number as a float; infinity if it is too large an int."""
    try:
        return float(number)
    except OverflowError:
        return math.inf


_KNOWN = [one.name for one in fields(Options)]  # once: torch.compile cannot trace fields()


def options_of(named):
    """The form of some options by name; TypeError where one is none of them."""
    for name in named:
        if name not in _KNOWN:
            raise TypeError(
                f"{name!r} is no option of routing; it takes {_KNOWN}" + did_you_mean(name, _KNOWN)
            )
    return Options(**named)


def check_activations(low, high):
    """Refuse activations whose least and largest values are these; NaNs are not among them."""
    if low < 0 or high > 1:
        raise ValueError(
            f"activations has values from {shown(float(low))} to {shown(float(high))}; it takes values from 0 to 1"
        )


def check_given(given, options):
    """Refuse operands, by name, that a form does not take; those that are None are not given."""
    for name in _OF_DYNAMIC if options.is_em else _OF_EM:
        if given.get(name) is not None:
            raise ValueError(f"{name} is given; routing {options.routing!r} takes none")


def check_name(name, value, takes):
    """Refuse a word that is none of those that an argument takes."""
    if not isinstance(value, str):
        raise TypeError(f"{name} is {shown(value)}; it takes one of {list(takes)}")
    if value not in takes:
        raise ValueError(
            f"{name} is {shown(value)}; it takes one of {list(takes)}" + did_you_mean(value, takes)
        )
