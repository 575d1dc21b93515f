"""Lesson 1: which capsule stands where in the columns."""

import numpy as np

import reference
from experiments.lessons.exercise import Case, Exercise, Mistake
from numbacaps import Geometry


def _cases():
    found = []
    for stride, padding, dilation in (((2, 2), (0, 0), (1, 1)), ((1, 2), (1, 2), (2, 1))):
        g = Geometry(1, 2, 1, 6, 5, 2, 3, 1, 1, 1, 1, stride, padding, dilation)
        numbers = np.arange(1.0, 1 + np.prod(g.input_shape)).reshape(g.input_shape)
        columns = reference.capsule_im2col(numbers, (g.KH, g.KW), stride, padding, dilation)
        for l, q in np.ndindex(g.L, g.Q):
            number = int(columns[0, l, q].item())
            place = np.unravel_index(number - 1, (g.C, g.H, g.W)) if number else None
            wanted = place and tuple(map(int, place))
            said = f"origin({l}, {q}, g) of a window 2 x 3, stride {stride}, padding {padding}, dilation {dilation},"
            found.append(Case((l, q, g), wanted, said))
    return found


def _origin(l, q, g, across=None, stride=None, dilation=None, padding=None, inside=True):
    """The right answer, or one in which a part of the geometry is another."""
    across, stride, dilation = across or g.OW, stride or g.stride, dilation or g.dilation
    padding = g.padding if padding is None else padding
    c, kh, kw = q // (g.KH * g.KW), q // g.KW % g.KH, q % g.KW
    h = l // across * stride[0] + kh * dilation[0] - padding[0]
    w = l % across * stride[1] + kw * dilation[1] - padding[1]
    return (c, h, w) if not inside or 0 <= h < g.H and 0 <= w < g.W else None


def _exchanged(l, q, g):
    kh, kw = q % g.KH, q // g.KH % g.KW
    return _origin(l, (q // (g.KH * g.KW) * g.KH + kh) * g.KW + kw, g)


EXERCISE = Exercise(
    wants="takes a position l, a row q of its column and a geometry; returns (c, h, w), or None in the padding",
    cases=_cases,
    mistakes=(
        Mistake(
            lambda l, q, g: _origin(l, q, g, stride=(1, 1)),
            "the window moves by the stride: oh and ow are multiplied by it",
        ),
        Mistake(
            lambda l, q, g: _origin(l, q, g, padding=(0, 0)),
            "rows of the padding lie before row 0: subtract the padding",
        ),
        Mistake(
            lambda l, q, g: _origin(l, q, g, dilation=(1, 1)),
            "under a dilation the window's capsules stand apart: kh and kw are multiplied by it",
        ),
        Mistake(
            lambda l, q, g: _origin(l, q, g, inside=False),
            "in the padding there is no capsule: None where h or w lies outside of the input",
        ),
        Mistake(
            _exchanged,
            "kw runs fastest: q = (c*KH + kh)*KW + kw, so kw = q % KW",
        ),
        Mistake(
            lambda l, q, g: _origin(l, q, g, across=g.OH),
            "ow runs fastest: l = oh*OW + ow, so ow = l % OW",
        ),
    ),
    hint="take l and q apart first: l = oh*OW + ow and q = (c*KH + kh)*KW + kw",
)
