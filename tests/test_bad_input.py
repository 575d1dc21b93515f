"""Every refusal: which exception, that it names the argument, and that nothing ran before it."""

import numpy as np
import pytest

from numbacaps import arrays, capsule_conv2d, capsule_conv2d_backward, capsule_votes
from numbacaps.device.bfloat16 import dtype_of
from numbacaps.device.target import cuda

pytestmark = pytest.mark.tiers("simulator", "gpu")

_X, _W = (2, 3, 5, 6, 2, 4), (7, 3, 3, 3, 4, 2)
_Y = (2, 7, 3, 4, 2, 2)


def _array(shape, dtype=np.float32):
    return np.ones(shape, dtype)


@pytest.fixture(autouse=True)
def nothing_runs(monkeypatch):
    """A refusal comes before any allocation or launch."""

    def ran(*_, **__):
        raise AssertionError("memory was allocated before the arguments were checked")

    for name in ("device_array", "to_device"):
        monkeypatch.setattr(cuda, name, ran)


_SHAPES = {
    "x of the wrong rank": (_X[:5], _W, {}, r"x has shape \(2, 3, 5, 6, 2\); .* takes 6 axes"),
    "w of the wrong rank": (_X, (*_W, 1), {}, r"w has shape .* takes 6 axes, \(P, C, KH, KW, b, c"),
    "C differs": (_X, (7, 4, 3, 3, 4, 2), {}, r"w has 4 input channels \(C\); x has 3"),
    "contraction differs": (_X, (7, 3, 3, 3, 5, 2), {}, "w has size 5 along capsule axis 'b'"),
    "window too high": (_X, (7, 3, 6, 3, 4, 2), {}, "w spans 6 of the input's height; x has 5"),
    "window too wide": (_X, _W, {"dilation": (1, 3)}, "w spans 7 of the input's width; x has 6"),
    "no channels": ((2, 0, 5, 6, 2, 4), (7, 0, 3, 3, 4, 2), {}, r"x has shape .* takes 1 or more"),
    "no output channels": (_X, (0, *_W[1:]), {}, "w has shape .* takes 1 or more"),
    "no capsule": ((*_X[:5], 0), (*_W[:4], 0, 2), {}, "x has shape .* takes 1 or more"),
}


@pytest.mark.parametrize("function", [capsule_conv2d, capsule_votes])
@pytest.mark.parametrize("case", _SHAPES)
def test_shapes(case, function):
    x, w, how, message = _SHAPES[case]
    with pytest.raises(ValueError, match=message):
        function(_array(x), _array(w), **how)


_OPTIONS = {
    "stride 0": ({"stride": 0}, ValueError, "stride is 0; it takes 1 or more"),
    "stride of a pair": ({"stride": (1, 0)}, ValueError, r"stride is \(1, 0\); it takes 1"),
    "stride a float": ({"stride": 1.0}, TypeError, "stride is 1.0; it takes an int or a pair"),
    "stride a bool": ({"stride": True}, TypeError, "stride is True"),
    "stride a triple": ({"stride": (1, 1, 1)}, TypeError, "stride is .* pair of ints"),
    "dilation 0": ({"dilation": 0}, ValueError, "dilation is 0; it takes 1 or more"),
    "padding -1": ({"padding": -1}, ValueError, "padding is -1; it takes 0 or more"),
    "product no spec": ({"product": "matmul"}, ValueError, "product is 'matmul'; it takes a spec"),
    "product no string": ({"product": None}, TypeError, "product is None; it takes a string"),
    "product a list": ({"product": ["ab"]}, TypeError, r"product is \['ab'\]; it takes a string"),
    "algorithm no string": ({"algorithm": np.array(["auto"])}, TypeError, "algorithm is a ndarray"),
    "stride a 0-d float": ({"stride": np.array(1.5)}, TypeError, "stride is array"),
    "stream a string": ({"stream": "fast"}, TypeError, "stream is 'fast'; it takes a Numba"),
    "stream negative": ({"stream": -1}, TypeError, "stream is -1; it takes a Numba"),
    "product repeats": ({"product": "aa,ab->b"}, ValueError, "each axis once in 'aa'"),
    "product invents": ({"product": "ab,bc->ad"}, ValueError, "axis 'd' is in neither input"),
    "product drops": ({"product": "ab,bc->a"}, ValueError, "axis 'c' is in one input alone"),
    "precision a type": ({"precision": np.float32}, TypeError, "precision is <class 'numpy.fl"),
    "unknown algorithm": (
        {"algorithm": "best"},
        ValueError,
        "algorithm is 'best'; it takes one of",
    ),
    "limit a float": ({"workspace_limit": 1e6}, TypeError, "workspace_limit is 1000000.0"),
    "limit negative": ({"workspace_limit": -1}, ValueError, "workspace_limit is -1; it takes 0"),
}


@pytest.mark.parametrize("case", _OPTIONS)
def test_options(case):
    how, error, message = _OPTIONS[case]
    for function in (capsule_conv2d, capsule_votes):
        with pytest.raises(error, match=message):
            function(_array(_X), _array(_W), **how)
    with pytest.raises(error, match=message):
        capsule_conv2d_backward(_array(_X), _array(_W), _array(_Y), **how)


@pytest.mark.parametrize("limit", [True, 1.0])
def test_a_limit_that_is_equal_to_one_that_was_taken(limit):
    """Calls that are alike are checked once, and 1, 1.0 and True are equal."""
    capsule_conv2d(_array(_X), _array(_W), algorithm="numpy", workspace_limit=1)
    with pytest.raises(TypeError, match=f"workspace_limit is {limit}; it takes"):
        capsule_conv2d(_array(_X), _array(_W), algorithm="numpy", workspace_limit=limit)


def test_naive_has_no_votes():
    with pytest.raises(ValueError, match="algorithm is 'naive'; it takes .* for votes"):
        capsule_votes(_array(_X), _array(_W), algorithm="naive")


@pytest.mark.parametrize("dtype", ["int32", "complex64", "longdouble", "bool", "object"])
def test_dtypes(dtype):
    with pytest.raises(
        TypeError,
        match=f"x has dtype {np.dtype(dtype)}; it takes float16, bfloat16, float32 or float64",
    ):
        capsule_conv2d(_array(_X, dtype), _array(_W))
    with pytest.raises(TypeError, match=f"w has dtype {np.dtype(dtype)}"):
        capsule_conv2d(_array(_X), _array(_W, dtype))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_another_machines_byte_order(dtype):
    x = np.zeros(_X, dtype_of(dtype).newbyteorder())
    with pytest.raises(TypeError, match="x has dtype .*; it takes float16, bfloat16, float32"):
        capsule_conv2d(x, _array(_W))


def test_mixed_dtypes():
    with pytest.raises(TypeError, match="w has dtype float64; it takes float32, as x has"):
        capsule_conv2d(_array(_X), _array(_W, np.float64))
    with pytest.raises(TypeError, match="dy has dtype float64"):
        capsule_conv2d_backward(_array(_X), _array(_W), _array(_Y, np.float64))


def test_no_array():
    with pytest.raises(TypeError, match="x is a list; it takes a NumPy array, a Numba device"):
        capsule_conv2d([[1.0]], _array(_W))
    with pytest.raises(TypeError, match="out is a str"):
        capsule_conv2d(_array(_X), _array(_W), out="y")


def test_a_tensor_on_the_host():
    torch = pytest.importorskip("torch")
    for x in (torch.ones(_X), torch.nn.Parameter(torch.ones(_X))):
        with pytest.raises(TypeError, match="x is a PyTorch tensor on the CPU; give x.numpy()"):
            capsule_conv2d(x, _array(_W))


def test_masked_array():
    with pytest.raises(TypeError, match="x is a masked array; it takes a NumPy array"):
        capsule_conv2d(np.ma.masked_equal(_array(_X), 1), _array(_W))


def test_strides_that_split_elements():
    bytes_ = np.zeros(4 * 4 + 3, np.uint8)
    split = np.ndarray((1, 1, 1, 1, 1, 2), np.float32, bytes_, 1, (4, 4, 4, 4, 4, 6))
    with pytest.raises(ValueError, match="x has strides .*; it takes whole elements"):
        capsule_conv2d(split, _array((1, 1, 1, 1, 2, 1)))


def test_dy_of_another_shape():
    with pytest.raises(ValueError, match=r"dy has shape \(2, 7, 3, 4, 2, 3\); it takes \(2, 7,"):
        capsule_conv2d_backward(_array(_X), _array(_W), _array((2, 7, 3, 4, 2, 3)))


@pytest.mark.parametrize(
    ("needs", "error"),
    [
        ("input", TypeError),
        (b"input", TypeError),
        (None, TypeError),
        ([["input"]], TypeError),
        ((), ValueError),
        (("weights",), ValueError),
    ],
)
def test_needs(needs, error):
    with pytest.raises(error, match="needs is .* 'input'"):
        capsule_conv2d_backward(_array(_X), _array(_W), _array(_Y), needs=needs)


def test_out_does_not_fit():
    x, w = _array(_X), _array(_W)
    with pytest.raises(ValueError, match=r"out has shape \(2, 7\); it takes \(2, 7, 3, 4, 2, 2\)"):
        capsule_conv2d(x, w, out=_array((2, 7)))
    with pytest.raises(TypeError, match="out has dtype float64; it takes float32"):
        capsule_conv2d(x, w, out=_array(_Y, np.float64))
    with pytest.raises(ValueError, match="out is not C-contiguous"):
        capsule_conv2d(x, w, out=_array((*_Y[:5], 4))[..., ::2])
    frozen = _array(_Y)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="out is read-only"):
        capsule_conv2d(x, w, out=frozen)


def test_out_overlaps_an_input():
    x = _array((2, 3, 5, 6, 2, 2))
    w = _array((3, 3, 1, 1, 2, 2))
    with pytest.raises(ValueError, match="out overlaps x"):
        capsule_conv2d(x, w, out=x)
    memory = _array(x.size + w.size + 1)
    out, inside = memory[: x.size].reshape(x.shape), memory[x.size - 1 : x.size - 1 + w.size]
    with pytest.raises(ValueError, match="out overlaps w"):
        capsule_conv2d(x, inside.reshape(w.shape), out=out)


def test_host_and_device(monkeypatch):
    monkeypatch.undo()
    on_device = cuda.to_device(_array(_W))
    with pytest.raises(TypeError, match="w is on the device; it takes an array on the host"):
        capsule_conv2d(_array(_X), on_device)
    with pytest.raises(TypeError, match="out is on the host; it takes an array on the device"):
        capsule_conv2d(cuda.to_device(_array(_X)), on_device, out=_array(_Y))


_INTERFACE = {"typestr": "<f4", "shape": _X, "data": (4096, False)}


@pytest.mark.parametrize(
    "interface",
    [
        {},
        _INTERFACE | {"typestr": "zz"},
        _INTERFACE | {"shape": (*_X[:-1], 4.5)},
        _INTERFACE | {"shape": (*_X[:-1], -4)},
        _INTERFACE | {"strides": (16, 4)},
    ],
)
def test_broken_interface(interface, monkeypatch):
    monkeypatch.setattr(arrays, "SIMULATED", False)  # there no other library's array is looked at
    array = type("Tensor", (), {"__cuda_array_interface__": interface})()
    with pytest.raises(TypeError, match="x has a __cuda_array_interface__ that cannot be read"):
        capsule_conv2d(array, _array(_W))


def test_an_array_on_a_gpu_that_begins_amid_an_element(monkeypatch):
    monkeypatch.setattr(arrays, "SIMULATED", False)
    interface = _INTERFACE | {"data": (4098, False)}
    array = type("Tensor", (), {"__cuda_array_interface__": interface})()
    with pytest.raises(ValueError, match="x begins at address 4098; it takes a multiple of 4"):
        capsule_conv2d(array, _array(_W))


def test_device_out_overlaps(monkeypatch):
    monkeypatch.undo()
    x = cuda.to_device(_array((2, 3, 5, 6, 2, 2)))
    with pytest.raises(ValueError, match="out overlaps x"):
        capsule_conv2d(x, cuda.to_device(_array((3, 3, 1, 1, 2, 2))), out=x)


def test_limit_names_the_bytes(monkeypatch):
    monkeypatch.undo()
    with pytest.raises(MemoryError, match=r"workspace of \d+ bytes .* workspace_limit is 100"):
        capsule_conv2d(_array(_X), _array(_W), algorithm="staged", workspace_limit=100)
