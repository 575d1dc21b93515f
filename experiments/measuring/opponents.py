"""The same convolution through PyTorch (the extra ``torch``): what our algorithms are timed against.

Every opponent prepares its operands (not timed), runs one pass (timed), and delivers the result in
capsule layout (not timed, for the check).

======================  ============================================================================
torch_fold              one conv2d through the fold: batch N*D1, G*C*D2 channels in, G*P*D3 out.
                        Layout nchw or channels_last: operands already there, result left there;
                        capsule: from capsule layout to capsule layout, nchw in between
torch_fold_nhwc         the same from capsule layout to capsule layout, channels_last in between
torch_unfold_einsum     a view of the windows and one einsum
torch_extend_bmm        the paper's way: I' and K' laid out, one bmm, one sum
======================  ============================================================================
"""

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass

from experiments.measuring.problem import PASSES
from numbacaps.extras import require

PRECISIONS = ("ieee", "tf32", "float16")


def torch():
    """The module, or an error that names the extra."""
    return require("torch", "torch", "an opponent through PyTorch")


def torch_on_gpu():
    """The module, or an error that says what lacks."""
    if not torch().cuda.is_available():
        raise ImportError("the extra 'torch' is installed, but as a build without CUDA")
    return torch()


@contextmanager
def precision(word):
    """float32 arithmetic as IEEE 754 or through TF32, and cuDNN free to try its algorithms."""
    cudnn, matmul = torch().backends.cudnn, torch().backends.cuda.matmul
    before = cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32
    cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32 = True, word == "tf32", word == "tf32"
    try:
        yield
    finally:
        cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32 = before


@dataclass(frozen=True)
class Opponent:
    """One way through PyTorch. The functions take the geometry first.

    Attributes
    ----------
    prepare : callable
        ``prepare(g, x, w, dy)``: operands as the passes take them, from capsule layout.
    forward, backward_input, backward_kernel : callable
        ``(g, x, w, dy)`` of prepared operands; each uses the two that it needs.
    deliver : dict of str to callable
        For each pass ``deliver(g, result)``: the result in capsule layout.
    """

    algorithm: str
    layout: str
    prepare: Callable
    forward: Callable
    backward_input: Callable
    backward_kernel: Callable
    deliver: dict


def memory_format_of(layout):
    """PyTorch's word for a layout."""
    return torch().channels_last if layout == "channels_last" else torch().contiguous_format


# An input or an output of ``shape`` (n, c, h, w, g, a, b) folds to (n*a, g*c*b, h, w).


def _folded_shape(shape):
    N, C, H, W, G, A, B = shape
    return N * A, G * C * B, H, W


def fold(array, shape, layout):
    """An input or an output as conv2d takes it: a view, if it lies so already."""
    N, C, H, W, G, A, B = shape
    if layout == "nchw":
        return array.permute(0, 5, 4, 1, 6, 2, 3).reshape(_folded_shape(shape))
    folded = array.permute(0, 5, 2, 3, 4, 1, 6).reshape(N * A, H, W, G * C * B)
    return folded.permute(0, 3, 1, 2)


def unfold(folded, shape):
    """The inverse, as a view."""
    N, C, H, W, G, A, B = shape
    return folded.view(N, A, G, C, B, H, W).permute(0, 3, 5, 6, 2, 1, 4)


# A kernel of ``shape`` (p, c, kh, kw, g, b, d) folds to (g*p*d, c*b, kh, kw).


def _folded_kernel_shape(shape):
    P, C, KH, KW, G, B, D = shape
    return G * P * D, C * B, KH, KW


def fold_kernel(w, shape, layout):
    """A kernel as conv2d takes it."""
    P, C, KH, KW, G, B, D = shape
    if layout == "nchw":
        return w.permute(4, 0, 6, 1, 5, 2, 3).reshape(_folded_kernel_shape(shape))
    folded = w.permute(4, 0, 6, 2, 3, 1, 5).reshape(G * P * D, KH, KW, C * B)
    return folded.permute(0, 3, 1, 2)


def unfold_kernel(folded, shape):
    """The inverse, as a view."""
    P, C, KH, KW, G, B, D = shape
    return folded.view(G, P, D, C, B, KH, KW).permute(1, 3, 5, 6, 0, 4, 2)


def _conv(g, x, w):
    return torch().nn.functional.conv2d(x, w, None, g.stride, g.padding, g.dilation, g.G)


def _conv_backward(g, x, w, dy, wanted):
    """One gradient of conv2d; of the operand whose gradient it is, only shape and strides count."""
    no_bias, not_transposed, no_output_padding = None, False, (0, 0)
    gradients = torch().ops.aten.convolution_backward(
        *(dy, x, w, no_bias, g.stride, g.padding, g.dilation),
        *(not_transposed, no_output_padding, g.G),
        (wanted == "input", wanted == "kernel", False),
    )
    return gradients[0] if wanted == "input" else gradients[1]


def _fold_in_place(layout):
    """conv2d on operands that lie folded before the clock starts."""

    def prepare(g, x, w, dy):
        folded = (
            fold(x, g.input_shape, layout),
            fold_kernel(w, g.kernel_shape, layout),
            fold(dy, g.output_shape, layout),
        )
        return tuple(array.contiguous(memory_format=memory_format_of(layout)) for array in folded)

    return Opponent(
        "torch_fold",
        layout,
        prepare,
        lambda g, x, w, dy: _conv(g, x, w),
        lambda g, x, w, dy: _conv_backward(g, x, w, dy, "input"),
        lambda g, x, w, dy: _conv_backward(g, x, w, dy, "kernel"),
        {
            "forward": lambda g, y: unfold(y, g.output_shape),
            "backward_input": lambda g, dx: unfold(dx, g.input_shape),
            "backward_kernel": lambda g, dw: unfold_kernel(dw, g.kernel_shape),
        },
    )


def _as_they_are(g, *operands):
    """Operands in capsule layout are prepared already."""
    return operands


_DELIVERED = dict.fromkeys(PASSES, lambda g, result: result)


def _fold_and_back(algorithm, layout):
    """conv2d in ``layout``, from capsule layout to capsule layout."""

    def unfilled(array, shape):
        how = {"dtype": array.dtype, "device": array.device}
        return torch().empty(shape, **how, memory_format=memory_format_of(layout))

    def forward(g, x, w, dy):
        y = _conv(g, fold(x, g.input_shape, layout), fold_kernel(w, g.kernel_shape, layout))
        return unfold(y, g.output_shape).contiguous()

    def backward_input(g, x, w, dy):
        x = unfilled(dy, _folded_shape(g.input_shape))
        w, dy = fold_kernel(w, g.kernel_shape, layout), fold(dy, g.output_shape, layout)
        return unfold(_conv_backward(g, x, w, dy, "input"), g.input_shape).contiguous()

    def backward_kernel(g, x, w, dy):
        w = unfilled(dy, _folded_kernel_shape(g.kernel_shape))
        x, dy = fold(x, g.input_shape, layout), fold(dy, g.output_shape, layout)
        return unfold_kernel(_conv_backward(g, x, w, dy, "kernel"), g.kernel_shape).contiguous()

    return Opponent(
        algorithm, "capsule", _as_they_are, forward, backward_input, backward_kernel, _DELIVERED
    )


# In einsum's letters: n image, c channel, p output channel, h w position, i j window position,
# g group, a b d the sizes D1, D2, D3.


def _windows(g, x):
    """View (n, c, h, w, g, a, b, i, j) of every position's window of x, padded."""
    (SH, SW), (PH, PW), (DH, DW) = g.stride, g.padding, g.dilation
    x = torch().nn.functional.pad(x, (0, 0, 0, 0, 0, 0, PW, PW, PH, PH)) if PH or PW else x
    n, c, h, w, *capsule = x.stride()
    return x.as_strided(
        (g.N, g.C, g.OH, g.OW, g.G, g.D1, g.D2, g.KH, g.KW),
        (n, c, h * SH, w * SW, *capsule, h * DH, w * DW),
    )


def _add_windows(g, columns):
    """(n, c, g, a, b, i, j, h, w) -> dx: where windows overlap, they add up."""
    columns = columns.reshape(g.N, g.C * g.E1 * g.KH * g.KW, g.L)
    dx = torch().nn.functional.fold(
        columns, (g.H, g.W), (g.KH, g.KW), g.dilation, g.padding, g.stride
    )
    dx = dx.view(g.N, g.C, g.G, g.D1, g.D2, g.H, g.W)
    return dx.permute(0, 1, 5, 6, 2, 3, 4).contiguous()


def _einsum_forward(g, x, w, dy):
    return torch().einsum("nchwgabij,pcijgbd->nphwgad", _windows(g, x), w).contiguous()


def _einsum_backward_input(g, x, w, dy):
    return _add_windows(g, torch().einsum("nphwgad,pcijgbd->ncgabijhw", dy, w))


def _einsum_backward_kernel(g, x, w, dy):
    return torch().einsum("nchwgabij,nphwgad->pcijgbd", _windows(g, x), dy).contiguous()


def _extended_input(g, x):
    """I' as a batch of matrices: (n, p, h, w, c, i, j, g) of a x b."""
    columns = _windows(g, x).permute(0, 2, 3, 1, 7, 8, 4, 5, 6).unsqueeze(1)
    return columns.expand(-1, g.P, *[-1] * 8).reshape(-1, g.D1, g.D2)


def _extended_kernel(g, w):
    """K' likewise, of b x d."""
    extended = w.view(1, g.P, 1, 1, *w.shape[1:]).expand(g.N, g.P, g.OH, g.OW, *[-1] * 6)
    return extended.reshape(-1, g.D2, g.D3)


def _extended_output(g, dy):
    """dO' likewise, of a x d."""
    extended = dy.view(*dy.shape[:4], 1, *dy.shape[4:]).expand(*[-1] * 4, g.Q, *[-1] * 3)
    return extended.reshape(-1, g.D1, g.D3)


def _bmm_forward(g, x, w, dy):
    products = torch().bmm(_extended_input(g, x), _extended_kernel(g, w))
    return products.view(g.N, g.P, g.OH, g.OW, g.Q, g.G, g.D1, g.D3).sum(4)


def _bmm_backward_input(g, x, w, dy):
    products = torch().bmm(_extended_output(g, dy), _extended_kernel(g, w).transpose(1, 2))
    columns = products.view(g.N, g.P, g.L, g.C, g.KH, g.KW, g.G, g.D1, g.D2).sum(1)
    return _add_windows(g, columns.permute(0, 2, 5, 6, 7, 3, 4, 1))


def _bmm_backward_kernel(g, x, w, dy):
    products = torch().bmm(_extended_input(g, x).transpose(1, 2), _extended_output(g, dy))
    shape = (g.N, g.P, g.L, g.C, g.KH, g.KW, g.G, g.D2, g.D3)
    return products.view(shape).sum((0, 2))


OPPONENTS = (
    _fold_in_place("nchw"),
    _fold_in_place("channels_last"),
    _fold_and_back("torch_fold", "nchw"),
    _fold_and_back("torch_fold_nhwc", "channels_last"),
    Opponent(
        *("torch_unfold_einsum", "capsule", _as_they_are),
        *(_einsum_forward, _einsum_backward_input, _einsum_backward_kernel, _DELIVERED),
    ),
    Opponent(
        *("torch_extend_bmm", "capsule", _as_they_are),
        *(_bmm_forward, _bmm_backward_input, _bmm_backward_kernel, _DELIVERED),
    ),
)
NAMES = tuple(dict.fromkeys(opponent.algorithm for opponent in OPPONENTS))
# A whole network (:mod:`experiments.training.torch_network`): op by op, as a CUDA graph, compiled and as a graph.
NETWORKS = ("torch_net", "torch_net_graph", "torch_net_compile")
