"""Long loops that stay unrolled.

A kernel's local array stays in registers only if every index is known at compile time, so every loop over it has to be
unrolled. The compiler unrolls short loops alone. So a long loop is written as four short ones.
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
