"""The capsule product: an einsum-like spec, and what it makes of the capsules' axes.

``"ab,bc->ac"`` is a matrix product, ``"gab,gbc->gac"`` one for each ``g``, ``"abk,kcd->abcd"`` a
tensor product contracted over ``k``, ``",->"`` plain numbers. Every spec comes down to one form,
``(G, D1, D2) x (G, D2, D3) -> (G, D1, D3)``:

======================================  ====
an axis of                              is
======================================  ====
both inputs and the output              G
both inputs alone (it is summed over)   D2
the input capsule and the output        D1
the kernel capsule and the output       D3
======================================  ====
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import prod

_FORM = re.compile(r"([a-zA-Z]*),([a-zA-Z]*)->([a-zA-Z]*)")


@dataclass(frozen=True)
class Product:
    """A parsed spec. ``x``, ``w`` and ``y`` hold the axes of the input, kernel and output capsule.

    Attributes
    ----------
    g, d1, d2, d3 : str
        The axes that make up G, D1, D2 and D3, outermost first.
    """

    spec: str
    x: str
    w: str
    y: str
    g: str
    d1: str
    d2: str
    d3: str

    @property
    def x_order(self) -> tuple[int, ...]:
        """Permutation that brings the input capsule's axes into the order (G, D1, D2)."""
        return tuple(self.x.index(axis) for axis in self.g + self.d1 + self.d2)

    @property
    def w_order(self) -> tuple[int, ...]:
        """Permutation that brings the kernel capsule's axes into the order (G, D2, D3)."""
        return tuple(self.w.index(axis) for axis in self.g + self.d2 + self.d3)

    @property
    def y_order(self) -> tuple[int, ...]:
        """Permutation that brings the output capsule's axes into the order (G, D1, D3)."""
        return tuple(self.y.index(axis) for axis in self.g + self.d1 + self.d3)

    def sizes(self, x_capsule: Sequence[int], w_capsule: Sequence[int]) -> dict[str, int]:
        """Size of every axis, from the two capsule shapes.

        Raises
        ------
        ValueError
            A capsule's rank is not the spec's, or an axis of both has two sizes.
        """
        for name, axes, shape in (("x", self.x, x_capsule), ("w", self.w, w_capsule)):
            if len(axes) != len(shape):
                raise ValueError(
                    f"{name} has capsules of shape {tuple(shape)}; product={self.spec!r} takes "
                    f"{len(axes)} axes, {axes!r}"
                )
        sizes = dict(zip(self.x, x_capsule))
        for axis, size in zip(self.w, w_capsule):
            if sizes.setdefault(axis, size) != size:
                raise ValueError(
                    f"w has size {size} along capsule axis {axis!r} of product={self.spec!r}; "
                    f"x has {sizes[axis]} there, and the two must be equal"
                )
        return sizes

    def dimensions(
        self, x_capsule: Sequence[int], w_capsule: Sequence[int]
    ) -> tuple[int, int, int, int]:
        """(G, D1, D2, D3) for the two capsule shapes; ValueError as :meth:`sizes`."""
        sizes = self.sizes(x_capsule, w_capsule)
        g, d1, d2, d3 = (
            prod(sizes[axis] for axis in axes) for axes in (self.g, self.d1, self.d2, self.d3)
        )
        return g, d1, d2, d3

    def y_capsule(self, x_capsule: Sequence[int], w_capsule: Sequence[int]) -> tuple[int, ...]:
        """Shape of an output capsule; ValueError as :meth:`sizes`."""
        sizes = self.sizes(x_capsule, w_capsule)
        return tuple(sizes[axis] for axis in self.y)


def spelled_alike(spec: str) -> str:
    """A spec as all of its meaning are spelled: without blanks, its letters in the order of the alphabet as they appear."""
    letters = {}
    for letter in filter(str.isalpha, str(spec)):
        letters.setdefault(letter, chr(ord("a") + len(letters)))
    return "".join(letters.get(letter, letter) for letter in str(spec) if letter != " ")


def inverse(order: Sequence[int]) -> tuple[int, ...]:
    """The permutation that undoes ``order``."""
    return tuple(order.index(axis) for axis in range(len(order)))


def parse_product(spec: str) -> Product:
    """Parse a spec such as ``"ab,bc->ac"``.

    Parameters
    ----------
    spec : str
        ``x axes, w axes -> output axes``, a letter an axis.

    Returns
    -------
    Product

    Raises
    ------
    TypeError
        ``product`` is no string.
    ValueError
        ``product`` is not of that form (it lacks the output, has an ellipsis, ...), repeats an axis within one capsule, drops an axis that
        only one capsule has, or gives the output an axis that neither has.
    """
    if not isinstance(spec, str):
        raise TypeError(f"product is {spec!r}; it takes a string such as 'ab,bc->ac'")
    return _parse(spec)


@cache
def _parse(spec: str) -> Product:
    match = _FORM.fullmatch(spec.replace(" ", ""))
    if match is None:
        raise ValueError(f"product is {spec!r}; {_what_is_wrong(spec.replace(' ', ''))}")
    x, w, y = match.groups()
    for axes in (x, w, y):
        if len(set(axes)) != len(axes):
            raise ValueError(f"product is {spec!r}; it takes each axis once in {axes!r}")
    if stray := set(y) - set(x) - set(w):
        raise ValueError(f"product is {spec!r}; output axis {min(stray)!r} is in neither input")
    if lost := (set(x) ^ set(w)) - set(y):
        raise ValueError(
            f"product is {spec!r}; axis {min(lost)!r} is in one input alone, so the output needs it"
        )
    g = "".join(axis for axis in y if axis in x and axis in w)
    d1 = "".join(axis for axis in y if axis in x and axis not in w)
    d3 = "".join(axis for axis in y if axis in w and axis not in x)
    d2 = "".join(axis for axis in x if axis not in y)
    return Product(spec, x, w, y, g, d1, d2, d3)


def _what_is_wrong(spec: str) -> str:
    """What a spec that is not of the form takes, in words."""
    if "." in spec:
        return (
            "it takes a letter for each capsule axis and no ellipsis, such as 'ab,bc->ac' "
            "(batch, channels and positions are not named)"
        )
    inputs, arrow, output = spec.partition("->")
    operands = inputs.split(",")
    if len(operands) != 2:
        return f"it takes a spec of two inputs, such as 'ab,bc->ac', not of {len(operands)}"
    if stray := re.sub("[a-zA-Z]", "", "".join((*operands, output))):
        return f"it takes letters, one comma and one '->', such as 'ab,bc->ac', not {stray[0]!r}"
    x, w = operands
    y = "".join(axis for axis in x + w if (axis in x) != (axis in w))
    return f"it lacks the output, '->' and its axes; did you mean '{inputs}->{y}'?"
