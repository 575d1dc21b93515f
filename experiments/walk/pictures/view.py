"""What the pictures of a walk point at: one window, and the capsules in it that hold the most ink."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class View:
    """A trace and what the pictures point at.

    Attributes
    ----------
    trace : Trace
    l : int
        The output position whose window holds the most ink.
    picks : list of int
        Up to three capsules q of that window, those with the most ink, in order.
    """

    trace: object
    l: int
    picks: list

    @classmethod
    def of(cls, trace):
        ink = np.abs(trace.operands["I_flat"].array[0]).sum(axis=(-3, -2, -1))  # (L, Q)
        l = int(ink.sum(axis=1).argmax())
        return cls(trace, l, sorted(np.argsort(-ink[l], kind="stable")[:3].tolist()))

    @property
    def geometry(self):
        return self.trace.plan.geometry

    @property
    def position(self):
        """(oh, ow) of the highlighted output position."""
        return divmod(self.l, self.geometry.OW)

    def window(self):
        """(q, c, h, w) of every capsule in the window; h and w may lie in the padding."""
        g, (oh, ow) = self.geometry, self.position
        for c in range(g.C):
            for kh in range(g.KH):
                for kw in range(g.KW):
                    h = oh * g.stride[0] + kh * g.dilation[0] - g.padding[0]
                    w = ow * g.stride[1] + kw * g.dilation[1] - g.padding[1]
                    yield (c * g.KH + kh) * g.KW + kw, c, h, w

    def tiles(self, name):
        """An array as matrices: (..., G, D1, D2) -> (..., G*D1, D2)."""
        array = self.trace.operands[name].array
        return array.reshape(*array.shape[:-3], -1, array.shape[-1])

    def scale(self, name):
        """The largest magnitude of an array, 1 if it is all zeros or not finite."""
        array = np.abs(self.trace.operands[name].array)
        largest = float(array.max())
        return largest if np.isfinite(largest) and largest > 0 else 1.0

    def shape(self, *names):
        """``I_flat (N, L, Q, ...) = (1, 9, 9, ...)`` for every name, with arrows between."""
        found = [self.trace.operands[name] for name in names]
        return "   →   ".join(f"{o.name} ({o.axes}) = {o.shape}" for o in found)
