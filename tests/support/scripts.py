"""Scripts that compile kernels in a process of their own, with a folder for kernels of its own."""

import os
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[2]


def run_script(script, folder):
    """Run it from a file, because Numba reads a function's source; fail with what it says if it fails."""
    path = folder / "script.py"
    path.write_text(script)
    paths = os.pathsep.join([str(_ROOT), *sys.path])
    environment = {**os.environ, "PYTHONPATH": paths, "NUMBA_CACHE_DIR": str(folder)}
    how = {"capture_output": True, "text": True, "timeout": 300, "cwd": _ROOT}
    found = subprocess.run([sys.executable, path], env=environment, **how)
    assert found.returncode == 0, found.stderr
