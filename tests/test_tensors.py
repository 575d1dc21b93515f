"""PyTorch's tensors as operands, on the host: what they say themselves is what their interface says."""

import numpy as np
import pytest

from numbacaps import arrays
from numbacaps.arrays import describe
from tests.support.dlpack import OfDlpack

torch = pytest.importorskip("torch")
_SHAPE = (2, 1, 3, 4)


@pytest.fixture(autouse=True)
def on_gpu(monkeypatch):
    """Tensors say that they are on GPU 3."""
    monkeypatch.setattr(arrays, "SIMULATED", False)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    monkeypatch.setattr(torch.Tensor, "get_device", lambda tensor: 3)


_TENSORS = {
    "contiguous": lambda: torch.ones(_SHAPE),
    "float16": lambda: torch.ones(_SHAPE, dtype=torch.float16),
    "bfloat16": lambda: torch.ones(_SHAPE, dtype=torch.bfloat16),
    "float64": lambda: torch.ones(_SHAPE, dtype=torch.float64),
    "transposed": lambda: torch.ones(_SHAPE).transpose(2, 3),
    "every other": lambda: torch.ones(_SHAPE)[..., 1::2],
    "expanded": lambda: torch.ones(_SHAPE).expand(2, 5, 3, 4),
    "odd strides of an axis of 1": lambda: torch.ones(_SHAPE).as_strided(_SHAPE, (12, 5, 4, 1)),
    "no elements": lambda: torch.ones((0, *_SHAPE[1:])),
    "detached": lambda: torch.nn.Parameter(torch.ones(_SHAPE)).detach(),
}


@pytest.mark.parametrize("case", _TENSORS)
def test_a_tensor_is_what_its_interface_says(case):
    tensor = _TENSORS[case]()
    have = describe("x", tensor)
    want = arrays._describe_interface("x", tensor, tensor.__cuda_array_interface__)
    assert have.form is want.form and have.array is tensor and have.on_device
    assert not have.form.size or have.address == want.address
    assert (have.stream, have.read_only) == (want.stream, want.read_only)
    assert have.device_ordinal() == 3


@pytest.mark.parametrize("case", ["contiguous", "float16", "bfloat16", "transposed", "no elements"])
def test_an_array_of_dlpack_alone(case):
    """It stays what the caller gave: ``out=`` is returned as it is."""
    tensor = _TENSORS[case]()
    array = OfDlpack(tensor)
    have, want = describe("out", array), describe("out", tensor)
    assert have.array is array and have.form is want.form and have.on_device
    assert not have.form.size or have.address == want.address
    assert have.stream is None and not have.read_only


@pytest.mark.parametrize(
    ("tensor", "error", "message"),
    [
        (lambda: torch.ones(2, requires_grad=True), RuntimeError, "requires grad"),
        (lambda: torch.ones(2).to_sparse(), TypeError, "x is a Tensor; it takes a NumPy array"),
        (lambda: torch.ones(2, dtype=torch.int32), TypeError, "x has dtype int32; it takes float"),
        (
            lambda: torch.empty(2, dtype=torch.bits16),
            TypeError,
            "x has dtype torch.bits16; it takes float16",
        ),
    ],
)
def test_what_is_refused(tensor, error, message):
    with pytest.raises(error, match=message):
        describe("x", tensor())


def test_a_tensor_amid_an_element_is_refused():
    bits = np.ones(17, np.uint8)[1:]  # torch.from_numpy takes an array wherever it begins
    with pytest.raises(ValueError, match="x begins at address .*; it takes a multiple of 4"):
        describe("x", torch.from_numpy(bits.view(np.float32)))


def test_the_simulator_takes_none(monkeypatch):
    monkeypatch.setattr(arrays, "SIMULATED", True)
    with pytest.raises(TypeError, match="x is a Tensor on a GPU, but kernels run on the simulator"):
        describe("x", torch.ones(_SHAPE))
