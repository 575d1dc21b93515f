"""The choice of target, each in a fresh Python because it is made once."""

import os
import subprocess
import sys

import pytest

from numbacaps.device.target import _gpu_count


def _python(code, **environment):
    """(exit status, stdout, stderr) of a fresh interpreter."""
    clean = {
        k: v for k, v in os.environ.items() if k not in ("NUMBACAPS_TARGET", "NUMBA_ENABLE_CUDASIM")
    }
    run = subprocess.run(
        [sys.executable, "-c", code], env=clean | environment, capture_output=True, text=True
    )
    return run.returncode, run.stdout, run.stderr


_SHOW = "import numbacaps; print(numbacaps.SIMULATED)"


@pytest.mark.slow
def test_the_variable_decides():
    assert _python(_SHOW, NUMBACAPS_TARGET="sim") == (0, "True\n", "")
    assert _python(_SHOW, NUMBACAPS_TARGET="cuda") == (0, "False\n", "")
    assert _python(_SHOW, NUMBA_ENABLE_CUDASIM="1") == (0, "True\n", "")


_WITHOUT_GPU = pytest.mark.skipif(_gpu_count() > 0, reason="needs a machine without a GPU")
_CALLS = """
import numpy as np, numbacaps as n
from numbacaps.device.target import cuda
x = np.ones((1, 1, 2, 2, 1, 1))
how = {!r}
print([type(n.capsule_conv2d(a, a, **how)).__name__ for a in (x, cuda.to_device(x)) for _ in range(2)])
print(n.capsule_votes(x, x, **how).sum(), *(g.sum() for g in n.capsule_conv2d_backward(x, x, x[:, :, :1, :1], **how)))
print(n.explain(x, x).split(",")[0])
"""


@pytest.mark.slow
def test_without_it_the_gpu_decides():
    assert _python(_SHOW) == (0, f"{not _gpu_count()}\n", "")


@pytest.mark.slow
@_WITHOUT_GPU
def test_numpy_computes_where_there_is_no_gpu():
    """Without a word, and simulated device arrays too."""
    kinds = ["ndarray", "ndarray", "FakeCUDAArray", "FakeCUDAArray"]
    assert _python(_CALLS.format({})) == (0, f"{kinds}\n4.0 4.0 4.0\nalgorithm numpy\n", "")


@pytest.mark.slow
@_WITHOUT_GPU
def test_a_kernel_that_falls_back_to_the_simulator_says_so_once():
    status, out, err = _python(_CALLS.format({"algorithm": "indexed"}))
    assert (status, out.splitlines()[1:]) == (0, ["4.0 4.0 4.0", "algorithm numpy"])
    assert err.count("runs on Numba's simulator") == 1 and "NUMBACAPS_TARGET=sim says so" in err


@pytest.mark.slow
@pytest.mark.parametrize("variable", ["NUMBACAPS_TARGET", "NUMBA_ENABLE_CUDASIM"])
def test_the_simulator_that_is_asked_for_is_quiet(variable):
    value = "sim" if variable == "NUMBACAPS_TARGET" else "1"
    _, out, err = _python(_CALLS.format({}), **{variable: value})
    assert (out.splitlines()[1:], err) == (["4.0 4.0 4.0", "algorithm fused"], "")


def test_an_unknown_target():
    status, _, err = _python(_SHOW, NUMBACAPS_TARGET="tpu")
    assert status == 1
    assert "NUMBACAPS_TARGET is 'tpu'; it takes 'cuda' or 'sim'" in err


@pytest.mark.slow
@pytest.mark.parametrize(("target", "cure"), [("sim", "1"), ("cuda", "0")])
def test_numba_imported_first_with_the_other_setting(target, cure):
    other = "0" if target == "sim" else "1"
    code = "import os; os.environ['NUMBA_ENABLE_CUDASIM'] = '%s'; from numba import cuda; import numbacaps"
    status, _, err = _python(code % other, NUMBACAPS_TARGET=target)
    assert status == 1
    assert "Import numbacaps before numba" in err and f"NUMBA_ENABLE_CUDASIM={cure}" in err


@pytest.mark.slow
@_WITHOUT_GPU
def test_numpy_takes_no_gpu():
    """It computes on a machine where kernels were to run on a GPU that there is not."""
    code = """
import numpy as np, numbacaps as n
a = np.ones((1,) * 6)
how = {"algorithm": "numpy"}
plan = n.plan(a, a, **how)
print(n.capsule_conv2d(a, a, **how).item(), plan(a, a, a + 1).item())
plan.pack(a)
print(plan(a, None, a + 1).item())
"""
    assert _python(code, NUMBACAPS_TARGET="cuda") == (0, "1.0 1.0\n1.0\n", "")


@_WITHOUT_GPU
def test_a_missing_gpu_is_named_with_the_cure():
    code = "import numpy as np, numbacaps as n; a = np.ones((1,)*6); n.capsule_conv2d(a, a)"
    status, _, err = _python(code, NUMBACAPS_TARGET="cuda")
    assert status == 1
    assert "no CUDA driver or GPU was found; NUMBACAPS_TARGET=sim" in err
