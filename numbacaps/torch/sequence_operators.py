"""A sequence of capsule convolutions, each with its activation, as an operator, and its gradients as another.

In eager PyTorch a small network waits for the host, which pays for every operator and for every node of autograd: here a pass
is one of each. Where :mod:`numbacaps.torch.sequence_resident` can, one kernel computes all layers. Others run layer by layer, by the kernels
and with the bits of the operators ``capsule_conv2d`` and ``capsule_squash``. Where gradients are differentiated in turn, or batched,
they are those operators', too.

``needs`` says whose gradients are wanted: a bool of x and of each kernel, or none at all.
"""

from functools import lru_cache
from itertools import islice
from typing import NamedTuple

import torch
from torch._C._functorch import is_functorch_wrapped_tensor, is_legacy_batchedtensor
from torch.nn.functional import leaky_relu

from numbacaps.torch import sequence_resident, squash_operators
from numbacaps.torch.closed import (
    as_forward,
    backend_below,
    backend_of,
    check,
    no_view,
    redispatched,
    refuse_traced_tangents,
)
from numbacaps.torch.operators import CONVOLUTION, shape_of_output
from numbacaps.torch.sequence_resident import sizes_of

_KEPT = 256  # sequences whose description is kept
LEAKY = "leaky"  # LeakyReLU alone, in the place of a formula of squash


class Joined(NamedTuple):
    """A convolution of a sequence, and what follows it.

    Attributes
    ----------
    how : tuple
        stride, padding, dilation, product, precision and keep_packed, which is False, as ``capsule_conv2d`` takes them.
    activation : tuple or None
        group, slope and formula, as ``capsule_squash`` takes them; 0, slope and :data:`LEAKY` of LeakyReLU; None for none.
    capsule, read_as : tuple of int
        Shape of the capsules that it makes, and that the next one reads them as.
    """

    how: tuple
    activation: tuple | None
    capsule: tuple
    read_as: tuple


_SCHEMA = "int[] numbers, float[] slopes, str[] words, bool[] needs"
_library = torch.library.Library("numbacaps", "FRAGMENT")
_library.define(f"capsule_sequence(Tensor x, Tensor[] weights, {_SCHEMA}) -> (Tensor, Tensor[])")
_library.define(
    "capsule_sequence_gradients(Tensor x, Tensor[] weights, Tensor[] kept, Tensor dy, "
    f"{_SCHEMA}) -> Tensor[]"
)
_sequence = torch.ops.numbacaps.capsule_sequence.default
_gradients = torch.ops.numbacaps.capsule_sequence_gradients.default
_convolution = torch.ops.numbacaps.capsule_conv2d.default
_squash = torch.ops.numbacaps.capsule_squash.default


def written(layers):
    """Layers as the operators take them: (numbers, slopes, words)."""
    numbers, slopes, words = [], [], []
    for (stride, padding, dilation, product, precision, _), activation, capsule, read_as in layers:
        group, slope, formula = activation or (0, 1.0, "")
        numbers += [*stride, *padding, *dilation, group]
        numbers += [len(capsule), *capsule, len(read_as), *read_as]
        slopes.append(slope)
        words += [product, precision, formula]
    return numbers, slopes, words


def _read(numbers, slopes, words):
    if len(words) != 3 * len(slopes):
        raise ValueError(f"words are {len(words)}; it takes 3 of each of {len(slopes)} layers")
    return _layers(tuple(numbers), tuple(slopes), tuple(words))


@lru_cache(_KEPT)
def _layers(numbers, slopes, words):
    """The inverse of :func:`written`."""
    numbers, words = iter(numbers), iter(words)

    def some(count):
        some = tuple(islice(numbers, count))
        if len(some) < count:
            raise ValueError("numbers end amid a layer; it takes those of all slopes' layers")
        return some

    found = []
    for slope, product, precision, formula in zip(slopes, words, words, words):
        moves, (group,) = (some(2), some(2), some(2)), some(1)
        activation = (group, slope, formula) if formula else None
        capsule, read_as = some(*some(1)), some(*some(1))
        found.append(Joined((*moves, product, precision, False), activation, capsule, read_as))
    return tuple(found)


def _steps(x, weights, layers, convolve, squash):
    """Of each layer (what its activation is of, its result as the next one reads it)."""
    for layer, w in zip(layers, weights):
        sums = x = convolve(x, w, *layer.how)
        if layer.activation:
            group, slope, formula = layer.activation
            x = leaky_relu(x, slope) if formula == LEAKY else squash(x, *layer.activation)
        if layer.read_as != layer.capsule:
            x = x.reshape(*x.shape[:4], *layer.read_as)
        yield sums, x


def _layer_by_layer(backend, x, weights, layers, needs):
    """(y, what the gradients read: every layer's input but the first one's, then what activations are of)."""
    run, (squash, _) = CONVOLUTION.on[backend].forward, squash_operators.ON[backend]
    steps = list(_steps(x, weights, layers, lambda x, w, *how: run(x, w, how), squash))
    *inputs, y = [read for _, read in steps]
    sums = [sums for (sums, _), layer in zip(steps, layers) if layer.activation]
    return no_view(y), (inputs + sums if needs else [])


def _gradients_layer_by_layer(backend, x, weights, kept, dy, layers, needs):
    """The gradients that are needed, of x and then of the kernels; no pass goes further down than they ask for."""
    _, input_gradient, kernel_gradient = CONVOLUTION.on[backend]
    inputs, sums = [x, *kept[: len(layers) - 1]], list(kept[len(layers) - 1 :])
    of_x, *of_kernels = needs
    lowest, found = 0 if of_x else of_kernels.index(True), []
    for number in reversed(range(lowest, len(layers))):
        layer, w, given = layers[number], weights[number], inputs[number]
        if layer.read_as != layer.capsule:
            dy = dy.reshape(*dy.shape[:4], *layer.capsule)
        if layer.activation:
            dy = _activation_gradient(backend, sums.pop(), dy, *layer.activation)
        if of_kernels[number]:
            found.append(kernel_gradient(given, dy, w.shape, layer.how))
        if number > lowest or of_x:
            dy = input_gradient(dy, w, given.shape, layer.how)
    found.reverse()
    return [dy, *found] if of_x else found


def _activation_gradient(backend, x, dy, group, slope, formula):
    if formula == LEAKY:
        return torch.ops.aten.leaky_relu_backward(dy, x, slope, False)
    return squash_operators.ON[backend][1](x, dy, group, slope, formula)


def _run(backend, x, weights, layers, needs):
    """(y, what the gradients read)."""
    _check(x, weights, layers, needs)
    _shapes(x.shape[1:], weights, layers)  # which refuses what does not fit
    one = _in_one_kernel(backend, x, weights, layers, needs)
    return one.run(x, weights) if one else _layer_by_layer(backend, x, weights, layers, needs)


def _check(x, weights, layers, needs):
    """Refuse operands that do not go together."""
    if not layers or len(weights) != len(layers):
        raise ValueError(
            f"weights are {len(weights)}; it takes one of each of {len(layers)} layers"
        )
    if len(needs) not in (0, 1 + len(weights)):
        raise ValueError(f"needs are {len(needs)}; it takes none, or x's and one of each weight")
    for w in weights:
        check(x=x, w=w)


def _run_back(backend, x, weights, kept, dy, layers, needs):
    """The gradients that are needed, of x and then of the kernels."""
    _check(x, weights, layers, needs)
    if not any(needs):
        return []
    shape = (*x.shape[:1], *_shapes(x.shape[1:], weights, layers)[-1][1][1:])
    if tuple(dy.shape) != shape:
        raise RuntimeError(f"dy has shape {tuple(dy.shape)}; it takes {shape}")
    check(x=x, dy=dy)
    one = _in_one_kernel(backend, x, weights, layers, needs)
    if one:
        every = one.run_back(x, weights, kept, dy)
        return [found for found, needed in zip(every, needs[1:]) if needed]
    return _gradients_layer_by_layer(backend, x, weights, kept, dy, layers, needs)


def _in_one_kernel(backend, x, weights, layers, needs):
    """What computes all layers in one kernel a pass, where that is so."""
    if backend != "CUDA" or any(needs[:1]):
        return None
    return sequence_resident.passes_of(x, weights, layers, bool(needs))


def _kept_shapes(N, shapes, layers):
    """Shapes of what :func:`_layer_by_layer` keeps."""
    inputs = [(N, *read[1:]) for _, read in shapes[:-1]]
    return inputs + [(N, *sums[1:]) for (sums, _), layer in zip(shapes, layers) if layer.activation]


def _shapes(image, weights, layers):
    """(shape of the sums, shape that results are read as) of each layer, for one image of a shape (C, H, W, *T1)."""
    return _shapes_of(sizes_of(image), tuple([sizes_of(w.shape) for w in weights]), layers)


@lru_cache(_KEPT)
def _shapes_of(image, w_shapes, layers):
    found, shape = [], (1, *image)
    for layer, w_shape in zip(layers, w_shapes, strict=True):
        sums = shape_of_output(shape, w_shape, *layer.how)
        shape = (*sums[:4], *layer.read_as)
        found.append((tuple(sums), shape))
    return found


def _on(backend):
    """A backend's operators."""

    def run(x, weights, *description):
        *described, needs = description
        return _run(backend, x, weights, _read(*described), needs)

    def run_back(x, weights, kept, dy, *description):
        *described, needs = description
        return _run_back(backend, x, weights, kept, dy, _read(*described), needs)

    return run, run_back


for _backend in ("CPU", "CUDA"):
    for _name, _rule in zip(("capsule_sequence", "capsule_sequence_gradients"), _on(_backend)):
        _library.impl(_name, _rule, _backend)


@torch.library.register_fake("numbacaps::capsule_sequence", lib=_library)
def _(x, weights, *description):
    *described, needs = description
    layers = _read(*described)
    _check(x, weights, layers, needs)
    shapes = _shapes(x.shape[1:], weights, layers)
    N, last = x.shape[0], shapes[-1][1]
    kept, one = [], None
    if needs:  # without gradients nothing is kept either way
        one = _in_one_kernel("CUDA" if x.is_cuda else "CPU", x, weights, layers, needs)
        kept = one.kept_shapes(N) if one else _kept_shapes(N, shapes, layers)
    return x.new_empty((N, *last[1:])), [x.new_empty(shape) for shape in kept]


@torch.library.register_fake("numbacaps::capsule_sequence_gradients", lib=_library)
def _(x, weights, kept, dy, *description):
    operands = zip((x, *weights), description[-1])
    return [one.new_empty(one.shape) for one, needed in operands if needed]


class _Differentiated(torch.autograd.Function):
    @staticmethod
    def forward(ctx, below, is_ordinary, layers, x, *weights):
        ctx.needs, ctx.is_ordinary = ctx.needs_input_grad[3:], is_ordinary
        y, kept = below(x, weights, layers, ctx.needs)
        ctx.save_for_backward(x, *weights, *kept)
        ctx.layers = layers
        return y

    @staticmethod
    @as_forward
    def backward(ctx, dy):
        layers, needs = ctx.layers, ctx.needs
        (x, *saved), count = ctx.saved_tensors, len(layers)
        weights, kept = saved[:count], saved[count:]
        backend = backend_of(dy) if ctx.is_ordinary else None
        batched = is_legacy_batchedtensor(dy) or is_functorch_wrapped_tensor(dy)
        if torch.is_grad_enabled() or batched:
            found = _by_operators(x, weights, layers, needs, dy)
        elif backend:
            found = _run_back(backend, x, weights, kept, dy, layers, needs)
        else:
            found = _gradients(x, weights, kept, dy, *written(layers), needs)
        found = iter(found)
        return None, None, None, *(next(found) if needed else None for needed in needs)


def _by_operators(x, weights, layers, needs, dy):
    """The gradients that are needed, by operators that can be differentiated in turn."""
    differentiated = torch.is_grad_enabled()
    with torch.enable_grad():
        # Views: a kernel that comes twice has a gradient in each place, and none through what it was made of.
        x, *weights = [one.view_as(one) for one in (x, *weights)]
        *_, (_, again) = _steps(x, weights, layers, _convolution, _squash)
    operands = [one for one, needed in zip((x, *weights), needs) if needed]
    return torch.autograd.grad(again, operands, dy, create_graph=differentiated)


_Differentiated.__name__ = _Differentiated.__qualname__ = "capsule_sequence"


def run(x, weights, layers):
    """y of ordinary tensors on one CUDA device, with gradients; the operators' dispatcher is left out."""

    def below(*arguments):
        return _run("CUDA", *arguments)

    return _differentiated(below, True, x, weights, layers)


def _differentiated(below, is_ordinary, x, weights, layers):
    needed = x.requires_grad or any(w.requires_grad for w in weights)
    if torch.is_grad_enabled() and needed:
        return _Differentiated.apply(below, is_ordinary, layers, x, *weights)
    return below(x, weights, layers, ())[0]


def _rule(keys, x, weights, *description):
    """The operator's rule for autograd."""
    refuse_traced_tangents(x=x, **{f"weights[{i}]": w for i, w in enumerate(weights)})
    *described, needs = description
    if needs:  # the caller differentiates
        return redispatched(_sequence, keys, x, weights, *description)

    backend = backend_below(keys)

    def below(x, weights, layers, needs):
        if backend:
            return _run(backend, x, weights, layers, needs)
        return redispatched(_sequence, keys, x, list(weights), *written(layers), needs)

    return _differentiated(below, backend is not None, x, weights, _read(*described)), []


_library.impl("capsule_sequence", _rule, "Autograd", with_keyset=True)


def traced(x, weights, layers):
    """y by the operator, which torch.compile and torch.export see as one."""
    return _sequence(x, weights, *written(layers), ())[0]
