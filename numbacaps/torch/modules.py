"""Layers of capsules, named and shaped like those of ``torch.nn``."""

import math

import torch
from torch import nn

from numbacaps.fused.precision import PRECISIONS
from numbacaps.product import parse_product
from numbacaps.torch import functional, kernels, losses
from numbacaps.torch.closed import check_tensors, is_number
from numbacaps.torch.functional import pair


class _CapsuleLayer(nn.Module):
    """What all layers have in common: the capsules' product, the kernel, the bias.

    With ``layer.keep_packed = True`` CUDA devices pack the kernel once in ``eval()``, where it wants no gradient, until it changes
    (:mod:`numbacaps.torch.packings`). ``train()`` and ``eval()`` give the copy back: call one of them behind what PyTorch does not
    count as a change, as ``weight.data.copy_(...)``. Because such changes would go unnoticed, it has to be asked for.
    """

    keep_packed = False

    def __init__(self, in_capsule, out_capsule, product, precision):
        super().__init__()
        self.in_capsule = check_capsule("in_capsule", in_capsule)
        self.out_capsule = check_capsule("out_capsule", out_capsule)
        if precision not in PRECISIONS:
            raise ValueError(f"precision is {precision!r}; it takes one of {list(PRECISIONS)}")
        self.product, self.precision = product, precision

    def _make_parameters(self, bias_shape, device, dtype):
        """The kernel, and a bias where there is a shape of it; both set."""
        made = {"device": device, "dtype": dtype}
        self.weight = nn.Parameter(torch.empty(self._weight_shape(), **made))
        bias = None if bias_shape is None else nn.Parameter(torch.empty(bias_shape, **made))
        self.register_parameter("bias", bias)
        self.reset_parameters()

    def reset_parameters(self):
        """He's initialisation: a variance of 2 by the products that make an element; the bias is 0."""
        nn.init.normal_(self.weight, std=math.sqrt(2 / self._fan_in()))
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def extra_repr(self):
        """The sizes, and the options that are not the defaults, as in ``torch.nn``."""
        text = f"{self._sizes()}, in_capsule={self.in_capsule}, out_capsule={self.out_capsule}"
        for name, value in self._usual().items():
            if getattr(self, name) != value:
                text += f", {name}={getattr(self, name)!r}"
        text += ", bias=True" if self.bias is not None else ""
        return text + (", keep_packed=True" if self.keep_packed else "")

    def _usual(self):
        """The options and their defaults."""
        return {"product": "ab,bc->ac", "precision": "auto"}

    def train(self, mode=True):
        """Set the mode, and give back the packed kernel."""
        w = self._parameters.get("weight")  # a parametrized one is made anew for every call
        if w is not None:
            kernels.forget_packed(w)
        return super().train(mode)

    def _options(self):
        return {"product": self.product, "precision": self.precision}

    def _sum_options(self):
        """The options of a pass that reads a packed kernel."""
        return {**self._options(), "keep_packed": self._keeps_packed()}

    def _keeps_packed(self):
        """Whether the kernel stays as it is and is read as it lies: autocast and parametrizations make one anew for every
        call, and compiled graphs have a pool of memory in which nothing may stay.
        """
        w = self._parameters.get("weight")
        if not self.keep_packed or self.training or torch.compiler.is_compiling() or w is None:
            return False
        wants_gradient = torch.is_grad_enabled() and w.requires_grad
        return not (wants_gradient or torch.is_autocast_enabled(w.device.type))

    def _biased(self, y):
        if self.bias is None:
            return y
        return y + self.bias.to(y.dtype)  # which autocast may have chosen


def check_capsule(name, shape):
    """A capsule's shape as a tuple; TypeError or ValueError where it is none."""
    if not isinstance(shape, (tuple, list)):
        raise TypeError(
            f"{name} is {shape!r}; it takes a size for each axis, as (4, 4) for 4 rows and 4 columns"
        )
    if any(not isinstance(size, int) or size < 1 for size in shape):
        raise ValueError(f"{name} is {shape!r}; it takes ints of 1 or more")
    return tuple(shape)


def check_count(name, count, least=1):
    """Refuse what is no number of capsules, or of axes."""
    if isinstance(count, bool) or not isinstance(count, int) or count < least:
        raise ValueError(f"{name} is {count!r}; it takes an int of {least} or more")


def check_shape(name, tensor, wanted):
    """Refuse a tensor whose axes are not those wanted; an axis that has a name in place of a size takes any."""
    if not isinstance(tensor, torch.Tensor):
        check_tensors(**{name: tensor})
        return  # a proxy, which has no shape yet
    has = tensor.shape
    fits = len(has) == len(wanted)
    for size, takes in zip(has, wanted):
        fits = fits and (size == takes or isinstance(takes, str))
    if not fits:
        sizes = ", ".join(map(str, wanted))
        raise ValueError(f"{name} has shape {tuple(has)}; it takes ({sizes})")


def _check_slope(slope):
    if not is_number(slope) or getattr(slope, "ndim", 0):
        raise ValueError(f"slope is {slope!r}; it takes a number")


class _CapsuleConv(_CapsuleLayer):
    """What the convolution and its transpose have in common: a window."""

    def __init__(
        self,
        in_channels,
        out_channels,
        kernel_size,
        *unnamed,
        in_capsule=(4, 4),
        out_capsule=(4, 4),
        stride=1,
        padding=0,
        dilation=1,
        product="ab,bc->ac",
        precision="auto",
        bias=False,
        device=None,
        dtype=None,
        **unknown,
    ):
        for name in unknown:
            raise TypeError(f"{type(self).__name__} takes no {name!r}")
        if unnamed:  # torch.nn.Conv2d takes a stride in the place of in_capsule
            raise TypeError(
                f"{unnamed[0]!r} follows kernel_size without a name; {type(self).__name__} takes in_capsule, stride "
                "and all other options by name, as in_capsule=(4, 4), stride=2"
            )
        super().__init__(in_capsule, out_capsule, product, precision)
        check_count("in_channels", in_channels)
        check_count("out_channels", out_channels)
        self.in_channels, self.out_channels = in_channels, out_channels
        self.kernel_size = pair("kernel_size", kernel_size, 1)
        self.stride, self.padding = pair("stride", stride, 1), pair("padding", padding, 0)
        self.dilation = pair("dilation", dilation, 1)
        shape = (out_channels, 1, 1, *self.out_capsule) if bias else None
        self._make_parameters(shape, device, dtype)

    def _takes(self):
        """The shape of what the layer reads."""
        return "N", self.in_channels, "H", "W", *self.in_capsule

    def _sizes(self):
        return f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}"

    def _usual(self):
        return {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), **super()._usual()}


def _kernel_capsule(product, x_capsule, y_capsule, names=("in_capsule", "out_capsule")):
    """The shape of a kernel's capsules, from those of the input and the output, which have these names in errors."""
    parsed = parse_product(product)
    of_x, of_y = names
    for name, axes, shape in ((of_x, parsed.x, x_capsule), (of_y, parsed.y, y_capsule)):
        if len(axes) != len(shape):
            raise ValueError(
                f"{name} is {shape}; product={product!r} takes {len(axes)} axes, {axes!r}"
            )
    sizes = dict(zip(parsed.x, x_capsule))
    for axis, size in zip(parsed.y, y_capsule):
        if sizes.setdefault(axis, size) != size:
            raise ValueError(
                f"{of_y} has size {size} along axis {axis!r} of product={product!r}; "
                f"{of_x} has {sizes[axis]} there, and the two must be equal"
            )
    return tuple(sizes[axis] for axis in parsed.w), math.prod(sizes[axis] for axis in parsed.d2)


class CapsuleConv2d(_CapsuleConv):
    """A capsule convolution over an image of capsules.

    Parameters
    ----------
    in_channels, out_channels : int
        Capsules at a position.
    kernel_size : int or pair of int
        What follows is given by name.
    in_capsule, out_capsule : tuple of int
        Shapes of the capsules; (4, 4) are the poses of Hinton et al. 2018.
    stride, padding, dilation : int or pair of int
    product : str
        What two capsules make (:func:`numbacaps.capsule_conv2d`).
    precision : str
        How float32 is multiplied on CUDA devices.
    bias : bool
        An element added to every element of an output capsule.
    device, dtype : optional

    Attributes
    ----------
    weight : Parameter (out_channels, in_channels, KH, KW, *T2)
    bias : Parameter (out_channels, 1, 1, *out_capsule) or None

    Notes
    -----
    ``forward`` takes (N, in_channels, H, W, *in_capsule) and returns (N, out_channels, OH, OW, *out_capsule). It and
    :meth:`votes` raise TypeError where x is no tensor, and ValueError where it has other axes.
    """

    def _weight_shape(self):
        capsule, _ = _kernel_capsule(self.product, self.in_capsule, self.out_capsule)
        return self.out_channels, self.in_channels, *self.kernel_size, *capsule

    def _fan_in(self):
        _, D2 = _kernel_capsule(self.product, self.in_capsule, self.out_capsule)
        return self.in_channels * math.prod(self.kernel_size) * D2

    def forward(self, x):
        """The convolution, and the bias."""
        check_shape("x", x, self._takes())
        how = self.stride, self.padding, self.dilation
        y = functional.capsule_conv2d(x, self.weight, *how, **self._sum_options())
        return self._biased(y)

    def votes(self, x, sum_window=False):
        """The votes, without the bias, for routing (:func:`numbacaps.torch.functional.capsule_votes`).

        ValueError where the layer's precision is not one that votes have, "auto" or "ieee".
        """
        check_shape("x", x, self._takes())
        how = self.stride, self.padding, self.dilation
        options = {**self._options(), "sum_window": sum_window}
        return functional.capsule_votes(x, self._weight_of(x), *how, **options)

    def _weight_of(self, x):
        """The kernel for the channels of x."""
        return self.weight


class CapsuleConvTranspose2d(_CapsuleConv):
    """The transpose of a capsule convolution, for decoders.

    Parameters are those of :class:`CapsuleConv2d`, and ``output_padding``, an int or pair: rows and columns more of the
    result, where the stride leaves several sizes possible. ``product`` is that of the convolution that it
    transposes, so its kernel takes ``out_capsule`` to ``in_capsule``.
    """

    def __init__(self, *arguments, output_padding=0, device=None, dtype=None, **options):
        super().__init__(*arguments, device=device, dtype=dtype, **options)
        self.output_padding = pair("output_padding", output_padding, 0)
        for name, more, step in zip(("rows", "columns"), self.output_padding, self.stride):
            if more >= step:
                raise ValueError(
                    f"output_padding is {more} {name}; it takes less than the stride, {step}"
                )

    def _weight_shape(self):
        names = "out_capsule", "in_capsule"
        capsule, _ = _kernel_capsule(self.product, self.out_capsule, self.in_capsule, names)
        return self.in_channels, self.out_channels, *self.kernel_size, *capsule

    def _fan_in(self):
        parsed = parse_product(self.product)
        sizes = dict(zip(parsed.y, self.in_capsule))
        D3 = math.prod(sizes[axis] for axis in parsed.d3)
        windows = math.prod(self.kernel_size) / math.prod(self.stride)
        return max(1, self.in_channels * windows * D3)

    def forward(self, y):
        """The transposed convolution, and the bias."""
        check_shape("y", y, self._takes())
        sides = zip(
            y.shape[2:4],
            self.kernel_size,
            self.stride,
            self.padding,
            self.dilation,
            self.output_padding,
        )
        size = [
            (count - 1) * stride - 2 * padding + dilation * (window - 1) + 1 + more
            for count, window, stride, padding, dilation, more in sides
        ]
        shape = (y.shape[0], self.out_channels, *size, *self.out_capsule)
        how = self.stride, self.padding, self.dilation
        options = self._sum_options()
        x = functional.capsule_conv_transpose2d(y, self.weight, shape, *how, **options)
        return self._biased(x)

    def extra_repr(self):
        text = super().extra_repr()
        return (
            text
            if self.output_padding == (0, 0)
            else f"{text}, output_padding={self.output_padding}"
        )


class CapsuleLinear(_CapsuleLayer):
    """A weight for every child and parent, as in DigitCaps (Sabour et al. 2017): the window is the whole grid.

    Parameters
    ----------
    in_channels : int or tuple of int
        Children; of a grid its axes, as (C, H, W).
    out_channels : int
        Parents.
    in_capsule, out_capsule : tuple of int
        Shapes of the capsules.
    product, precision
        As for :class:`CapsuleConv2d`.
    bias : bool
        An element added to every element of a parent.
    device, dtype : optional

    Attributes
    ----------
    weight : Parameter (out_channels, children, *T2)
        Children in the order of the grid's axes.
    bias : Parameter (out_channels, *out_capsule) or None

    Notes
    -----
    ``forward`` takes (N, *in_channels, *in_capsule) and returns the sums, (N, out_channels, *out_capsule);
    :meth:`votes` returns what routing weighs.
    """

    def __init__(
        self,
        in_channels,
        out_channels,
        in_capsule=(4, 4),
        out_capsule=(4, 4),
        product="ab,bc->ac",
        precision="auto",
        bias=False,
        device=None,
        dtype=None,
    ):
        super().__init__(in_capsule, out_capsule, product, precision)
        grid = tuple(in_channels) if isinstance(in_channels, (tuple, list)) else (in_channels,)
        if not grid:
            raise ValueError(f"in_channels is {in_channels!r}; it takes an axis or more")
        for count in grid:
            check_count("in_channels", count)
        check_count("out_channels", out_channels)
        self.in_channels, self.out_channels = grid, out_channels
        shape = (out_channels, *self.out_capsule) if bias else None
        self._make_parameters(shape, device, dtype)

    def _weight_shape(self):
        capsule, _ = _kernel_capsule(self.product, self.in_capsule, self.out_capsule)
        return self.out_channels, math.prod(self.in_channels), *capsule

    def _fan_in(self):
        _, D2 = _kernel_capsule(self.product, self.in_capsule, self.out_capsule)
        return math.prod(self.in_channels) * D2

    def _sizes(self):
        grid = self.in_channels[0] if len(self.in_channels) == 1 else self.in_channels
        return f"{grid}, {self.out_channels}"

    def _children(self, x):
        """(N, children, *T1)"""
        check_shape("x", x, ("N", *self.in_channels, *self.in_capsule))
        return x.flatten(1, len(self.in_channels))

    def forward(self, x):
        """The sum of the votes, and the bias."""
        y = functional.capsule_linear(self._children(x), self.weight, **self._sum_options())
        return self._biased(y)

    def votes(self, x):
        """The votes (N, out_channels, children, *out_capsule), without the bias; ValueError as of a convolution's."""
        x = self._children(x)
        return functional.capsule_linear_votes(x, self.weight, **self._options())


class Squash(nn.Module):
    """:func:`numbacaps.torch.functional.squash` as a layer; ``dim`` are the capsule's axes: (-2, -1) of matrices."""

    def __init__(self, dim=-1):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        """The squashed capsules."""
        return functional.squash(x, self.dim)

    def extra_repr(self):
        return f"dim={self.dim}"


class ExponentialSquash(nn.Module):
    """:func:`numbacaps.torch.functional.exponential_squash` as a layer: LeakyReLU and squash of the published network."""

    def __init__(self, group, slope=1.0):
        super().__init__()
        check_count("group", group)
        _check_slope(slope)
        self.group, self.slope = group, slope

    def forward(self, x):
        """The squashed capsules."""
        return functional.exponential_squash(x, self.group, self.slope)

    def extra_repr(self):
        return f"{self.group}" + (f", slope={self.slope}" if self.slope != 1 else "")


class MarginLoss(nn.Module):
    """:func:`numbacaps.torch.losses.margin_loss` as a criterion."""

    def __init__(self, m_plus=0.9, m_minus=0.1, down_weight=0.5, reduction="mean"):
        super().__init__()
        losses.check_options(reduction, m_plus=m_plus, m_minus=m_minus, down_weight=down_weight)
        self.m_plus, self.m_minus = m_plus, m_minus
        self.down_weight, self.reduction = down_weight, reduction

    def extra_repr(self):
        names = "m_plus", "m_minus", "down_weight", "reduction"
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in names)

    def forward(self, lengths, labels):
        """The loss."""
        margins = self.m_plus, self.m_minus, self.down_weight
        return losses.margin_loss(lengths, labels, *margins, self.reduction)


class SpreadLoss(nn.Module):
    """:func:`numbacaps.torch.losses.spread_loss` as a criterion; set ``margin`` as training goes on."""

    def __init__(self, margin=0.2, reduction="mean"):
        super().__init__()
        losses.check_options(reduction, margin=margin)
        self.margin, self.reduction = margin, reduction

    def extra_repr(self):
        return f"margin={self.margin}, reduction={self.reduction!r}"

    def forward(self, activations, labels):
        """The loss."""
        return losses.spread_loss(activations, labels, self.margin, self.reduction)
