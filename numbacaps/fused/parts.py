"""A pass some images after the others: where what lies in the workspace for all of them would be too much."""

from numbacaps.device.compiled import run_as_argument, where
from numbacaps.device.target import SIMULATED
from numbacaps.fused.epilogue import Epilogue
from numbacaps.fused.launcher import Launcher


def part_of(argument, part, size):
    """A part of an array, as :func:`numbacaps.device.compiled.as_argument` has both: of ``size`` elements, those before it as well."""
    if SIMULATED:
        return (argument[0][part * size : (part + 1) * size],)
    itemsize = argument[-1]
    return run_as_argument(where(argument) + part * size * itemsize, size, itemsize)


class PartsLauncher(Launcher):
    """The launches of a part of the images, again and again, in the same workspace; the kernel is packed once.

    Parameters
    ----------
    launcher : numbacaps.fused.launcher.Launcher
        Of as many images as a part has.
    parts : int
    gathered, result : int
        Elements of a part.
    """

    packs_alone = False

    def __init__(self, launcher, parts, gathered, result):
        self._launcher, self._parts, self._sizes = launcher, parts, (gathered, result)
        self.packed, self.epilogue, self._behind = launcher.packed, Epilogue(), ""

    def ready_for(self, *arrays):
        """Itself: it takes every array."""
        return self

    def pack(self, kernel, packed, stream):
        """Pack the kernel, if it is packed at all."""
        self._launcher.pack(kernel, packed, stream)

    def multiply(self, gathered, kernel, packed, result, activated, stream, ahead=False):
        """Launch the parts on arrays as arguments."""
        of_gathered, of_result = self._sizes
        for part in range(self._parts):
            read = part_of(gathered, part, of_gathered)
            to = part_of(result, part, of_result)
            self._launcher.multiply(read, kernel, packed, to, to, stream, ahead)

    def __str__(self):
        return f"{self._launcher}, in {self._parts} parts"
