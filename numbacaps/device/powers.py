"""Powers of two, logarithms to the base 2 and reciprocals as the GPU's function units have them: one instruction each.

Errors on a GPU are about two units in the last place, of a logarithm near 0 about 2^-22; subnormal numbers are 0.
"""

import numpy as np

from numbacaps.device.target import SIMULATED

if SIMULATED:

    def exp2(value):
        """2 ** value."""
        with np.errstate(under="ignore", over="ignore"):
            return np.exp2(np.float32(value))

    def log2(value):
        """Of a number that is not negative; minus infinity of 0."""
        with np.errstate(divide="ignore"):
            return np.log2(np.float32(value))

    def reciprocal(value):
        """1 / value."""
        with np.errstate(divide="ignore"):
            return np.float32(1) / np.float32(value)

else:
    from numba.core import types
    from numba.cuda.extending import intrinsic

    from numbacaps.device.instructions.ptx.inline import F32, asm

    def _unit(text):
        """An intrinsic of one instruction from float32 to float32."""

        @intrinsic
        def made(typing_context, value):
            def codegen(context, builder, signature, arguments):
                return asm(builder, F32, arguments, f"{text} $0, $1;", "=f,f", False)

            return types.float32(types.float32), codegen

        return made

    exp2 = _unit("ex2.approx.ftz.f32")
    log2 = _unit("lg2.approx.ftz.f32")
    reciprocal = _unit("rcp.approx.ftz.f32")
