"""The network's two passes over a batch: what they keep on the device, and what they launch."""

from dataclasses import replace
from functools import partial
from math import prod

from numbacaps.device.target import cuda
from numbacaps.fused.activation import Activation
from numbacaps.nn.convolution import Convolution
from numbacaps.nn.kernels.capsule_length import capsule_length, capsule_length_backward
from numbacaps.nn.kernels.leaky_relu import leaky_relu, leaky_relu_backward
from numbacaps.nn.kernels.margin_loss import margin_loss, margin_loss_backward
from numbacaps.nn.kernels.squash import squash, squash_backward
from numbacaps.nn.protocol import differentiate


class ForwardPass:
    """From a batch to the lengths of its class capsules, layer by layer: a :class:`numbacaps.nn.protocol.Forward`.

    Parameters
    ----------
    layers : sequence of PlacedLayer
    N : int
        Images.
    dtype : numpy.dtype
    for_gradients : bool
        What a backward pass reads is written: every layer's ``sums``.
    apart : bool
        Every activation is a kernel of its own, also where a convolution's could compute it.
    joined : bool
        Where the kernel of an input's gradient can compute that of the activation before it, it does. Of the
        published network's gradients that takes longer at ``tf32``, and less at ``ieee``.
    why : str
        Why it is not one kernel that computes all layers; for :meth:`explain`.

    Attributes
    ----------
    convolutions : list of Convolution
    sums : list of device array (N, P*OH*OW*E3)
        What each layer's convolution makes; None where nobody reads it.
    outputs : list of device array, likewise
        The same after LeakyReLU and squash.
    lengths : device array (N, classes)
    """

    def __init__(self, layers, N, dtype, for_gradients=True, apart=False, joined=False, why=""):
        self.layers, self._why = [placed.layer for placed in layers], why
        self.convolutions, before = [], None
        for placed in layers:
            layer, activation, gradient = placed.layer, None, None
            if layer.squash is not None and not apart:
                activation = Activation(float(layer.slope), int(layer.squash), for_gradients)
                gradient = replace(activation, keeps_sums=True, backward=True) if joined else None
            how = replace(placed.geometry, N=N), dtype, layer.algorithm, layer.precision
            behind = {"activation": activation, "before": before}
            self.convolutions.append(Convolution(*how, **behind))
            self.convolutions[-1].compile("forward")
            before = gradient
        shapes = [(N, prod(placed.output_shape)) for placed in layers]
        self.lengths = cuda.device_array((N, layers[-1].layer.channels), dtype)
        self.sums = [
            cuda.device_array(shape, dtype) if for_gradients or not convolution.activates else None
            for shape, convolution in zip(shapes, self.convolutions)
        ]
        self.outputs = [cuda.device_array(shape, dtype) for shape in shapes]

    @property
    def capturable(self) -> bool:
        """The launches can be captured into a CUDA graph."""
        return all(convolution.capturable for convolution in self.convolutions)

    def pack(self, state, beside):
        """Queue what :meth:`launch` does with the kernels alone, beside the stream; once until they change.

        Parameters
        ----------
        state : numbacaps.nn.state.State
            Whose kernels are read.
        beside : numbacaps.device.streams.Beside
        """
        for convolution, kernel in zip(self.convolutions, state.kernels):
            if convolution.packs_forward:
                beside.run(partial(convolution.pack_forward, kernel))

    def launch(self, x, state, beside):
        """Queue the pass, behind what was packed.

        Parameters
        ----------
        x : device array (N, C, H, W, *T1)
        state, beside
            As :meth:`pack` takes them.
        """
        stream = beside.stream
        parts = zip(self.layers, self.convolutions, state.kernels, self.sums, self.outputs)
        for layer, convolution, kernel, total, output in parts:
            if convolution.packs_forward:
                beside.join()
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

    def explain(self) -> str:
        """A line for each layer: what computes its convolution, and where its activation is; then ``why``."""
        lines = enumerate(convolution.explain_forward() for convolution in self.convolutions)
        lines = [f"layers[{number}]: {line}" for number, line in lines]
        return "\n".join([*lines, *([f"layer by layer: {self._why}"] if self._why else [])])

    def __repr__(self):
        return f"<ForwardPass of {len(self.lengths)} images, {len(self.layers)} layers>"


class BackwardPass:
    """From the lengths of class capsules to the gradient of every kernel: a :class:`numbacaps.nn.protocol.Backward`.

    Nobody waits for the loss and for a kernel's gradient but the end of the pass, so they are computed beside
    the gradients that pass from layer to layer. One array, as large as the largest layer's output,
    holds those that reach a layer's output; those that reach the sums before its activation have their own.

    Parameters
    ----------
    forward : ForwardPass
        Whose results it reads; one that keeps its sums.
    """

    def __init__(self, forward):
        self.forward = forward
        largest = max(output.size for output in forward.outputs)
        dtype = forward.lengths.dtype
        shapes = [output.shape for output in forward.outputs]
        d_outputs = cuda.device_array(largest, dtype)
        self._d_outputs = [d_outputs[: prod(shape)].reshape(shape) for shape in shapes]
        self._d_sums = [cuda.device_array(shape, dtype) for shape in shapes]
        self._d_lengths = cuda.device_array(forward.lengths.shape, dtype)
        for k, convolution in enumerate(forward.convolutions):
            for wanted in ("input", "kernel") if k else ("kernel",):
                convolution.compile(wanted)

    def differentiate(self, x, labels, state, beside):
        """Queue both passes of a batch, and the packing of the kernels.

        Parameters
        ----------
        x, labels, state, beside
            As :meth:`launch` takes them.
        """
        differentiate(self, x, labels, state, beside)

    def pack(self, state, beside):
        """Queue what :meth:`launch` does with the kernels alone, beside what is queued since the mark."""
        for convolution, kernel in zip(self.forward.convolutions[1:], state.kernels[1:]):
            if convolution.packs_backward:
                beside.run_marked(partial(convolution.pack_backward, kernel))

    def launch(self, x, labels, state, beside):
        """Queue the loss and the pass, behind what was packed beside it.

        Parameters
        ----------
        x : device array (N, C, H, W, *T1)
            As the forward pass read it.
        labels : device array (N,), int64
        state : numbacaps.nn.state.State
            Its gradients and the step's loss and hits are written.
        beside : numbacaps.device.streams.Beside
        """
        forward, d_outputs, d_sums = self.forward, self._d_outputs, self._d_sums
        lengths, d_lengths, stream = forward.lengths, self._d_lengths, beside.stream
        beside.join()
        results = state.step, state.losses, state.hits
        beside.run(lambda other: margin_loss(lengths, labels, *results, other))
        margin_loss_backward(lengths, labels, d_lengths, stream)
        capsule_length_backward(forward.outputs[-1], lengths, d_lengths, d_outputs[-1], stream)
        self._differentiate_activation(len(forward.layers) - 1, stream)
        for k in reversed(range(len(forward.layers))):
            convolution, before = forward.convolutions[k], k - 1
            operands = forward.outputs[before] if k else x, d_sums[k], state.d_kernels[k]
            beside.run(partial(convolution.backward_kernel, *operands))
            if k and convolution.differentiates:
                operands = state.kernels[k], d_sums[k], forward.sums[before], d_sums[before]
                convolution.backward_differentiated(*operands, stream)
            elif k:
                convolution.backward_input(state.kernels[k], d_sums[k], d_outputs[before], stream)
                self._differentiate_activation(before, stream)
        beside.join()

    def explain(self) -> str:
        """A line: what computes the pass."""
        return "layer by layer, the gradients of kernels beside those of inputs"

    def __repr__(self):
        return f"<BackwardPass behind {self.forward!r}>"

    def _differentiate_activation(self, k, stream):
        """Queue what takes the gradient from a layer's output to its sums."""
        layer = self.forward.layers[k]
        arrays = self.forward.sums[k], self._d_outputs[k], self._d_sums[k]
        if layer.squash is None:
            leaky_relu_backward(*arrays, layer.slope, stream)
        else:
            squash_backward(*arrays, layer.squash, layer.slope, stream)
