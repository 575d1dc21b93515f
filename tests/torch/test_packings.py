"""Kernels that stay as they are are packed once; never is a stale copy read. On the simulator, in CPU tensors' memory."""

import copy
import pickle
import threading

import pytest

torch = pytest.importorskip("torch")
import numbacaps  # noqa: E402  (where torch is)
import numbacaps.torch as nt  # noqa: E402
from numbacaps.algorithms.fused import FusedPasses  # noqa: E402
from numbacaps.torch import kernels, operators  # noqa: E402
from numbacaps.torch.packings import Packings  # noqa: E402
from tests.support.torch_cuda import OnSimulator  # noqa: E402

pytestmark = pytest.mark.tiers("simulator")


@pytest.fixture
def kept():
    return Packings(3)


def _packed(kept, w, key=("forward",), fails=False):
    """Whether ``w`` was packed for a call."""
    with kept.room(w, key, object) as where:
        if fails:
            raise RuntimeError("no launch")
    return not where["packed"]


def _weight():
    return torch.nn.Parameter(torch.randn(3, 2, 4))


def test_a_kernel_is_packed_once_for_each_way_of_packing(kept):
    w = _weight()
    assert [_packed(kept, w) for _ in range(3)] == [True, False, False]
    assert [_packed(kept, w, ("input",)) for _ in range(2)] == [True, False]
    assert not _packed(kept, w)
    assert not _packed(kept, w.detach()) and not _packed(kept, w.data)  # the same memory
    assert _packed(kept, w.transpose(0, 1)) and _packed(kept, w[1:])  # other places in there


def test_what_packs_nothing_leaves_no_copy(monkeypatch):
    """Arrays that begin amid 16 bytes are multiplied by ordinary arithmetic: the next ones find no packed kernel."""
    OnSimulator(monkeypatch)
    numbacaps.clear_caches()
    found, room = [], Packings.room
    monkeypatch.setattr(
        Packings, "room", lambda kept, w, key, new: found.append(key) or room(kept, w, key, new)
    )
    monkeypatch.setattr(FusedPasses, "packs", lambda passes, wanted: True)
    monkeypatch.setattr(FusedPasses, "_launch", lambda *_: None)
    memory, w = torch.zeros(1 * 2 * 3 * 3 * 4 + 1), torch.zeros(2, 2, 2, 2, 4, 4)
    how = (1, 1), (0, 0), (1, 1), "ab,bc->ac", "auto", True
    for first in (1, 0, 1):
        x = memory[first : first + 72].view(1, 2, 3, 3, 1, 4)
        kernels.convolve(x, w, how)
    assert found[0] == found[2] != found[1] and len(kernels._packings) == 2
    numbacaps.clear_caches()


def test_the_room_is_that_of_the_packing(kept):
    w, rooms = _weight(), []
    for _ in range(2):
        with kept.room(w, (), object) as where:
            rooms.append(where["room"])
    assert rooms[0] is rooms[1]


def _in_place(w):
    with torch.no_grad():
        w.mul_(2)


def _by_an_optimiser(w):
    w.grad = torch.ones_like(w)
    torch.optim.SGD([w], lr=0.1).step()


def _by_a_view(w):
    w.detach()[0].zero_()


def _by_data(w):
    w.data = torch.randn(w.shape)


_CHANGES = _in_place, _by_an_optimiser, _by_a_view, _by_data


@pytest.mark.parametrize("change", _CHANGES)
def test_a_kernel_that_changed_is_packed_anew(change, kept):
    w = _weight()
    assert _packed(kept, w) and not _packed(kept, w)
    change(w)
    assert [_packed(kept, w) for _ in range(2)] == [True, False]


def test_memory_that_is_used_again_is_another_kernel(kept):
    for _ in range(5):  # the allocator gives out the same address, and versions begin at 0
        assert _packed(kept, _weight())
    assert len(kept) == 1  # those of storages that are gone are given back


def test_what_is_kept_has_a_bound(kept):
    weights = [_weight() for _ in range(5)]
    assert all(_packed(kept, w) for w in weights)
    assert len(kept) == 3
    assert not _packed(kept, weights[4]) and _packed(kept, weights[0])


def test_a_launch_that_failed_leaves_nothing(kept):
    w = _weight()
    with pytest.raises(RuntimeError, match="no launch"):
        _packed(kept, w, fails=True)
    assert len(kept) == 0 and _packed(kept, w)


def test_forgotten_kernels_are_packed_anew(kept):
    w, other = _weight(), _weight()
    for one in (w, other):
        _packed(kept, one), _packed(kept, one, ("input",))
    w.data.mul_(2)  # PyTorch's version counter does not see it
    kept.forget(w)
    assert _packed(kept, w) and not _packed(kept, other)


def test_tensors_without_a_version_counter_are_packed_for_every_call(kept):
    with torch.inference_mode():
        w = torch.randn(3, 2)
    assert _packed(kept, w) and _packed(kept, w) and len(kept) == 0
    w = _weight()
    with torch.inference_mode():  # these keep theirs
        assert _packed(kept, w[:, :, None]) and not _packed(kept, w[:, :, None])
        w.add_(1)
        assert _packed(kept, w[:, :, None])


def test_threads_share_what_is_kept():
    kept, weights, packed = Packings(8), [_weight() for _ in range(4)], []

    def work():
        for i in range(100):
            packed.append(_packed(kept, weights[i % 4]))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(packed) == 400 and 4 <= sum(packed) <= 16 and len(kept) == 4


# ---- the layers


@pytest.fixture
def cuda_side(monkeypatch):
    """While the test runs, the operators do with CPU tensors what they do with CUDA tensors; ``packings`` are counted of
    precision "tf32", whose passes pack.
    """
    side, launch = OnSimulator(monkeypatch), FusedPasses._launch
    side.packings = 0

    def counted(self, *arguments):
        side.packings += self.precision == "tf32" and not arguments[-1]
        launch(self, *arguments)

    monkeypatch.setattr(FusedPasses, "_launch", counted)
    monkeypatch.setattr(kernels, "_packings", Packings(64))
    on = operators.CONVOLUTION.on
    monkeypatch.setitem(on, "CPU", on["CUDA"])
    yield side


_LAYERS = {
    "conv": lambda: nt.CapsuleConv2d(
        2, 3, 2, in_capsule=(2, 2), out_capsule=(2, 2), precision="tf32"
    ),
    "transposed": lambda: nt.CapsuleConvTranspose2d(
        2, 3, 2, in_capsule=(2, 2), out_capsule=(2, 2), precision="tf32"
    ),
    "linear": lambda: nt.CapsuleLinear((2, 2, 2), 3, (2, 2), (2, 2), precision="tf32"),
}
_layers = pytest.mark.parametrize("kind", _LAYERS)


def _made(kind):
    layer = _LAYERS[kind]().eval()
    layer.keep_packed = True
    return layer, torch.randn(1, 2, 2, 2, 2, 2)


@torch.no_grad()
def _check(layer, x):
    """Its output is that of float64 by ordinary arithmetic, which packs nothing."""
    right = copy.deepcopy(layer).double()
    right.precision = "ieee"
    torch.testing.assert_close(layer(x).double(), right(x.double()), atol=2e-2, rtol=2e-2)


@_layers
def test_a_layer_in_eval_packs_once(kind, cuda_side):
    layer, x = _made(kind)
    for _ in range(3):
        _check(layer, x)
    assert cuda_side.packings == 1
    with torch.inference_mode():
        layer(x)
    assert cuda_side.packings == 1


@_layers
def test_unasked_no_layer_keeps_anything(kind, cuda_side):
    """So that what PyTorch does not count, as an average of weights is kept, is seen."""
    layer, x = _made(kind)
    layer.keep_packed = False
    _check(layer, x)
    layer.weight.data.mul_(0.5)
    _check(layer, x)
    assert cuda_side.packings == 2 and len(kernels._packings) == 0


def _loaded(layer):
    layer.load_state_dict({"weight": torch.randn(layer.weight.shape)})


def _moved(layer):
    layer.double().float()


def _uncounted(layer):
    layer.weight.data.mul_(3)
    layer.eval()


def _of_the_weight(change):
    return lambda layer: change(layer.weight)


@pytest.mark.parametrize(
    "change", [*map(_of_the_weight, _CHANGES), _loaded, _moved, _uncounted], ids=range(7)
)
@_layers
def test_a_layer_whose_kernel_changed_computes_with_the_new_one(kind, change, cuda_side):
    layer, x = _made(kind)
    _check(layer, x)
    change(layer)
    _check(layer, x), _check(layer, x)
    assert cuda_side.packings == 2


def test_a_step_of_training_between(cuda_side):
    layer, x = _made("conv")
    _check(layer, x)
    layer.train()
    assert len(kernels._packings) == 0
    optimiser = torch.optim.SGD(layer.parameters(), lr=1.0)
    layer(x).square().sum().backward()
    optimiser.step()
    layer(x)
    assert len(kernels._packings) == 0 and cuda_side.packings == 3  # each call's own
    layer.eval()
    _check(layer, x), _check(layer, x)
    assert cuda_side.packings == 4


def test_a_kernel_that_wants_its_gradient_is_not_kept(cuda_side):
    layer, x = _made("conv")
    layer(x), layer(x)
    assert cuda_side.packings == 2 and len(kernels._packings) == 0
    layer.requires_grad_(False)
    x.requires_grad_()
    for _ in range(2):  # the input's gradient reads a packed kernel too
        layer(x).sum().backward()
    assert cuda_side.packings == 4 and len(kernels._packings) == 2


def test_copies_have_kernels_of_their_own(cuda_side):
    layer, x = _made("conv")
    _check(layer, x)
    copies = copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))
    for one in copies:
        assert list(one.state_dict()) == ["weight"] and not one.training
        with torch.no_grad():
            one.weight.mul_(2)
        _check(one, x)
    _check(layer, x)
    assert cuda_side.packings == 3


def test_parametrized_kernels_are_packed_for_every_call(cuda_side):
    class Scaled(torch.nn.Module):
        scale = 1

        def forward(self, weight):
            return self.scale * weight

    layer, x = _made("linear")
    torch.nn.utils.parametrize.register_parametrization(layer, "weight", Scaled())
    for Scaled.scale in (1, 2):
        _check(layer.eval(), x)
    assert cuda_side.packings == 2 and len(kernels._packings) == 0


def test_clear_caches_gives_packed_kernels_back(cuda_side):
    layer, x = _made("conv")
    _check(layer, x)
    assert len(kernels._packings) == 1 and len(kernels._plans) > 0
    numbacaps.clear_caches()
    assert len(kernels._packings) == len(kernels._plans) == 0
    _check(layer, x)
    assert cuda_side.packings == 2


def test_weights_of_functional_call_are_read(cuda_side):
    layer, x = _made("conv")
    _check(layer, x)
    other = _made("conv")[0]
    with torch.no_grad():
        found = torch.func.functional_call(layer, dict(other.named_parameters()), (x,))
        torch.testing.assert_close(found, other(x))


def test_each_stream_packs_for_itself(cuda_side):
    layer, x = _made("conv")
    for cuda_side.stream in (0, 1, 0, 1):
        _check(layer, x)
    assert cuda_side.packings == 2


def test_what_is_captured_is_packed_in_the_graph(cuda_side):
    layer, x = _made("conv")
    _check(layer, x)
    with torch.no_grad():
        cuda_side.capturing = True
        layer(x), layer(x)
        cuda_side.capturing = False
    assert cuda_side.packings == 3
    _check(layer, x)
    assert cuda_side.packings == 3
    kernels.forget_captured()


def test_under_autocast_the_cast_kernel_is_not_kept(cuda_side):
    layer, x = _made("conv")
    layer.precision = "auto"
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16):
        assert layer(x).dtype == torch.float16
    assert len(kernels._packings) == 0


@pytest.mark.slow
def test_compiled_layers_keep_nothing(cuda_side):
    layer, x = _made("conv")
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), layer(x))
        layer.weight.mul_(2)
        torch.testing.assert_close(compiled(x), layer(x))
    assert cuda_side.packings == 4 and len(kernels._packings) == 1


def test_layers_in_eval_can_be_traced_by_fx():
    layer, x = _made("conv")
    layer.precision = "auto"
    traced = torch.fx.Tracer()
    traced.is_leaf_module = lambda *_: False
    graph = torch.fx.GraphModule(layer, traced.trace(layer))
    torch.testing.assert_close(graph(x), layer(x))


def test_kernels_without_memory_of_their_own_have_no_copies():
    packings = Packings(4)
    with packings.room(torch.ones(3), ("key",), object):
        pass
    packings.forget(torch.eye(3).to_sparse())
    torch.func.vmap(lambda w: packings.forget(w) or w)(torch.ones(2, 3))
    assert len(packings) == 1
