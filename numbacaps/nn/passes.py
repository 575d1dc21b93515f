"""The network's two passes over a batch: what they keep on the device, and what they launch."""

from dataclasses import replace
from math import prod

from numbacaps.activation import Activation
from numbacaps.nn.capsule_length import capsule_length, capsule_length_backward
from numbacaps.nn.convolution import Convolution
from numbacaps.nn.leaky_relu import leaky_relu, leaky_relu_backward
from numbacaps.nn.margin_loss import margin_loss, margin_loss_backward
from numbacaps.nn.squash import squash, squash_backward
from numbacaps.target import cuda


class ForwardPass:
    """From a batch to the lengths of its class capsules.

    Parameters
    ----------
    layers : sequence of PlacedLayer
    N : int
        Images.
    dtype : numpy.dtype
    keeps_sums : bool
        Every layer's ``sums`` are written, which a backward pass reads.
    apart : bool
        Every activation is a kernel of its own, also where the convolution's could compute it.

    Attributes
    ----------
    convolutions : list of Convolution
    sums : list of device array (N, P*OH*OW*E3)
        What each layer's convolution makes; None where nobody reads it.
    outputs : list of device array, likewise
        The same after LeakyReLU and squash.
    lengths : device array (N, classes)
    """

    def __init__(self, layers, N, dtype, keeps_sums=True, apart=False):
        self.layers = [placed.layer for placed in layers]
        self.convolutions = []
        for placed in layers:
            layer, activation = placed.layer, None
            if layer.squash is not None and not apart:
                activation = Activation(float(layer.slope), int(layer.squash), keeps_sums)
            how = (layer.algorithm, layer.precision, dtype, activation)
            self.convolutions.append(Convolution(replace(placed.geometry, N=N), *how))
        shapes = [(N, prod(placed.output_shape)) for placed in layers]
        self.sums = [
            cuda.device_array(shape, dtype) if keeps_sums or not convolution.activates else None
            for shape, convolution in zip(shapes, self.convolutions)
        ]
        self.outputs = [cuda.device_array(shape, dtype) for shape in shapes]
        self.lengths = cuda.device_array((N, layers[-1].layer.channels), dtype)

    @property
    def capturable(self):
        """The launches can be captured into a CUDA graph."""
        return all(convolution.capturable for convolution in self.convolutions)

    def launch(self, x, kernels, stream):
        """Queue the pass.

        Parameters
        ----------
        x : device array (N, C, H, W, *T1)
        kernels : list of device array (P, C, KH, KW, G, D2, D3)
        stream : Numba stream
        """
        parts = zip(self.layers, self.convolutions, kernels, self.sums, self.outputs)
        for layer, convolution, kernel, total, output in parts:
            if convolution.activates:
                convolution.forward_activated(x, kernel, total, output, stream)
            else:
                convolution.forward(x, kernel, total, stream)
                if layer.squash is None:
                    leaky_relu(total, output, layer.slope, stream)
                else:
                    squash(total, output, layer.squash, layer.slope, stream)
            x = output
        capsule_length(x, self.lengths, stream)

    def explain(self):
        """A line for each layer: what computes its convolution, and whether its activation is in it."""
        lines = enumerate(convolution.explain() for convolution in self.convolutions)
        return "\n".join(f"layers[{number}]: {line}" for number, line in lines)


class BackwardPass:
    """From the lengths of class capsules to the gradient of every kernel.

    Two arrays, as large as the largest layer's output, hold the gradients that pass from layer to
    layer: one that reaches a layer's output, and one that reaches the sums before its activation.

    Parameters
    ----------
    forward : ForwardPass
        Whose results it reads; one that keeps its sums.
    """

    def __init__(self, forward):
        self.forward = forward
        largest = max(output.size for output in forward.outputs)
        dtype = forward.lengths.dtype
        d_outputs, d_sums = (cuda.device_array(largest, dtype) for _ in range(2))
        shapes = [output.shape for output in forward.outputs]
        self._d_outputs = [d_outputs[: prod(shape)].reshape(shape) for shape in shapes]
        self._d_sums = [d_sums[: prod(shape)].reshape(shape) for shape in shapes]
        self._d_lengths = cuda.device_array(forward.lengths.shape, dtype)

    def launch(self, x, labels, state, stream):
        """Queue the loss and the pass.

        Parameters
        ----------
        x : device array (N, C, H, W, *T1)
            As the forward pass read it.
        labels : device array (N,), int64
        state : numbacaps.nn.state.State
            Its gradients and the step's loss and hits are written.
        stream : Numba stream
        """
        forward, d_outputs, d_sums = self.forward, self._d_outputs, self._d_sums
        lengths, d_lengths = forward.lengths, self._d_lengths
        margin_loss(lengths, labels, state.step, state.losses, state.hits, stream)
        margin_loss_backward(lengths, labels, d_lengths, stream)
        capsule_length_backward(forward.outputs[-1], lengths, d_lengths, d_outputs[-1], stream)
        for k in reversed(range(len(forward.layers))):
            layer, total = forward.layers[k], forward.sums[k]
            if layer.squash is None:
                leaky_relu_backward(total, d_outputs[k], d_sums[k], layer.slope, stream)
            else:
                gradients = d_outputs[k], d_sums[k]
                squash_backward(total, *gradients, layer.squash, layer.slope, stream)
            read = forward.outputs[k - 1] if k else x
            written = d_outputs[k - 1] if k else None
            operands = read, state.kernels[k], d_sums[k], written, state.d_kernels[k]
            forward.convolutions[k].backward(*operands, stream)
