"""What a product spec makes of capsule axes."""

import re

import pytest

from numbacaps import parse_product
from numbacaps.messages import did_you_mean


@pytest.mark.parametrize(
    ("spec", "x", "w", "dimensions", "capsule"),
    [
        ("ab,bc->ac", (4, 16), (16, 8), (1, 4, 16, 8), (4, 8)),
        ("gab,gbc->gac", (3, 4, 5), (3, 5, 6), (3, 4, 5, 6), (3, 4, 6)),
        ("abk,kcd->abcd", (2, 3, 5), (5, 7, 1), (1, 6, 5, 7), (2, 3, 7, 1)),
        ("ab,ab->ab", (2, 3), (2, 3), (6, 1, 1, 1), (2, 3)),
        ("a,b->ab", (2,), (3,), (1, 2, 1, 3), (2, 3)),
        ("ab,ab->", (2, 3), (2, 3), (1, 1, 6, 1), ()),
        (",->", (), (), (1, 1, 1, 1), ()),
        ("ab, bc -> ac", (2, 3), (3, 4), (1, 2, 3, 4), (2, 4)),
    ],
)
def test_dimensions(spec, x, w, dimensions, capsule):
    product = parse_product(spec)
    assert product.dimensions(x, w) == dimensions
    assert product.y_capsule(x, w) == capsule


def test_orders():
    product = parse_product("abg,gbc->cga")
    assert (product.g, product.d1, product.d2, product.d3) == ("g", "a", "b", "c")
    assert product.x_order == (2, 0, 1)
    assert product.w_order == (0, 1, 2)
    assert product.y_order == (1, 2, 0)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("ab,bc", "it lacks the output, '->' and its axes; did you mean 'ab,bc->ac'?"),
        ("gab, gbc", "did you mean 'gab,gbc->ac'?"),
        ("ab,bc->", "axis 'a' is in one input alone, so the output needs it"),
        ("...ab,...bc->...ac", "no ellipsis"),
        ("ab->ab", "a spec of two inputs, such as 'ab,bc->ac', not of 1"),
        ("ab,bc,cd->ad", "a spec of two inputs, such as 'ab,bc->ac', not of 3"),
        ("ab,b1->a1", "not '1'"),
        ("ab,bc=ac", "not '='"),
        ("ab,bc->ac->", "not '-'"),
        ("", "two inputs, such as"),
    ],
)
def test_what_is_missing_is_said(spec, words):
    with pytest.raises(ValueError, match=re.escape(words)) as refused:
        parse_product(spec)
    assert repr(spec) in str(refused.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fussed", "; did you mean 'fused'?"),
        ("TF32X3", "; did you mean 'tf32x3'?"),
        ("tf23", "; did you mean 'tf32'?"),
        ("fp32", "; did you mean 'ieee'?"),
        ("Float32", "; did you mean 'ieee'?"),
        ("quantum", ""),
        (3, ""),
    ],
)
def test_did_you_mean(name, words):
    assert did_you_mean(name, ("auto", "fused", "staged", "ieee", "tf32", "tf32x3")) == words
