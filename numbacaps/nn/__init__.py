"""Capsule networks on the toolkit's convolutions: layers, the margin loss, Adam.

A kernel's module reads top to bottom: formula and thread mapping; the factories of its forward and
backward kernel; their launchers. :class:`CapsNet` puts them together.

:mod:`numbacaps.nn.protocol` says what every pass can do. :mod:`numbacaps.nn.passes` launches layer by layer. Of a
network that fits in a multiprocessor each pass is one kernel, a megakernel of all layers:
:mod:`numbacaps.nn.resident.passes` launches it, :mod:`numbacaps.nn.resident.layout` says what fits and where it lies,
:mod:`numbacaps.nn.resident.forward` and :mod:`numbacaps.nn.resident.backward` are the kernels.
"""

from numbacaps.nn.data import Data
from numbacaps.nn.kernels.adam import Adam, adam_step
from numbacaps.nn.kernels.capsule_length import capsule_length, capsule_length_backward
from numbacaps.nn.kernels.gather_rows import gather
from numbacaps.nn.kernels.he_normal import he_normal
from numbacaps.nn.kernels.leaky_relu import leaky_relu, leaky_relu_backward
from numbacaps.nn.kernels.margin_loss import margin_loss, margin_loss_backward
from numbacaps.nn.kernels.squash import squash, squash_backward
from numbacaps.nn.layer import Layer
from numbacaps.nn.network import CapsNet

__all__ = [
    "Adam",
    "CapsNet",
    "Data",
    "Layer",
    "adam_step",
    "capsule_length",
    "capsule_length_backward",
    "gather",
    "he_normal",
    "leaky_relu",
    "leaky_relu_backward",
    "margin_loss",
    "margin_loss_backward",
    "squash",
    "squash_backward",
]
