"""The columns of the input's gradient by ordinary arithmetic, and what adds them (:mod:`numbacaps.fused.col2im`)."""

from numbacaps.fused.rung_3_register_tiles.launcher import RegisterTilesLauncher


class ColumnsLauncher(RegisterTilesLauncher):
    """A product of float32 whose result lies in the workspace, and the launch behind it that makes dx of it.

    Parameters
    ----------
    product, images, G, dtype, chosen
        As of :class:`RegisterTilesLauncher`.
    finish : numbacaps.fused.col2im.Col2im
    size : int
        Elements of the columns.
    """

    packs_alone = False

    def __init__(self, product, images, G, dtype, chosen, finish, size):
        super().__init__(product, images, G, dtype, chosen=chosen)
        self._finish, self.packed = finish, size

    def multiply(self, gathered, kernel, packed, result, activated, stream, ahead=False):
        """Launch the product, then the sum, on arrays as arguments."""
        super().multiply(gathered, kernel, packed, packed, packed, stream)
        self._finish(packed, result, (gathered, kernel), stream)

    def __str__(self):
        return f"register_tiles {self.tile}{self._finish} ({self.why})"
