"""Routing of votes that are summed over the window on CUDA tensors: stored band by band (:mod:`numbacaps.routing.bands`).

Each band's votes are a convolution of channels that lie beside g (:mod:`numbacaps.routing.summed`). What bands have in
common, the kernel beside g and its packed copies, is made once a call.
"""

import torch

from numbacaps.device.instructions import CHUNK
from numbacaps.routing.bands import bands_of
from numbacaps.routing.runner import Runner
from numbacaps.routing.summed import CHANNELS_FIRST, CHANNELS_LAST, PRODUCT, precision_of_sums
from numbacaps.torch import kernels
from numbacaps.torch.routing_kernels import RoutingCall


def route(x, w, more, options, window, precision, keep):
    """As :func:`numbacaps.torch.routing_kernels.route`; states are never kept."""
    given = w, more, options, window, precision
    bands, common, y = _bands(x, given, "forward"), _Common(), None
    for band in bands:
        found = _routed(band, x, given, common)
        if len(bands) == 1:
            return found, None, None
        if y is None:
            y = found.new_empty((x.shape[0], found.shape[1], bands[-1].rows.stop, *found.shape[3:]))
        y[band.images, :, band.rows] = found
    return y, None, None


def _routed(band, x, given, common):
    """A band's capsules. The votes live as long as this call."""
    with _BandCall(band, _rows_of(x, band), *given, "forward", common) as call:
        found = call.new_result("y")
        results = [call.array(found, call.parents)]
        call.launch("forward", *call.operands(), results, states=None)
        return call.deliver("y", found)


def gradients(x, w, dy, d_activations, states, more, options, window, precision):
    """As :func:`numbacaps.torch.routing_kernels.gradients`."""
    given = w, more, options, window, precision
    bands, common = _bands(x, given, "backward", dy), _Common()
    dx, total = None, {}
    for band in bands:
        found = _gradients(band, x, dy, given, common)
        if band.is_whole and len(bands) == 1:
            return found
        dx = torch.empty_like(x, memory_format=torch.contiguous_format) if dx is None else dx
        _add_rows(dx, found.pop("x"), band)
        total = {name: total[name].add_(one) if total else one for name, one in found.items()}
    return {"x": dx, **total}


def _gradients(band, x, dy, given, common):
    """What a band gives the operands, by name."""
    more = given[1]
    with _BandCall(band, _rows_of(x, band), *given, "backward", common) as call:
        reached = call.in_order("y", dy[band.images, :, band.rows])
        to = [call.array(reached, call.parents)]
        own = {name: call.new(name) for name in more}
        of_own = [call.array(one, call.seen(name)) for name, one in own.items()] or [None]
        call.launch("backward", *call.operands(), to, *call.into(), of_own, states=None)
        return {**call.gradients(), **own}


def _bands(x, given, wanted, dy=None):
    """The bands of a call, whose operands fit."""
    w, more, options, window, precision = given
    whole = RoutingCall(x, w, more, options, window, precision, wanted)
    if dy is not None:
        whole.check("dy", dy)
    return bands_of(whole.geometry, x.itemsize, wanted == "backward")


def _rows_of(x, band):
    """A band's rows of x, with its rows of zeros."""
    found = x.detach()[band.images, :, band.read]
    if not band.is_padded:
        return found
    padded = x.new_zeros((*found.shape[:2], band.geometry.H, *found.shape[3:]))
    padded[:, :, band.above : band.above + band.height] = found
    return padded


def _add_rows(dx, found, band):
    """Write a band's rows of dx; those that the bands above have written are added."""
    rows = found[:, :, band.above : band.above + band.height]
    into = dx[band.images, :, band.read]
    into[:, :, : band.shared] += rows[:, :, : band.shared]
    into[:, :, band.shared :] = rows[:, :, band.shared :]


def _aligned(tensor):
    """A tensor that begins where kernels copy 16 bytes at once: so all bands take the same kernels, and the first packs for all."""
    return tensor.clone() if tensor.data_ptr() % CHUNK else tensor


class _Common:
    """What the bands of a call share: the kernel beside g, and workspaces with its packed copies; the first band makes both."""

    def __init__(self):
        self.kernel = self.rooms = None


class _BandCall(RoutingCall):
    """The call of a band, whose votes are stored."""

    def __init__(self, band, x, w, more, options, window, precision, wanted, common):
        stride, padding, *others = window
        if not band.is_whole:
            padding = 0, padding[1]
        super().__init__(x, w, more, options, (stride, padding, *others), precision, wanted)
        self._common = common

    def _decided(self):
        return Runner(self.geometry, self._of.dtype, self._options, stored=True)

    @property
    def _how(self):
        g = self.geometry
        precision = precision_of_sums(self._of.dtype, self._precision)
        return g.stride, g.padding, g.dilation, PRODUCT, precision, False

    def operands(self):
        """The votes, and what the routing takes besides."""
        common = self._common
        if common.kernel is None:
            common.kernel = self._beside_g("w", self._w)
            common.rooms = kernels.SharedRooms(self.device)
        self._last = _aligned(self._beside_g("x", self._x))
        self._votes = kernels.convolve(self._last, common.kernel, self._how, common.rooms)
        return self.array(self._votes, self._seen), None, self.others()

    def into(self):
        """Where the gradient of the votes is written."""
        self._d_votes = torch.empty_like(self._votes)
        return self.array(self._d_votes, self._seen), None

    def gradients(self):
        """Those of x and w, by name, from that of the votes."""
        x, w, rooms = self._last, self._common.kernel, self._common.rooms
        dx = kernels.input_gradient(self._d_votes, w, x.shape, self._how, rooms)
        dw = kernels.kernel_gradient(x, self._d_votes, w.shape, self._how)
        return {"x": self._in_order("x", dx), "w": self._in_order("w", dw)}

    @property
    def _seen(self):
        """The votes' shape as the passes have it."""
        g = self.geometry
        return g.N, g.P, g.L, g.C, g.E3

    def _beside_g(self, which, tensor):
        """x or w as a tensor of one channel."""
        s, of = self._of, self.geometry.of_channels
        ordered = tensor.detach().permute(*range(4), *(4 + axis for axis in s.orders[which]))
        last = ordered.reshape(s.layouts[which]).permute(CHANNELS_LAST)
        return last.reshape(of.input_shape if which == "x" else of.kernel_shape)

    def _in_order(self, which, gradient):
        """The gradient of such a tensor as that of x or w."""
        N, C, H, W, *capsule = layout = self._of.layouts[which]
        found = self.new_result(which)
        found.view(layout).copy_(gradient.view(N, H, W, C, *capsule).permute(CHANNELS_FIRST))
        return self.deliver(which, found)
