"""Long loops that stay unrolled.

Arrays stay in registers if every index is known when a kernel is compiled, and so if all loops over them are unrolled.
The compiler unrolls only short ones, so a long loop is written as four.
"""

from numbacaps.device.target import cuda


def make_in_quarters(function, count):
    """Device function ``run(arguments)``: ``function(arguments, begin, end)`` for the quarters of ``range(count)``."""
    QUARTER = -(-count // 4)

    @cuda.jit(device=True, forceinline=True)
    def run(arguments):
        function(arguments, 0, min(count, QUARTER))
        if count > QUARTER:
            function(arguments, QUARTER, min(count, 2 * QUARTER))
        if count > 2 * QUARTER:
            function(arguments, 2 * QUARTER, min(count, 3 * QUARTER))
        if count > 3 * QUARTER:
            function(arguments, 3 * QUARTER, count)

    return run
