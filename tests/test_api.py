"""The public functions: every product, every kind of array, streams and ``out``."""

import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import numbacaps
import reference
from numbacaps import (
    ALGORITHMS,
    available_algorithms,
    capsule_conv2d,
    capsule_conv2d_backward,
    capsule_routing,
    capsule_votes,
    capsule_votes_backward,
    plan,
)
from numbacaps.arrays import contiguous
from numbacaps.device.bfloat16 import dtype_of, to_device
from numbacaps.device.target import SIMULATED, cuda
from numbacaps.kept import kept_plan
from numbacaps.signature import signature_of

pytestmark = pytest.mark.tiers("simulator", "gpu")

_PRODUCTS = {
    "ab,bc->ac": ((2, 3), (3, 2)),
    "gab,gbc->gac": ((2, 2, 3), (2, 3, 2)),
    "abk,kcd->abcd": ((2, 1, 3), (3, 2, 2)),
    "ba,cb->ca": ((3, 2), (4, 3)),  # both operands and the result transposed
    "abg,gbc->cga": ((2, 3, 2), (2, 3, 2)),
    "ab,ab->ab": ((2, 3), (2, 3)),  # element by element: all G
    ",->": ((), ()),  # plain numbers: an ordinary convolution
}
# Algorithms share the way in and out, so one of them shows it for every product.
_QUICK = "indexed"


def _einsum(x, w, product, stride=1):
    """(convolution, votes) by np.einsum over sliding windows."""
    left, right = product.split("->")
    a, b = left.split(",")
    windows = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:4], axis=(2, 3))
    windows = windows[:, :, ::stride, ::stride]  # (N, C, OH, OW, *T1, KH, KW)
    spec = f"NCHW{a}IJ,PCIJ{b}->NPHW"
    return np.einsum(spec + right, windows, w), np.einsum(spec + "CIJ" + right, windows, w)


def _random(product, rng, dtype="float64"):
    """x, w and dy for a product, at stride 2."""
    t1, t2 = _PRODUCTS[product]
    x = rng.standard_normal((2, 2, 5, 4, *t1)).astype(dtype)
    w = rng.standard_normal((3, 2, 2, 2, *t2)).astype(dtype)
    dy = rng.standard_normal(_einsum(x, w, product, 2)[0].shape).astype(dtype)
    return x, w, dy


def _gradients(x, w, dy, product):
    """(dx, dw) by central differences; the convolution is bilinear, so they are exact."""

    def directions(array, value):
        gradient = np.empty_like(array)
        for index in np.ndindex(array.shape):
            step = np.zeros_like(array)
            step[index] = 1.0
            gradient[index] = (value(step) * dy).sum()
        return gradient

    return (
        directions(x, lambda step: _einsum(step, w, product, 2)[0]),
        directions(w, lambda step: _einsum(x, step, product, 2)[0]),
    )


@pytest.mark.parametrize("product", _PRODUCTS)
def test_products(product, rng):
    x, w, dy = _random(product, rng)
    y, votes = _einsum(x, w, product, 2)
    how = {"stride": 2, "product": product, "algorithm": _QUICK}
    dx, dw = capsule_conv2d_backward(x, w, dy, **how)
    want_dx, want_dw = _gradients(x, w, dy, product)
    for actual, want in (
        (capsule_conv2d(x, w, **how), y),
        (capsule_votes(x, w, **how), votes),
        (dx, want_dx),
        (dw, want_dw),
    ):
        assert isinstance(actual, np.ndarray) and actual.flags.c_contiguous
        reference.assert_close(actual, want, 64)


@pytest.mark.parametrize("algorithm", ["auto", *available_algorithms()])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_algorithms(algorithm, dtype, rng):
    x, w, dy = _random("ab,bc->ac", rng, dtype)
    actual = capsule_conv2d(x, w, stride=2, algorithm=algorithm)
    assert actual.dtype == dtype
    reference.assert_close(actual, _einsum(x, w, "ab,bc->ac", 2)[0], 64)
    dx, dw = capsule_conv2d_backward(x, w, dy, stride=2, algorithm=algorithm)
    assert dx.dtype == dw.dtype == dtype
    for gradient, want in zip((dx, dw), _gradients(x, w, dy, "ab,bc->ac")):
        reference.assert_close(gradient, want, 64)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_two_bytes(dtype, rng):
    arrays = [a.astype(dtype_of(dtype)) for a in _random("ab,bc->ac", rng, "float32")]
    x, w, dy = (array.astype("float64") for array in arrays)
    actual = capsule_conv2d(*arrays[:2], stride=2)
    assert actual.dtype == dtype
    want = _einsum(x, w, "ab,bc->ac", 2)[0]
    reference.assert_close(actual.astype("float32"), want, 64, dtype)
    dx, dw = capsule_conv2d_backward(*arrays, stride=2)
    assert dx.dtype == dw.dtype == dtype
    for gradient, want in zip((dx, dw), _gradients(x, w, dy, "ab,bc->ac")):
        reference.assert_close(gradient.astype("float32"), want, 64, dtype)
    with pytest.raises(
        ValueError,
        match=rf"algorithm is 'indexed', which takes no {dtype} .*; \['fused', 'numpy'\] can",
    ):
        capsule_conv2d(*arrays[:2], algorithm="indexed")
    votes = capsule_votes(*arrays[:2], stride=2)
    want = _einsum(x, w, "ab,bc->ac", 2)[1]
    reference.assert_close(votes.astype("float32"), want, 64, dtype)


@pytest.mark.slow(but=["float16-*"])
@pytest.mark.parametrize(("dtype", "terms"), [("float16", 2200), ("bfloat16", 2208)])
def test_two_bytes_are_added_in_float32(dtype, terms):
    """In float16, 2048 and 1 are 2048; in bfloat16, 256 and 1 are 256."""
    dtype = dtype_of(dtype)
    x, w = np.ones((1, terms // 4, 1, 1, 1, 4), dtype), np.ones((1, terms // 4, 1, 1, 4, 1), dtype)
    assert capsule_conv2d(x, w).item() == terms
    x, w = np.ones((terms, 1, 1, 1, 1, 1), dtype), np.ones((1, 1, 1, 1, 1, 1), dtype)
    assert capsule_conv2d_backward(x, w, x, needs=["kernel"])[1].item() == terms


def test_bfloat16_takes_its_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(ImportError, match=r"dtype bfloat16 takes the extra 'bfloat16'"):
        plan((1, 1, 4, 4, 2, 2), (1, 1, 1, 1, 2, 2), "bfloat16")


@pytest.mark.slow
def test_bfloat16_is_rounded_as_its_package_does(rng):
    bfloat16 = dtype_of("bfloat16")
    x = np.append(rng.standard_normal(400), [0, -0.0, 2.5e38, 1e-39]).astype(bfloat16)
    x = x.reshape(-1, 1, 1, 1, 1, 1)
    for factor in (
        1,
        1.0078125,
        -1.3,
        1e-39,
    ):  # its product with eight bits has 16, so float32 has it
        w = np.full((1, 1, 1, 1, 1, 1), factor, bfloat16)
        want = (x.astype("float32") * w.astype("float32")).astype(bfloat16)
        assert np.array_equal(capsule_conv2d(x, w), want)


@pytest.mark.parametrize("product", ["ab,bc->ac", "ba,cb->ca"])
def test_device_arrays_stay_on_the_device(product, rng, monkeypatch):
    arrays = _random(product, rng)
    on_device = [cuda.to_device(array) for array in arrays]
    kind = type(on_device[0])
    how = {"stride": 2, "product": product, "algorithm": _QUICK}
    with monkeypatch.context() as patch:
        patch.setattr(kind, "copy_to_host", None)
        y = capsule_conv2d(*on_device[:2], **how)
        votes = capsule_votes(*on_device[:2], **how)
        dx, dw = capsule_conv2d_backward(*on_device, **how)
    for actual, want in zip((y, votes), _einsum(*arrays[:2], product, 2)):
        assert isinstance(actual, kind)
        reference.assert_close(actual.copy_to_host(), want, 64)
    for actual, want in zip((dx, dw), _gradients(*arrays, product)):
        assert isinstance(actual, kind)
        reference.assert_close(actual.copy_to_host(), want, 64)


def test_needs(rng):
    x, w, dy = _random("ab,bc->ac", rng)
    want_dx, want_dw = _gradients(x, w, dy, "ab,bc->ac")
    dx, dw = capsule_conv2d_backward(x, w, dy, stride=2, needs=["input"])
    reference.assert_close(dx, want_dx, 64)
    assert dw is None
    dx, dw = capsule_conv2d_backward(x, w, dy, stride=2, needs=iter({"kernel"}))
    reference.assert_close(dw, want_dw, 64)
    assert dx is None


@pytest.mark.parametrize("product", ["ab,bc->ac", "ba,cb->ca"])
@pytest.mark.parametrize("where", ["host", "device"])
def test_out(product, where, rng):
    x, w, _ = _random(product, rng)
    y, votes = _einsum(x, w, product, 2)
    place = (lambda array: array.copy()) if where == "host" else cuda.to_device
    for function, want in ((capsule_conv2d, y), (capsule_votes, votes)):
        out = place(np.full(want.shape, np.nan))
        how = {"stride": 2, "product": product, "algorithm": _QUICK, "out": out}
        assert function(place(x), place(w), **how) is out
        reference.assert_close(out if where == "host" else out.copy_to_host(), want, 64)


@pytest.mark.slow(but=["0-*", "2-float16"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("N", [0, 2])
def test_results_whose_axes_move_go_to_out_on_the_device(N, dtype, rng):
    """As they are without ``out``, of every function that has one."""
    product = "ba,cb->ca"
    x, w, _ = (array.astype(dtype_of(dtype)) for array in _random(product, rng))
    how = {"stride": 2, "product": product}
    dvotes = capsule_votes(x[:N], w, algorithm="numpy", **how)
    x, w, dvotes = map(to_device, (x[:N], w, dvotes))
    calls = {
        capsule_conv2d: ((x, w), "fused"),
        capsule_votes: ((x, w), "indexed"),
        capsule_votes_backward: ((x, w, dvotes), "indexed"),
        capsule_routing: ((x, w), "fused"),
    }
    for function, (arrays, algorithm) in calls.items():
        wanted = _as_tuple(function(*arrays, algorithm=algorithm, **how))
        outs = tuple(to_device(np.full(one.shape, np.nan, one.dtype)) for one in wanted)
        out = outs if function is capsule_votes_backward else outs[0]
        found = _as_tuple(function(*arrays, algorithm=algorithm, out=out, **how))
        for have, given, want in zip(found, outs, wanted, strict=True):
            assert have is given
            bits = [one.view("u1").copy_to_host() for one in (have, want) if one.size]
            assert not bits or np.array_equal(*bits)


@pytest.mark.parametrize("make", [np.empty, cuda.device_array])
def test_out_of_no_images(make):
    """NumPy's strides of an array without elements are 0."""
    x, w, out = (
        make(shape, np.float32)
        for shape in ((0, 1, 3, 3, 2, 2), (1, 1, 3, 3, 2, 2), (0, 1, 1, 1, 2, 2))
    )
    assert capsule_conv2d(x, w, out=out) is out


def _as_tuple(results):
    return results if isinstance(results, tuple) else (results,)


def test_out_from_staged(rng):
    x, w, _ = _random("ab,bc->ac", rng)
    y, votes = _einsum(x, w, "ab,bc->ac", 2)
    on_device = [cuda.to_device(array) for array in (x, w)]
    for function, want in ((capsule_conv2d, y), (capsule_votes, votes)):
        out = cuda.to_device(np.full(want.shape, np.nan))
        how = {"stride": 2, "algorithm": "staged", "workspace_limit": 1 << 20, "out": out}
        assert function(*on_device, **how) is out
        reference.assert_close(out.copy_to_host(), want, 64)


def test_pairs(rng):
    x, w = rng.standard_normal((1, 1, 6, 7, 2, 2)), rng.standard_normal((2, 1, 2, 3, 2, 2))
    how = {"stride": (2, 1), "padding": (1, 0), "dilation": (1, 2)}
    want = reference.capsule_convolution_einsum(x[:, :, :, :, None], w[:, :, :, :, None], **how)
    reference.assert_close(capsule_conv2d(x, w, **how), want[:, :, :, :, 0], 64)


@pytest.mark.sanitize
def test_strided_arrays_are_copied(rng):
    x, w, _ = _random("ab,bc->ac", rng)
    y = _einsum(x, w, "ab,bc->ac", 2)[0]
    wide = np.zeros((*x.shape[:-1], 2 * x.shape[-1]))
    wide[..., ::2] = x
    reversed_w = np.ascontiguousarray(w[:, :, ::-1])[:, :, ::-1]
    actual = capsule_conv2d(wide[..., ::2], reversed_w, stride=2, algorithm=_QUICK)
    reference.assert_close(actual, y, 64)
    actual = capsule_conv2d(
        cuda.to_device(wide)[:, :, :, :, :, ::2], cuda.to_device(w), stride=2, algorithm=_QUICK
    )
    reference.assert_close(actual.copy_to_host(), y, 64)


@pytest.mark.parametrize("where", ["host", "device"])
def test_reversed_and_broadcast_arrays(where, rng):
    """Negative and zero strides."""
    x, w, _ = _random("ab,bc->ac", rng)
    x[1] = x[0]
    y = _einsum(x, w, "ab,bc->ac", 2)[0]
    backwards = np.ascontiguousarray(w[:, :, ::-1])
    if where == "host":
        actual = capsule_conv2d(
            np.broadcast_to(x[:1], x.shape), backwards[:, :, ::-1], stride=2, algorithm=_QUICK
        )
    else:
        reversed_w = cuda.to_device(backwards)[:, :, ::-1]
        actual = capsule_conv2d(cuda.to_device(x), reversed_w, stride=2, algorithm=_QUICK)
        actual = actual.copy_to_host()
    reference.assert_close(actual, y, 64)


@pytest.mark.slow
def test_many_capsule_axes(rng):
    """Capsules of nine axes, all of them moved."""
    x = rng.standard_normal((2, 1, 2, 2, *(2,) * 9)).astype(np.float32)
    product = "abcdefghi,->ihgfedcba"
    actual = capsule_conv2d(
        cuda.to_device(x), cuda.to_device(np.full((1, 1, 1, 1), 3, np.float32)), product=product
    )
    want = 3 * x.transpose(0, 1, 2, 3, *range(12, 3, -1))
    np.testing.assert_array_equal(actual.copy_to_host(), want)


@pytest.mark.parametrize("where", ["host", "device"])
def test_empty_batch(where, rng):
    x, w, dy = _random("ab,bc->ac", rng)
    x, dy = x[:0], dy[:0]
    arrays = [x, w, dy] if where == "host" else [cuda.to_device(array) for array in (x, w, dy)]
    assert capsule_conv2d(*arrays[:2], stride=2).shape == dy.shape
    votes = capsule_votes(*arrays[:2], stride=2)
    assert votes.shape == (*dy.shape[:4], 2, 2, 2, *dy.shape[4:])
    dx, dw = capsule_conv2d_backward(*arrays, stride=2)
    assert dx.shape == x.shape
    dw = dw if where == "host" else dw.copy_to_host()
    np.testing.assert_array_equal(dw, np.zeros_like(w))


def test_a_stream(rng):
    x, w, dy = _random("ab,bc->ac", rng)
    stream = cuda.stream()
    reference.assert_close(
        capsule_conv2d(x, w, stride=2, stream=stream), _einsum(x, w, "ab,bc->ac", 2)[0], 64
    )
    arrays = [cuda.to_device(array, stream=stream) for array in (x, w, dy)]
    dx, dw = capsule_conv2d_backward(*arrays, stride=2, stream=stream)
    stream.synchronize()
    for actual, want in zip((dx, dw), _gradients(x, w, dy, "ab,bc->ac")):
        reference.assert_close(actual.copy_to_host(), want, 64)


def test_registry_names():
    assert set(ALGORITHMS) >= {"naive", "staged", "indexed"}
    assert numbacaps.SIMULATED == SIMULATED


def test_plans_that_are_kept():
    """Of the same calls on a stream the same one, with its workspace, but not for another thread."""
    how = (1, 1, 2, 2), (1, 1, 1, 1), np.dtype(np.float32), 1, 0, 1, ",->"

    def signature(algorithm):
        return signature_of(*how, algorithm, "ieee", None, False)

    mine = kept_plan(signature("fused"), 0)
    assert kept_plan(signature("fused"), 0) is mine
    assert kept_plan(signature("indexed"), 0) is not mine
    with ThreadPoolExecutor() as pool:
        assert pool.submit(kept_plan, signature("fused"), 0).result() is not mine


@pytest.mark.slow(but=["1.0", "stride3"])
@pytest.mark.parametrize("stride", [True, 1.0, (1, True), (1.0, 1), [1, True], None])
def test_options_that_equal_a_kept_call_are_refused_all_the_same(stride, rng):
    x, w, _ = _random("ab,bc->ac", rng)
    for right in (1, (1, 1), [1, 1], np.int64(1), np.array([1, 1])):
        assert capsule_conv2d(x, w, stride=right).shape == capsule_conv2d(x, w).shape
    with pytest.raises(TypeError, match="stride is .*; it takes an int or a pair of ints"):
        capsule_conv2d(x, w, stride=stride)


def test_added_axes_are_contiguous(rng):
    """NumPy gives axes that are added to an array strides of 0, which Numba does not take for contiguous."""
    x = rng.standard_normal((4, 3, 3))[:, None, :, :, None, None]
    assert x.strides[1] == 0 and contiguous(x).strides == np.empty(x.shape).strides
    np.testing.assert_array_equal(contiguous(x), x)
    turned = rng.standard_normal((3, 4)).T
    np.testing.assert_array_equal(contiguous(turned), turned)
    w = rng.standard_normal((2, 2, 2))[:, None, :, :, None, None]
    got = numbacaps.capsule_conv2d(x, w)
    np.testing.assert_array_equal(got, numbacaps.capsule_conv2d(x.copy(), w.copy()))


@pytest.mark.parametrize("name", ["torch", "jax"])
def test_a_part_that_is_not_imported_says_how(name, monkeypatch):
    monkeypatch.delattr(numbacaps, name, raising=False)  # another test may have imported it
    with pytest.raises(AttributeError, match=f"by its name: import numbacaps.{name}$"):
        getattr(numbacaps, name)
