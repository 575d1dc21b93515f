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


def test_the_variable_decides():
    assert _python(_SHOW, NUMBACAPS_TARGET="sim") == (0, "True\n", "")
    assert _python(_SHOW, NUMBACAPS_TARGET="cuda") == (0, "False\n", "")
    assert _python(_SHOW, NUMBA_ENABLE_CUDASIM="1") == (0, "True\n", "")


def test_without_it_the_gpu_decides_and_is_said_once():
    status, out, err = _python(_SHOW)
    assert status == 0
    if _gpu_count():
        assert (out, err) == ("False\n", "")
    else:
        assert out == "True\n"
        assert err.count("simulator") == 1 and "NUMBACAPS_TARGET=sim" in err


def test_an_unknown_target():
    status, _, err = _python(_SHOW, NUMBACAPS_TARGET="tpu")
    assert status == 1
    assert "NUMBACAPS_TARGET is 'tpu'; it takes 'cuda' or 'sim'" in err


@pytest.mark.parametrize(("target", "cure"), [("sim", "1"), ("cuda", "0")])
def test_numba_imported_first_with_the_other_setting(target, cure):
    other = "0" if target == "sim" else "1"
    code = "import os; os.environ['NUMBA_ENABLE_CUDASIM'] = '%s'; from numba import cuda; import numbacaps"
    status, _, err = _python(code % other, NUMBACAPS_TARGET=target)
    assert status == 1
    assert "Import numbacaps before numba" in err and f"NUMBA_ENABLE_CUDASIM={cure}" in err


@pytest.mark.skipif(_gpu_count() > 0, reason="needs a machine without a GPU")
def test_a_missing_gpu_is_named_with_the_cure():
    code = "import numpy as np, numbacaps as n; a = np.ones((1,)*6); n.capsule_conv2d(a, a)"
    status, _, err = _python(code, NUMBACAPS_TARGET="cuda")
    assert status == 1
    assert "no CUDA driver or GPU was found; NUMBACAPS_TARGET=sim" in err
