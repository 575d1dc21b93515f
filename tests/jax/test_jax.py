"""Capsule convolutions for JAX: against the reference, in and out of jit, and gradients of any order."""

import ctypes
import os
import threading
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

import reference

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # other tests use the GPU, too
jax = pytest.importorskip("jax", reason="the extra 'jax' is not installed")
jnp = jax.numpy

from jax.test_util import check_grads

from numbacaps.jax import capsule_conv2d, foreign

CASES = {  # shapes of x and w, and how
    "matrix": ((2, 3, 5, 6, 2, 3), (4, 3, 3, 2, 3, 2), {"stride": (2, 1), "padding": (1, 0)}),
    "dilated": ((1, 2, 7, 7, 1, 4), (3, 2, 2, 3, 4, 1), {"dilation": 2, "padding": 2}),
    "groups": ((2, 2, 4, 4, 3, 2, 2), (2, 2, 2, 2, 3, 2, 2), {"product": "gab,gbc->gac"}),
    # XLA aborts on the gradient of such a convolution where it pads itself.
    "strides": ((2, 3, 3, 4, 2, 2), (3, 3, 3, 2, 2, 2), {"stride": (3, 2), "padding": 1}),
    "turned": ((2, 2, 4, 4, 3, 2), (2, 2, 2, 2, 4, 3), {"product": "ba,cb->ca"}),
}


def _operands(case, dtype="float32", seed=0):
    x, w, how = CASES[case]
    rng = np.random.default_rng(seed)
    return rng.standard_normal(x).astype(dtype), rng.standard_normal(w).astype(dtype), how


def _expected(x, w, how):
    """By the loops, whose capsules are (G, D1, D2) and (G, D2, D3)."""
    moves = {"stride": 1, "padding": 0, "dilation": 1} | how
    product = moves.pop("product", "ab,bc->ac")
    x, w = np.float64(x), np.float64(w)
    if product == "gab,gbc->gac":
        return reference.capsule_convolution(x, w, *moves.values())
    if product == "ba,cb->ca":
        x, w = x.swapaxes(-1, -2), w.swapaxes(-1, -2)
    y = reference.capsule_convolution(x[:, :, :, :, None], w[:, :, :, :, None], *moves.values())
    y = y[:, :, :, :, 0]
    return y.swapaxes(-1, -2) if product == "ba,cb->ca" else y


@pytest.mark.tiers("simulator", "gpu")
@pytest.mark.parametrize("jitted", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_it_is_the_reference(case, jitted):
    x, w, how = _operands(case)
    function = jax.jit(lambda x, w: capsule_conv2d(x, w, **how))
    y = function(x, w) if jitted else capsule_conv2d(x, w, **how)
    expected = _expected(x, w, how)
    assert y.shape == expected.shape and y.dtype == np.float32
    reference.assert_close(np.asarray(y), expected, 48)


@pytest.mark.slow
@pytest.mark.tiers("simulator", "gpu")
@pytest.mark.parametrize("case", CASES)
def test_gradients_of_both_orders(case):
    with jax.enable_x64(True):
        x, w, how = _operands(case, "float64")
        check_grads(
            lambda x, w: capsule_conv2d(x, w, **how), (x, w), order=2, modes=["rev"], eps=1e-4
        )


@pytest.mark.tiers("simulator", "gpu")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_numbers_of_two_bytes(dtype):
    x, w, how = _operands("matrix")
    x, w = jnp.asarray(x, dtype), jnp.asarray(w, dtype)
    y = capsule_conv2d(x, w, **how)
    assert y.dtype == dtype
    expected = _expected(np.asarray(x, "float64"), np.asarray(w, "float64"), how)
    reference.assert_close(np.asarray(y, "float32"), expected, 48, precision=dtype)
    dx, dw = jax.grad(lambda x, w: capsule_conv2d(x, w, **how).sum(), (0, 1))(x, w)
    assert dx.dtype == dw.dtype == dtype and jnp.isfinite(dx).all() and jnp.isfinite(dw).all()


@pytest.mark.tiers("simulator", "gpu")
def test_it_is_mapped():
    x, w, how = _operands("matrix")
    many = jnp.stack([x, 2 * x, -x])
    y = jax.vmap(lambda x: capsule_conv2d(x, w, **how))(many)
    for one, have in zip(many, y):
        np.testing.assert_allclose(have, capsule_conv2d(one, w, **how), rtol=1e-5, atol=1e-5)


@pytest.mark.tiers("simulator", "gpu")
def test_no_images():
    x, w, how = _operands("matrix")
    y, gradients = jax.value_and_grad(lambda x, w: capsule_conv2d(x, w, **how).sum(), (0, 1))(
        x[:0], w
    )
    assert y == 0 and gradients[0].shape == x[:0].shape and not gradients[1].any()


@pytest.mark.tiers("simulator")
@pytest.mark.parametrize(
    "change, error, words",
    [
        ({"w": np.zeros((4, 3, 3, 2, 3, 2), "f2")}, TypeError, "w has dtype float16"),
        ({"x": np.zeros((2, 3, 5, 6, 2, 3), "i4")}, TypeError, "x has dtype int32"),
        ({"precision": "tf23"}, ValueError, "precision is 'tf23'.*tf32"),
        ({"stride": 0}, ValueError, "stride"),
        ({"stride": 2**63}, ValueError, "stride is .*; XLA takes"),
        ({"padding": 2**31}, ValueError, "padding is .*: x with it would have shape"),
        ({"w": np.zeros((4, 2, 3, 2, 3, 2), "f4")}, ValueError, "input channels"),
    ],
)
def test_bad_input_is_refused_by_name(change, error, words):
    x, w, how = _operands("matrix")
    with pytest.raises(error, match=words):
        jax.jit(lambda: capsule_conv2d(**({"x": x, "w": w} | how | change)))()


# ---- on CUDA


@pytest.mark.tiers("gpu")
@pytest.mark.parametrize("precision", ["auto", "ieee", "tf32"])
def test_kernels_are_what_runs(precision):
    """On CUDA the program calls ours; each pass is the float64 one within its precision."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((8, 8, 8, 8, 4, 4)).astype("f4")
    w = rng.standard_normal((8, 8, 3, 3, 4, 4)).astype("f4")
    function = jax.jit(lambda x, w: capsule_conv2d(x, w, padding=1, precision=precision))
    assert "numbacaps_forward" in function.lower(x, w).as_text()
    y, back = jax.vjp(function, x, w)
    with jax.enable_x64(True):
        want, wide_back = jax.vjp(
            lambda x, w: capsule_conv2d(x, w, padding=1), np.float64(x), np.float64(w)
        )
        dy = np.ones(y.shape)
        wanted = [np.asarray(a) for a in (want, *wide_back(dy))]
    rounding = "tf32x3" if precision == "auto" else precision
    for have, expected in zip((y, *back(jnp.ones_like(y))), wanted):
        reference.assert_close(np.asarray(have), expected, 8 * 64 * 64, precision=rounding)


@pytest.mark.tiers("simulator")
@pytest.mark.parametrize("name", ["forward", "input_gradient", "kernel_gradient"])
def test_a_plan_launches_for_one_thread_at_a_time(name, monkeypatch):
    """Its workspaces are a stream's, and threads may share a stream."""
    from numbacaps.jax import kernels

    lock, alone = threading.Lock(), []

    def launch(*operands):
        alone.append(lock.locked())

    fitted, grown = [], SimpleNamespace(grown=True)
    plan = SimpleNamespace(
        alone=lock, forward_operands=launch, backward_operands=launch, growth=grown
    )
    monkeypatch.setattr(kernels._plans, "fit", lambda: fitted.append(grown.grown))
    monkeypatch.setattr(kernels, "_plan", lambda *how: plan)
    monkeypatch.setattr(kernels, "_operand", lambda name, buffer: buffer)
    monkeypatch.setattr(kernels, "cuda", SimpleNamespace(gpus=[nullcontext()]))
    array = SimpleNamespace(dtype=np.dtype("f4"))
    where = SimpleNamespace(device=0, stream=0)
    getattr(kernels, f"_{name}")((array, array), (array,), "", where)
    assert alone == [True] and not lock.locked()
    assert fitted == [False]  # its workspaces have grown: there may be too many bytes


# ---- XLA's foreign functions


@pytest.fixture(scope="module")
def foreign_double():
    """A program's call of Python: twice the array; the attribute says what goes wrong."""
    seen = []

    def double(arguments, results, how, where):
        seen.append((arguments[0].shape, arguments[0].dtype, how))
        if how == "fails":
            raise LookupError("nothing to double")
        have, want = (
            np.frombuffer((ctypes.c_char * one.nbytes).from_address(one.address), one.dtype)
            for one in (arguments[0], results[0])
        )
        want[:] = 2 * have

    foreign.register("numbacaps_test_double", double, platform="cpu")

    def call(x, how):
        with jax.default_device(jax.devices("cpu")[0]):
            result = jax.ShapeDtypeStruct(x.shape, x.dtype)
            return jax.ffi.ffi_call("numbacaps_test_double", result)(x, how=how)

    return call, seen


@pytest.mark.tiers("simulator")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_a_foreign_function_has_shapes_dtypes_and_attributes(foreign_double, dtype):
    call, seen = foreign_double
    x = jnp.arange(6, dtype=dtype).reshape(2, 3)
    y = jax.jit(call, static_argnums=1)(x, "gladly")
    assert (y == 2 * x).all()
    assert seen[-1][0] == (2, 3) and seen[-1][1].name == dtype and seen[-1][2] == "gladly"


@pytest.mark.tiers("simulator")
def test_what_a_foreign_function_raises_is_the_program_s_error(foreign_double):
    call, _ = foreign_double
    with pytest.raises(Exception, match="LookupError: nothing to double"):
        jax.block_until_ready(call(jnp.ones(3), "fails"))


@pytest.mark.tiers("simulator")
def test_other_dtypes_of_xla_are_refused_by_name(foreign_double):
    call, _ = foreign_double
    with pytest.raises(Exception, match="numbacaps takes float16, float32"):
        jax.block_until_ready(call(jnp.ones(3, "int32"), "gladly"))
