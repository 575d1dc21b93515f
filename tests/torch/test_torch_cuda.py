"""numbacaps.torch on CUDA tensors: every operator against float64, autocast, streams, gradients, compiled networks."""

import threading

import pytest

torch = pytest.importorskip("torch")
import numbacaps.torch as nt  # noqa: E402  (where torch is)

pytestmark = [
    pytest.mark.tiers("gpu"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="this PyTorch has no CUDA"),
]

_DTYPES = {
    torch.float16: 1e-2,
    torch.bfloat16: 6e-2,
    torch.float32: 1e-5,
    torch.float64: 1e-12,
}
_GEOMETRIES = {
    "plain": ((3, 4, 6, 5, 4, 4), (5, 4, 3, 3, 4, 4), (1, 0, 1), "ab,bc->ac"),
    "strides": ((2, 3, 9, 8, 2, 3), (2, 3, 2, 3, 3, 5), ((2, 1), (1, 2), (1, 2)), "ab,bc->ac"),
    "transposed": ((2, 2, 5, 5, 3, 2), (3, 2, 2, 2, 4, 3), (1, 1, 1), "ba,cb->ca"),
    "vectors": ((4, 8, 1, 1, 1, 8), (10, 8, 1, 1, 8, 16), (1, 0, 1), "ab,bc->ac"),
    "numbers": ((2, 3, 7, 7), (4, 3, 3, 3), (2, 1, 1), ",->"),
}
_FUNCTIONS = {
    "convolution": nt.capsule_conv2d,
    "votes": nt.capsule_votes,
    "summed votes": lambda *arguments, **how: nt.capsule_votes(*arguments, sum_window=True, **how),
}


def _tensors(case, dtype, seed=0):
    """x and w on the GPU, and the function's options."""
    x_shape, w_shape, how, product = _GEOMETRIES[case]
    made = {"generator": torch.Generator("cuda").manual_seed(seed), "device": "cuda"}
    x, w = (torch.randn(shape, **made).to(dtype).requires_grad_() for shape in (x_shape, w_shape))
    return x, w, how, product


def _close(found, wanted, within):
    """Differences by the largest wanted value."""
    assert found.is_cuda
    wanted = wanted.double().cpu()
    error = (found.double().cpu() - wanted).abs().max() / wanted.abs().max()
    assert error <= within


def _run(function, x, w, dy, how, product):
    """The result and both gradients."""
    y = function(x, w, *how, product=product)
    return y.detach(), *torch.autograd.grad(y, (x, w), dy)


@pytest.mark.parametrize("dtype", _DTYPES, ids=str)
@pytest.mark.parametrize("case", _GEOMETRIES)
@pytest.mark.parametrize("function", _FUNCTIONS)
def test_values_and_gradients_in_float64(function, case, dtype):
    run = _FUNCTIONS[function]
    x, w, *how = _tensors(case, dtype)
    dy = torch.randn_like(run(x, w, *how[0], product=how[1]))
    wide = [tensor.detach().double().cpu().requires_grad_() for tensor in (x, w, dy)]
    wanted = _run(run, *wide, *how)
    for found, want in zip(_run(run, x, w, dy, *how), wanted):
        assert found.dtype == dtype and found.is_contiguous()
        _close(found, want, _DTYPES[dtype])


@pytest.mark.parametrize("precision", ["tf32", "tf32x3"])
def test_tensor_cores(precision):
    x, w, how, product = _tensors("plain", torch.float32)
    wanted = nt.capsule_conv2d(x.double(), w.double(), *how, product=product)
    found = nt.capsule_conv2d(x, w, *how, product=product, precision=precision)
    _close(found.detach(), wanted.detach(), {"tf32": 5e-3, "tf32x3": 1e-5}[precision])


def test_votes_have_ordinary_arithmetic_alone():
    x, w, how, product = _tensors("plain", torch.float32)
    with pytest.raises(ValueError, match="precision is 'tf32'"):
        nt.capsule_votes(x, w, *how, product=product, precision="tf32")


@pytest.mark.parametrize("case", ["strides", "transposed"])
@pytest.mark.parametrize("function", _FUNCTIONS)
def test_gradients_of_gradients(function, case):
    x_shape, w_shape, how, product = _GEOMETRIES[case]
    made = {"dtype": torch.float64, "device": "cuda", "requires_grad": True}
    x = torch.randn(2, 2, 4, 5, *x_shape[4:], **made)
    w = torch.randn(1, 2, 2, 2, *w_shape[4:], **made)

    def run(x, w):
        return _FUNCTIONS[function](x, w, *how, product=product)

    assert torch.autograd.gradcheck(run, (x, w), nondet_tol=0.0)
    assert torch.autograd.gradgradcheck(run, (x, w), nondet_tol=0.0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("function", _FUNCTIONS)
def test_autocast(function, dtype):
    x, w, how, product = _tensors("plain", torch.float32)
    run = _FUNCTIONS[function]
    with torch.autocast("cuda", dtype=dtype):
        y = run(x, w, *how, product=product)
    assert y.dtype == dtype
    _close(y.detach(), run(x.double(), w.double(), *how, product=product).detach(), _DTYPES[dtype])
    y.float().sum().backward()
    assert x.grad.dtype == w.grad.dtype == torch.float32


@pytest.mark.parametrize("function", _FUNCTIONS)
def test_work_goes_to_the_current_stream(function):
    """What the stream is still writing is read behind it, and the result is ready for what follows there."""
    run, stream = _FUNCTIONS[function], torch.cuda.Stream()
    x, w, how, product = _tensors("plain", torch.float32)
    wanted = run(x, w, *how, product=product).detach().clone()
    late = torch.zeros_like(x)
    torch.cuda.synchronize()

    def work():
        late.copy_(x)
        return run(late, w, *how, product=product) * 2

    with torch.cuda.stream(stream), torch.no_grad():
        work()  # the first time, memory is allocated and kernels are loaded: PyTorch's, too
        late.zero_()
        stream.synchronize()
        torch.cuda._sleep(4 * 10**9)  # cycles, about two seconds
        y = work()
    assert not stream.query()  # the host did not wait
    stream.synchronize()
    torch.testing.assert_close(y, 2 * wanted)


def test_two_threads_on_two_streams():
    found = {}

    def work(seed):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(20):
                x, w, how, product = _tensors("plain", torch.float32, seed)
                y = nt.capsule_conv2d(x, w, *how, product=product)
                found[seed] = y.detach(), *torch.autograd.grad(y.square().sum(), (x, w))
        stream.synchronize()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 2
    for seed, results in found.items():
        x, w, how, product = _tensors("plain", torch.float32, seed)
        x, w = x.detach().double().requires_grad_(), w.detach().double().requires_grad_()
        y = nt.capsule_conv2d(x, w, *how, product=product)
        wanted = y.detach(), *torch.autograd.grad(y.square().sum(), (x, w))
        for one, want in zip(results, wanted):
            _close(one, want, 1e-5)


def test_the_same_bits_where_determinism_is_asked_for():
    torch.use_deterministic_algorithms(True)
    try:
        x, w, *how = _tensors("strides", torch.float32)
        for run in _FUNCTIONS.values():
            dy = torch.ones_like(run(x, w, *how[0], product=how[1]))
            first, second = (_run(run, x, w, dy, *how) for _ in range(2))
            assert all(torch.equal(one, other) for one, other in zip(first, second))
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_a_compiled_network_is_one_graph_for_all_batch_sizes():
    import torch._dynamo.testing

    torch._dynamo.reset()
    network = torch.nn.Sequential(
        nt.CapsuleConv2d(2, 3, 3, in_capsule=(2, 3), out_capsule=(2, 4), bias=True),
        nt.Squash((-2, -1)),
        nt.CapsuleLinear((3, 4, 4), 5, (2, 4), (2, 2)),
    ).cuda()
    counted = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(network, fullgraph=True, backend=counted)
    for N in (2, 3, 5):
        x = torch.randn(N, 2, 6, 6, 2, 3, device="cuda")
        torch.testing.assert_close(compiled(x), network(x))
    assert counted.frame_count <= 2


def test_operands_on_two_devices_are_refused_before_a_launch():
    x, w, how, product = _tensors("plain", torch.float32)
    for run in _FUNCTIONS.values():
        with pytest.raises(RuntimeError, match="x is on cuda:0 and w on cpu"):
            run(x, w.cpu(), *how, product=product)


@pytest.mark.parametrize("function", _FUNCTIONS)
def test_tensors_that_are_not_contiguous(function):
    run = _FUNCTIONS[function]
    x, w, how, product = _tensors("plain", torch.float32)
    strided = torch.empty(*x.shape[:4], 8, 8, device="cuda")[..., ::2, ::2]
    with torch.no_grad():
        strided.copy_(x)
    found = run(strided, w.detach(), *how, product=product)
    torch.testing.assert_close(found, run(x, w, *how, product=product).detach())


@pytest.mark.parametrize("routing", ["dynamic", "em"])
def test_couplings(routing):
    torch.manual_seed(1)
    x, w = torch.randn(2, 3, 5, 5, 2, 4), torch.randn(4, 3, 3, 3, 4, 2)
    more = {"activations": torch.rand(2, 3, 5, 5)} if routing == "em" else {}
    wanted = nt.routing_couplings(x, w, **more, routing=routing)
    more = {name: one.cuda() for name, one in more.items()}
    found = nt.routing_couplings(x.cuda(), w.cuda(), **more, routing=routing)
    assert found.is_cuda and found.shape == wanted.shape
    torch.testing.assert_close(found.cpu(), wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("case", _GEOMETRIES)
@pytest.mark.parametrize("function", _FUNCTIONS)
def test_results_may_be_written_to_in_place(function, case):
    run = _FUNCTIONS[function]
    x, w, how, product = _tensors(case, torch.float32)
    wanted = torch.autograd.grad((2 * run(x, w, *how, product=product)).sum(), (x, w))
    found = torch.autograd.grad(run(x, w, *how, product=product).mul_(2).sum(), (x, w))
    for one, right in zip(found, wanted):
        torch.testing.assert_close(one, right, rtol=0, atol=0)


@pytest.mark.parametrize("function", _FUNCTIONS)
def test_operands_whose_sign_is_pending_have_gradients(function):
    """Kernels read memory, and the gradients read the operands again."""
    run = _FUNCTIONS[function]
    x, w, how, product = _tensors("plain", torch.float32)
    dx, dw = torch.autograd.grad(run(x, w, *how, product=product).sum(), (x, w))
    of = torch._neg_view(x.detach())
    (found,) = torch.autograd.grad(run(of, w, *how, product=product).sum(), w)
    torch.testing.assert_close(found, -dw)
    of = torch._neg_view(w.detach())
    (found,) = torch.autograd.grad(run(x, of, *how, product=product).sum(), x)
    torch.testing.assert_close(found, -dx)


def test_axes_that_there_are_not_are_not_squashed():
    with pytest.raises(IndexError):
        nt.squash(torch.ones(2, 3, 4, device="cuda"), 5)
    assert nt.squash(torch.ones(2, 3, 4, device="cuda"), ()).shape == (2, 3, 4)
