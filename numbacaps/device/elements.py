"""An array from one of its elements on, for kernels.

It stands beside :mod:`numbacaps.device.instructions`, which most kernels import: who changes it makes no result of theirs older.
"""

from numbacaps.device.target import SIMULATED

if SIMULATED:

    def from_element(array, first):
        """An array from element ``first`` on."""
        return array[first:]

else:
    from numbacaps.device.instructions.ptx.elements import from_element

__all__ = ["from_element"]
