"""Capsule convolutions for PyTorch: operators with gradients, the layers on them, routing, and losses.

:mod:`~numbacaps.torch.functional` holds the functions, :mod:`~numbacaps.torch.losses` the losses, :mod:`~numbacaps.torch.modules`,
:mod:`~numbacaps.torch.routing_layers` and :mod:`~numbacaps.torch.sequence` the layers, :mod:`~numbacaps.torch.layouts` the way from and to the layouts of other
code. On CUDA tensors they run numbacaps' kernels, on PyTorch's current stream; on CPU tensors one ``conv2d`` of
PyTorch, so that the same code runs anywhere. It takes the extra ``torch``.
"""

from numbacaps.extras import require

require("torch", "torch", "numbacaps.torch")

from numbacaps.torch import layouts  # noqa: E402  (what lacks is named first)
from numbacaps.torch.couplings import routing_couplings  # noqa: E402
from numbacaps.torch.functional import (  # noqa: E402
    capsule_conv2d,
    capsule_conv_transpose2d,
    capsule_linear,
    capsule_linear_votes,
    capsule_votes,
    exponential_squash,
    squash,
)
from numbacaps.torch.losses import margin_loss, spread_loss  # noqa: E402
from numbacaps.torch.modules import (  # noqa: E402
    CapsuleConv2d,
    CapsuleConvTranspose2d,
    CapsuleLinear,
    ExponentialSquash,
    MarginLoss,
    SpreadLoss,
    Squash,
)
from numbacaps.torch.routing import capsule_routing  # noqa: E402
from numbacaps.torch.routing_layers import (  # noqa: E402
    DynamicRouting,
    EMRouting,
    RoutedCapsuleConv2d,
    RoutedCapsuleLinear,
)
from numbacaps.torch.sequence import CapsuleSequential  # noqa: E402

__all__ = [
    "CapsuleConv2d",
    "CapsuleConvTranspose2d",
    "CapsuleLinear",
    "CapsuleSequential",
    "DynamicRouting",
    "EMRouting",
    "ExponentialSquash",
    "MarginLoss",
    "RoutedCapsuleConv2d",
    "RoutedCapsuleLinear",
    "SpreadLoss",
    "Squash",
    "capsule_conv2d",
    "capsule_conv_transpose2d",
    "capsule_linear",
    "capsule_linear_votes",
    "capsule_routing",
    "capsule_votes",
    "exponential_squash",
    "layouts",
    "margin_loss",
    "routing_couplings",
    "spread_loss",
    "squash",
]
