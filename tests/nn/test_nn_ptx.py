"""Every kernel of numbacaps.nn through the real compiler, with no GPU."""

import re

import pytest

from tests.support.kernels import lets_the_next_start_late
from tests.support.nn_kernels import nn_kernels
from tests.support.ptx import ptx

pytestmark = pytest.mark.tiers("ptx")


@pytest.mark.slow(
    but=["*-float32-cc2", "exponential_squash-float64-cc2", "margin_loss-float32-cc0"]
)
@pytest.mark.parametrize("cc", [(7, 5), (8, 0), (9, 0), (10, 0)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", nn_kernels("float32"))
def test_kernel(name, dtype, cc):
    found = nn_kernels(dtype)[name]
    text = ptx(found.kernel, found.signature, cc=cc)
    assert "__local_depot" not in text, "arrays were spilled to local memory"
    assert not re.search(r"\b(atom|red)\.", text), "a sum has no fixed order"
    if dtype == "float32":
        assert not re.search(r"\.f64\b", text), "float64 crept in"
    starts_early = name != "he_normal" and cc >= (9, 0)
    for instruction in ("launch_dependents", "wait"):
        assert text.count(f"griddepcontrol.{instruction};") == starts_early
    assert "squash" not in name or lets_the_next_start_late(text)
    if name == "margin_loss":
        assert ".shared" in text and "bar.sync" in text
