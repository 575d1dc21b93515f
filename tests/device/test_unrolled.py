"""Long loops over local arrays: unrolled where a device function asks for it, so that the arrays stay in registers."""

from types import SimpleNamespace

import numpy as np
import pytest
from numba import types

from numbacaps.device.instructions import local_array, unroll_loops
from numbacaps.device.target import cuda
from numbacaps.device.unrolled import MARK, with_loops_unrolled

_LONG = 200  # elements, far beyond what is unrolled by itself


def make_kernel(asks):
    """Kernel with two loops over a local array, in a device function that asks for them to be unrolled, or does not."""

    @cuda.jit(device=True, forceinline=True)
    def add(values, out, at):
        if asks:
            unroll_loops()
        for i in range(_LONG):
            values[i] = values[i] * out[at] + values[(i * 7) % _LONG]
        for i in range(_LONG):
            out[at] += values[i]

    @cuda.jit(device=True, forceinline=True)
    def load(values, out):
        unroll_loops()
        for i in range(_LONG):
            values[i] = out[i]

    @cuda.jit
    def kernel(out, turns):
        values = local_array(_LONG, np.float32)
        load(values, out)
        for turn in range(turns):
            add(values, out, turn)

    return kernel


@pytest.mark.tiers("ptx")
def test_an_array_stays_in_registers_where_its_loops_are_unrolled(monkeypatch):
    from numba.cuda import dispatcher

    gpu = SimpleNamespace(compute_capability=(9, 0))
    monkeypatch.setattr(dispatcher, "get_current_device", lambda: gpu)
    signature = types.Array(types.float32, 1, "C"), types.int64
    texts = [cuda.compile_ptx(make_kernel(asks), signature, cc=(9, 0))[0] for asks in (False, True)]
    assert ["__local_depot" in text for text in texts] == [True, False]
    assert all(MARK not in text for text in texts)
    assert texts[1].count("fma.rn.f32") >= _LONG > texts[0].count("fma.rn.f32")


@pytest.mark.tiers("ptx")
def test_metadata_is_at_the_latches_alone():
    """One node for each header, at every branch back to it: at no branch forward, whatever the order of the blocks, and at
    no loop of a function that does not ask."""
    text = f"""declare void @"{MARK}"()
define void @"asks"(i64 %n) {{
B0:
  call void @"{MARK}"()
  br label %B1
"B1":
  %more = icmp eq i64 %n, 0
  br i1 %more, label %B3, label %"B1.if"
B2:
  ret void
B3:
  br label %B2
"B1.if":
  br i1 %more, label %"B1", label %B4
B4:
  br label %B1
}}
define void @"other"() {{
B1:
  br label %B1
}}
!4 = !{{i32 1}}
"""
    lines = with_loops_unrolled(text).split("\n")
    told = [line for line in lines if "llvm.loop" in line]
    assert told == [
        '  br i1 %more, label %"B1", label %B4, !llvm.loop !6',
        "  br label %B1, !llvm.loop !6",
        '!5 = !{!"llvm.loop.unroll.full"}',
    ]
    assert "!6 = distinct !{!6, !5}" in lines and not any(MARK in line for line in lines)


@pytest.mark.tiers("gpu")
def test_the_sums_are_the_same():
    out = np.random.default_rng(3).standard_normal(_LONG).astype(np.float32)
    have = [cuda.to_device(out) for _ in range(2)]
    for asks, array in zip((False, True), have):
        make_kernel(asks)[1, 1](array, 2)
    first, second = (array.copy_to_host() for array in have)
    np.testing.assert_allclose(first, second, rtol=1e-6)
    assert not np.array_equal(first, out)
