"""What the README says is so: its script runs, its tables hold, its paths exist."""

import re

import pytest

from experiments.measuring.provenance import ROOT
from numbacaps import ALGORITHMS, Geometry, parse_product

_TEXT = (ROOT / "README.md").read_text()


def _rows(header):
    """Cells of the table that begins with ``header``."""
    table = _TEXT[_TEXT.index(header) :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in table]


@pytest.mark.parametrize("script", re.findall(r"```python\n(.*?)```", _TEXT, re.DOTALL))
def test_script(script):
    exec(compile(script, "README.md", "exec"), {})


def test_gemm_table():
    rows = _rows("| layer | C, P, H, stride")
    assert len(rows) == 5
    for _, sizes, capsules, gemm, mflop in rows:
        C, P, H, stride = map(int, sizes.split(","))
        D1, D2, again, D3 = map(int, re.findall(r"\d+", capsules))
        assert again == D2
        g = Geometry(128, C, P, H, H, 3, 3, 1, D1, D2, D3, (stride, stride))
        assert list(g.gemm) == [int(number) for number in gemm.split(",")]
        assert f"{g.flop / 1e6:.1f}" == mflop


def test_product_table():
    for spec, _, *letters in _rows("| product | capsules"):
        product = parse_product(spec.strip('`"'))
        written = [re.sub(r"\W", "", cell).strip("1") for cell in letters]
        assert written == [product.g, product.d1, product.d2, product.d3]


def test_algorithms():
    named = {row[0].strip('`"') for row in _rows("| `algorithm` | what it does")}
    assert named == {"auto", *ALGORITHMS}


def test_paths():
    for cell, _ in _rows("| path | holds"):
        for path in re.findall(r"`([^`]+)`", cell):
            assert (ROOT / path).exists(), path
    for path in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", _TEXT):
        assert (ROOT / path).exists(), path
