"""Convolutions that hypothesis draws, by ``"fused"``: a few here, thousands by ``tests.record_drawn``."""

from dataclasses import replace

import drawn
import pytest

from experiments.problem import PASSES
from numbacaps.pipelines.registry import ALGORITHMS
from numbacaps.target import SIMULATED
from tests import record_drawn


@pytest.mark.tiers("simulator", "gpu")
def test_a_few():
    drawn.each(25 if SIMULATED else 5, drawn.Convolution.check)


def test_the_same_every_time_and_of_every_kind():
    one, again = [], []
    drawn.each(200, one.append)
    drawn.each(200, again.append)
    assert one == again and len(set(one)) > 190
    assert {convolution.wanted for convolution in one} == set(PASSES)
    assert {convolution.dtype for convolution in one} > {"float32", "float64"}


@pytest.mark.parametrize("wanted", PASSES)
def test_what_nobody_writes_is_found(wanted, monkeypatch):
    nothing = dict.fromkeys(("forward", "backward"), lambda *arrays, **how: None)
    monkeypatch.setitem(ALGORITHMS, "fused", replace(ALGORITHMS["fused"], **nothing))
    found = []
    drawn.each(50, found.append)
    with pytest.raises(AssertionError, match="above the tolerance"):
        next(one for one in found if one.wanted == wanted).check()


def test_commands(capsys):
    assert record_drawn.main(["--examples", "1"]) == 2
    assert "no GPU was found" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stop:
        record_drawn.main(["--examples", "0"])
    assert stop.value.code == 2 and "--examples got 0" in capsys.readouterr().err
