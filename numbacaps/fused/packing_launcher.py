"""What the launchers have in common whose rungs read a packed kernel."""

from numbacaps.device.compiled import Compiled, aligned, as_words
from numbacaps.device.dtypes import sum_dtype
from numbacaps.device.instructions import CHUNK
from numbacaps.device.launch import spread
from numbacaps.fused.launcher import Launcher
from numbacaps.fused.pack import NUMBERS, Packing, make_pack
from numbacaps.fused.rung_3_register_tiles.launcher import RegisterTilesLauncher
from numbacaps.fused.rung_4_wgmma.tile import LANES, Window
from numbacaps.made_once import made_once


class PackingLauncher(Launcher):
    """What the tensor cores' products have in common: the kernel is packed before each.

    They copy 16 bytes at a time, so arrays that do not begin at a multiple of 16 go through
    :class:`RegisterTilesLauncher`, which is made when the first one comes; with an activation they are refused.

    Parameters
    ----------
    product : numbacaps.fused.implicit_gemm.Product
    images, G : int
    dtype : numpy.dtype
    tile
        Of the kernel's own table.
    why : str
    depth : int
        Elements of k in a stage, those of all taps apart.
    run, parts : int
        Of the packed kernel: k's that a thread loads at once, and parts.
    activation : numbacaps.fused.activation.Activation or None
    follows : bool
        Another product of the pass is packed, and multiplied, before this one.
    """

    def __init__(
        self, product, images, G, dtype, tile, why, depth, run, parts, activation, follows
    ):
        p = product
        super().__init__(activation, p, tile.BN, LANES)
        self.images, self.tile, self.why = images, tile, why
        self._ordinary = (p, images, G, dtype)
        chunks = depth * dtype.itemsize // CHUNK
        depths, columns = (p.channels, p.D, Window.of(p).taps), (p.n, p.kernel_steps)
        which = (G, p.pixels.steps[1], tile.BN, chunks, parts, dtype.itemsize, run)
        packing = Packing(*depths, *columns, *which)
        self.packed = packing.elements * dtype.itemsize // sum_dtype(dtype).itemsize
        kernel = make_pack(packing.form, dtype, follows)
        pack = Compiled(kernel, (dtype, dtype), 0, words=NUMBERS, early=True)
        self._pack, self._numbers = pack.on(*spread(packing.elements)), as_words(packing.numbers)

    def ready_for(self, gathered, kernel, result, activated):
        """Itself, or the product by ordinary arithmetic where an array does not begin as copies want it."""
        if aligned(CHUNK, gathered, result, activated):
            return self
        if self.epilogue.activates or self.epilogue.differentiates:
            raise ValueError("with an activation, arrays begin at multiples of 16 bytes")
        return self.by_ordinary_arithmetic

    def pack(self, kernel, packed, stream):
        """Launch the packing of the kernel."""
        self._pack(stream, (*kernel, *packed, *self._numbers))

    @made_once
    def by_ordinary_arithmetic(self):
        """The product for arrays that copies cannot take."""
        return RegisterTilesLauncher(*self._ordinary)
