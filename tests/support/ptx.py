"""PTX of kernels, for tests that read it.

Numba's front end takes most of the time of a compilation, and is the same for kernels of one form
(:mod:`numbacaps.device.specialization`). So here, too, it sees each form once; NVVM sees every kernel.
"""

from numbacaps.device.kernel_cache import _form
from numbacaps.device.specialization import renumbered
from numbacaps.device.target import SIMULATED, cuda

if not SIMULATED:
    from numba.cuda.cudadrv import nvvm

_texts = {}  # forms, with types and GPUs, to (LLVM's texts, how NVVM compiles them); placeholders count from 0


def ptx(kernel, signature, cc):
    """PTX of a kernel of ``cuda.jit`` for types of arguments and a compute capability, which the current device may not have."""
    bounds = kernel.targetoptions.get("launch_bounds") or ()
    form, constants = _form(kernel.py_func, bounds)
    own = [constant.number for constant in constants]
    which = form, tuple(signature), cc
    if which not in _texts:
        text, _texts[which] = _compiled(kernel, signature, cc, own)
        return text
    texts, options = _texts[which]
    made = nvvm.compile_ir([renumbered(text, dict(enumerate(own))) for text in texts], **options)
    return made.decode().strip("\0").strip()


def _compiled(kernel, signature, cc, own):
    """(PTX, what :data:`_texts` keeps) of a kernel that Numba compiles."""
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
