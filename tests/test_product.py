"""What a product spec makes of capsule axes."""

import pytest

from numbacaps import parse_product


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
