"""An array from one of its elements on, for kernels.

It is no part of :mod:`numbacaps.device.instructions`: most kernels import that, and a change there makes their recorded results older.
"""

from numbacaps.device.target import SIMULATED

if SIMULATED:

    def from_element(array, first):
        """An array from element ``first`` on."""
        return array[first:]

else:
    from numbacaps.device.instructions.ptx.elements import from_element

__all__ = ["from_element"]
