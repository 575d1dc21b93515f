"""What the launchers of all rungs have in common.

A launcher is a kernel made ready for one :class:`numbacaps.fused.implicit_gemm.Product`: its table of offsets is on the
GPU, its grid is worked out, it is compiled. Launchers of the gathering passes, forward and the input's gradient,
first ``pack`` the kernel, where their rung wants it in another order, then ``multiply``.

Their launches are prepared too: who launches a pass describes each array once (:func:`numbacaps.device.compiled.as_argument`)
for all of its launches, and the stream (:func:`numbacaps.device.compiled.launch_stream`). Called alone, a launcher
takes arrays and a Numba stream.
"""

from numbacaps.device.compiled import as_argument, launch_stream
from numbacaps.fused.epilogue import fit


class Launcher:
    """What the products that gather one operand have in common: what is done with their sums.

    Parameters
    ----------
    activation : numbacaps.fused.activation.Activation or None
    product : numbacaps.fused.implicit_gemm.Product
    columns : int
        Of a tile.
    lanes : numbacaps.fused.epilogue.Lanes

    Attributes
    ----------
    epilogue : numbacaps.fused.epilogue.Epilogue
        It ``activates`` where the kernel computes the activation too, ``differentiates`` where its gradient.
    packs_alone : bool
        Its workspace holds the packed kernel and nothing that a call writes, so calls on several streams can read it.
    """

    packs_alone = True

    def __init__(self, activation, product, columns, lanes):
        self.epilogue, apart = fit(activation, product, columns, lanes)
        self._behind = ""
        if activation is not None:
            what = (
                "the gradient of LeakyReLU and squash"
                if activation.backward
                else "LeakyReLU and squash"
            )
            self._behind = f", {what} {f'apart: {apart}' if apart else 'in it'}"

    def __call__(self, gathered, kernel, result, stream, packed, activated=None):
        """Launch it alone on runs of elements; ``packed`` is room for what it packs.

        For one that follows no other: those are launched with the pass.

        ``activated`` takes the result behind the activation, where there is one, or holds the sums before it
        where the result is its gradient.
        """
        activated = result if activated is None else activated
        arrays = [gathered, kernel, result, activated]
        gathered, kernel, result, activated = map(as_argument, arrays)
        room = None if packed is None else as_argument(packed)
        stream = launch_stream(stream)
        ready = self.ready_for(gathered, kernel, result, activated)
        ready.pack(kernel, room, stream)
        ready.multiply(gathered, kernel, room, result, activated, stream)


class SplitKLauncher:
    """What the products of the kernel's gradient have in common: how they are launched alone."""

    def __call__(self, x, dy, dw, stream, partial):
        """Launch it alone on runs of elements; ``partial`` is room for the splits' sums, None where it takes none."""
        room = None if partial is None else as_argument(partial)
        self.reduce(*map(as_argument, (x, dy, dw)), room, launch_stream(stream))
