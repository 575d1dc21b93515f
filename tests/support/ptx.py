"""PTX of kernels, for tests that read it.

Numba's front end takes most of the time of a compilation, and is the same for kernels of one form
(:mod:`numbacaps.device.specialization`). So here, too, it sees each form once, of all processes and runs of pytest: what it makes is
kept beside what pytest keeps, by a name that says all it is made of. NVVM sees every kernel. A kernel without specialization
constants has a form of its own, and is not kept.
"""

import gzip
import json
import os
import sys
import time
from contextlib import suppress
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

from numbacaps.device.kernel_cache import _form
from numbacaps.device.specialization import renumbered
from numbacaps.device.target import SIMULATED, cuda

if not SIMULATED:
    from numba.cuda import dispatcher
    from numba.cuda.cudadrv import nvvm
    from numba.cuda.cudadrv.error import CudaSupportError

_ROOT = Path(__file__).parents[2]
_KEPT = _ROOT / ".pytest_cache" / "ptx"
_LONGEST = 7 * 24 * 3600  # seconds that a form is kept, whose sources may be gone
# A form's name tells the files that a kernel imports, and not those that have a say in how it is compiled.
_COMPILING = b"".join(
    path.read_bytes() for path in sorted((_ROOT / "numbacaps/device").glob("*.py"))
)
_MADE_BY = (
    sys.version,
    *map(version, ("numba", "numba-cuda", "llvmlite")),
    sha256(_COMPILING).hexdigest(),
)


def ptx(kernel, signature, cc):
    """PTX of a kernel of ``cuda.jit`` for types of arguments and a compute capability, which the current device may not have."""
    bounds = kernel.targetoptions.get("launch_bounds") or ()
    form, constants = _form(kernel.py_func, bounds)
    which = form, signature, cc, _current(), _MADE_BY
    path = _KEPT / f"{sha256(repr(which).encode()).hexdigest()[:32]}.json.gz"
    own = [constant.number for constant in constants]
    if not path.exists():
        text, made = _compiled(kernel, signature, cc, own)
        if own:
            _write(path, made)
        return text
    texts, options = json.loads(gzip.decompress(path.read_bytes()))  # placeholders count from 0
    texts = [renumbered(text, dict(enumerate(own))) for text in texts]
    return nvvm.compile_ir(texts, **options).decode().strip("\0").strip()


def _current():
    """Compute capability of the device that device functions are compiled for, which a test may pretend; None without one."""
    try:
        return dispatcher.get_current_device().compute_capability
    except CudaSupportError:
        return None


def _compiled(kernel, signature, cc, own):
    """(PTX, what is kept) of a kernel that Numba compiles."""
    seen, compile_ir = [], nvvm.compile_ir

    def noted(texts, **options):
        seen.append((texts, options))
        return compile_ir(texts, **options)

    nvvm.compile_ir = noted
    try:
        text, _ = cuda.compile_ptx(kernel, signature, cc=cc)
    finally:
        nvvm.compile_ir = compile_ir
    ((texts, options),) = seen
    numbers = {number: i for i, number in enumerate(own)}
    return text, ([renumbered(text, numbers) for text in texts], options)


def _write(path, made):
    _KEPT.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_bytes(gzip.compress(json.dumps(made).encode(), compresslevel=1))
    temporary.replace(path)


def _remove_old():
    for path in _KEPT.glob("*"):
        with suppress(FileNotFoundError):  # another process was faster
            if path.stat().st_mtime < time.time() - _LONGEST:
                path.unlink()


_remove_old()
