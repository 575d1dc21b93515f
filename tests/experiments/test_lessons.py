"""The lessons run, their prose computes its numbers, and their exercises can be solved."""

import importlib
import pkgutil
import re
import time

import pytest

from experiments import lessons
from experiments.measuring.provenance import ROOT

NAMES = [found.name for found in pkgutil.iter_modules(lessons.__path__) if found.name != "example"]
MOST_SECONDS = 20
# What may hold a digit in the prose: names of the paper and of code, and a page's headings.
_NAMED = (
    r"Algorithm \d|Figures? \d( and \d)?|steps? \d( and \d)?|[EDTd]\d|im2col|col2im|rank-3|float\d+"
)


def lesson(number):
    """A lesson's module."""
    (name,) = (name for name in NAMES if name.startswith(f"lesson_{number}_"))
    return importlib.import_module(f"experiments.lessons.{name}")


def source(name):
    return (ROOT / "experiments" / "lessons" / f"{name}.py").read_text()


def test_there_are_five_in_order():
    assert [name[:9] for name in NAMES] == [f"lesson_{number}_" for number in range(1, 6)]
    for name in NAMES:
        assert name in lessons.__doc__


@pytest.mark.parametrize("name", NAMES)
def test_lesson_runs(name, capsys):
    begin = time.process_time()  # this process alone: whatever else the machine does
    module = importlib.import_module(f"experiments.lessons.{name}")
    importlib.reload(module)
    assert time.process_time() - begin < 2 * MOST_SECONDS
    assert capsys.readouterr().out.count("\n") >= 4 and module.check.__doc__


@pytest.mark.parametrize("name", NAMES)
def test_prose_comes_first_and_computes_its_numbers(name):
    cells = re.split(r"^# %%", source(name), flags=re.MULTILINE)
    assert cells[0] == "" and cells[1].startswith(" [markdown]\n# # ")
    prose = [cell for cell in cells if cell.startswith(" [markdown]")]
    assert any("## Exercise" in cell for cell in prose[-1:])
    for cell in prose:
        assert not re.search(r"\d", re.sub(_NAMED, "", cell)), cell


# ---- the exercises: a solution passes, a mistake does not


def origin(l, q, g):
    """Exercise 1."""
    c, kh, kw = q // (g.KH * g.KW), q // g.KW % g.KH, q % g.KW
    h = l // g.OW * g.stride[0] + kh * g.dilation[0] - g.padding[0]
    w = l % g.OW * g.stride[1] + kw * g.dilation[1] - g.padding[1]
    return (c, h, w) if 0 <= h < g.H and 0 <= w < g.W else None


def elements_written(g):
    """Exercise 2."""
    column = g.L * g.Q * g.E1
    return g.N * column + g.N * g.P * column + g.P * g.L * g.Q * g.E2


def offsets(n, p, l, q, k, g):
    """Exercise 3."""
    image = ((n * g.P + p) * g.L + l) * g.Q + q
    shared = (p * g.L + l) * g.Q + q
    return (
        image * g.E1 + k * g.D1 * g.D2,
        shared * g.E2 + k * g.D2 * g.D3,
        image * g.E3 + k * g.D1 * g.D3,
    )


def covering(h, w, g):
    """Exercise 4."""
    found = []
    for kh in range(g.KH):
        for kw in range(g.KW):
            oh, down = divmod(h + g.padding[0] - kh * g.dilation[0], g.stride[0])
            ow, across = divmod(w + g.padding[1] - kw * g.dilation[1], g.stride[1])
            if down == across == 0 and 0 <= oh < g.OH and 0 <= ow < g.OW:
                found.append((oh * g.OW + ow, kh, kw))
    return found


def elements_read(g, BM, BN):
    """Exercise 5: each block of rows reads the kernel, each block of columns the input."""
    M, N, K = g.gemm
    return -(-N // BN) * M * K + -(-M // BM) * N * K


SOLUTIONS = (origin, elements_written, offsets, covering, elements_read)
MISTAKES = (
    lambda l, q, g: (q // (g.KH * g.KW), l // g.OW + q // g.KW % g.KH, l % g.OW + q % g.KW),
    lambda g: g.N * g.P * g.L * g.Q * g.E1,
    lambda n, p, l, q, k, g: tuple(
        (((n * g.P + p) * g.L + l) * g.Q + q) * size + k for size in (g.E1, g.E2, g.E3)
    ),
    lambda h, w, g: covering(h, w, g)[:1],
    lambda g, BM, BN: 2 * g.gemm[0] * g.gemm[1] * g.gemm[2],
)


@pytest.mark.parametrize("number", range(1, 6))
def test_solution_passes_and_mistake_does_not(number):
    check = lesson(number).check
    check(SOLUTIONS[number - 1])
    with pytest.raises(AssertionError, match=r"wrong|elements"):
        check(MISTAKES[number - 1])
