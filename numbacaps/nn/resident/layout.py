"""Where everything of a network lies that stays in one multiprocessor, worked out once.

:func:`layout_of` is what others ask. :mod:`numbacaps.nn.resident.forward_layout` says what fits of the forward pass,
:mod:`numbacaps.nn.resident.backward_layout` what fits of the backward pass.
"""

from dataclasses import dataclass
from functools import lru_cache

from numbacaps.nn.resident.backward_layout import BackwardLayout, backward_layout
from numbacaps.nn.resident.forward_layout import ForwardLayout, forward_layout
from numbacaps.nn.resident.shared_memory import DoesNotFit


@dataclass(frozen=True)
class Layout:
    """Both passes of a network, as far as they fit.

    Attributes
    ----------
    forward : ForwardLayout or None
    backward : BackwardLayout or None
    why_not : str or None
        Why there is no ``forward``.
    why_no_backward : str or None
        Why there is no ``backward``.
    """

    forward: ForwardLayout | None
    backward: BackwardLayout | None
    why_not: str | None
    why_no_backward: str | None


@lru_cache(maxsize=64)
def layout_of(placed):
    """The layout of a network.

    Parameters
    ----------
    placed : tuple of numbacaps.nn.layer.PlacedLayer

    Returns
    -------
    Layout
    """
    try:
        forward = forward_layout(placed)
    except DoesNotFit as reason:
        return Layout(None, None, str(reason), str(reason))
    try:
        return Layout(forward, backward_layout(placed, forward), None, None)
    except DoesNotFit as reason:
        return Layout(forward, None, None, str(reason))
