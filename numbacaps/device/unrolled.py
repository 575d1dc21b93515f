"""Long loops that stay unrolled.

A kernel's local array stays in registers only if every index is known at compile time, so every loop over it has to be
unrolled. The compiler unrolls short loops alone. So a long loop is written as four short ones.
"""

from numbacaps.device.specialization import specialized
from numbacaps.device.target import cuda


def make_in_quarters(function, count):
    """Device function ``run(arguments)``: ``function(arguments, begin, end)`` for the quarters of ``range(count)``."""
    quarter = -(-count // 4)
    FIRST, SECOND, THIRD, COUNT = map(specialized, (min(count, i * quarter) for i in (1, 2, 3, 4)))

    @cuda.jit(device=True, forceinline=True)
    def run(arguments):
        function(arguments, 0, FIRST)
        if COUNT > FIRST:
            function(arguments, FIRST, SECOND)
        if COUNT > SECOND:
            function(arguments, SECOND, THIRD)
        if COUNT > THIRD:
            function(arguments, THIRD, COUNT)

    return run
