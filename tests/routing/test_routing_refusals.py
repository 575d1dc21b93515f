"""Bad input to routing is refused by name, before anything is allocated."""

import numpy as np
import pytest

import numbacaps
from numbacaps import call

_X, _W = np.ones((1, 2, 3, 3, 2, 2), np.float32), np.ones((3, 2, 2, 2, 2, 2), np.float32)
_DY = np.ones((1, 3, 2, 2, 2, 2), np.float32)
_ONES = np.ones((1, 2, 3, 3), np.float32)


@pytest.mark.parametrize(
    "options, error, said",
    [
        ({"routing": "dynamc"}, ValueError, "routing is 'dynamc'.* did you mean 'dynamic'"),
        ({"iterations": 0}, ValueError, "iterations is 0; it takes 1 or more"),
        ({"iterations": 2.0}, TypeError, "iterations is 2.0; it takes an int"),
        ({"iterations": True}, TypeError, "iterations is True; it takes an int"),
        ({"iterations": np.float32(2)}, TypeError, r"iterations is np.float32\(2.0\); it takes an"),
        ({"softmax_over": "all"}, ValueError, "softmax_over is 'all'"),
        ({"routing": "em", "normalise": "parents"}, ValueError, "normalise is 'parents'"),
        ({"routing": "em", "lam": -1}, ValueError, "lam is -1; it takes a finite number"),
        ({"routing": "em", "epsilon": 0}, ValueError, "epsilon is 0.* more than 0"),
        ({"routing": "em", "lam": "1"}, TypeError, "lam is '1'; it takes a number"),
        ({"routing": "em", "lam": True}, TypeError, "lam is True; it takes a number"),
        ({"routing": "em", "lam": 10**400}, ValueError, "lam is 1000.*; it takes a finite number"),
        ({"routing": "em", "lam": np.float32("nan")}, ValueError, "lam is .*; it takes a finite"),
        ({"normalise": "all"}, ValueError, "normalise is 'all'; routing 'dynamic' takes none"),
        ({"lam": 5.0}, ValueError, "lam is 5.0; routing 'dynamic' takes none"),
        ({"epsilon": 5.0}, ValueError, "epsilon is 5.0; routing 'dynamic' takes none"),
        (
            {"routing": "em", "softmax_over": "children"},
            ValueError,
            "softmax_over is 'children'; routing 'em' takes none",
        ),
        ({"activations": _ONES}, ValueError, "activations is given; routing 'dynamic' takes none"),
        ({"routing": "em", "logits": _W[..., 0, 0]}, ValueError, "logits is given; routing 'em'"),
        (
            {"routing": "em", "activations": _ONES[:, :1]},
            ValueError,
            r"activations has shape \(1, 1, 3, 3\); it takes \(1, 2, 3, 3\)",
        ),
        ({"routing": "em", "activations": 2 * _ONES}, ValueError, "it takes values from 0 to 1"),
        (
            {"routing": "em", "beta_u": np.ones(3)},
            TypeError,
            "beta_u has dtype float64; it takes float32",
        ),
        ({"routing": "em", "beta_u": [1, 2, 3]}, TypeError, "beta_u is a list"),
        ({"logits": np.ones((3, 2), np.float32)}, ValueError, r"logits has shape \(3, 2\)"),
        ({"votes": "window"}, ValueError, "votes is 'window'"),
        ({"votes": 1}, TypeError, "votes is 1; it takes one of"),
        ({"algorithm": 5}, TypeError, "algorithm is 5; it takes one of"),
        ({"routing": np.array(["em", "em"])}, TypeError, r"routing is a ndarray of shape \(2,\)"),
        ({"votes": "sum", "routing": "em"}, ValueError, "whose children have no activations"),
        ({"algorithm": "staged"}, ValueError, "algorithm is 'staged'"),
        ({"precision": "tf16"}, ValueError, "precision is 'tf16'"),
        ({"stride": 0}, ValueError, "stride is 0"),
    ],
)
def test_refused(options, error, said):
    with pytest.raises(error, match=said):
        numbacaps.capsule_routing(_X, _W, **options)
    with pytest.raises(error, match=said):
        numbacaps.capsule_routing_backward(_X, _W, _DY, **options)


@pytest.mark.parametrize("couplings", ["no", 1, None])
def test_couplings_are_wanted_or_not(couplings):
    with pytest.raises(TypeError, match=f"couplings is {couplings!r}; it takes True or False"):
        numbacaps.capsule_routing(_X, _W, couplings=couplings)


@pytest.mark.parametrize(
    "change, error, said",
    [
        ({"dtype": "int8"}, TypeError, "dtype is int8; it takes float16"),
        ({"x_shape": (0, *_X.shape[1:])}, ValueError, "x_shape has N = 0; it takes 1 or more"),
    ],
)
def test_refused_by_explain(change, error, said):
    with pytest.raises(error, match=said):
        numbacaps.explain_routing(**({"x_shape": _X.shape, "w_shape": _W.shape} | change))


@pytest.mark.parametrize("algorithm", ["fused", "stored"])
@pytest.mark.parametrize("routing", ["dynamic", "em"])
@pytest.mark.parametrize("dtype, rows", [("float32", 27_000), ("float64", 14_000)])
def test_capsules_longer_than_local_memory(dtype, rows, routing, algorithm, monkeypatch):
    x, w = np.ones((1, 2, 1, 1, rows, 1), dtype), np.ones((2, 2, 1, 1, 1, 1), dtype)
    for name in ("new_array", "to_device"):
        monkeypatch.setattr(call, name, None)
    how = {"routing": routing, "algorithm": algorithm}
    said = f"w makes capsules of {rows} elements, of which a thread holds .* at most 524288"
    with pytest.raises(ValueError, match=said):
        numbacaps.capsule_routing(x, w, **how)
    with pytest.raises(ValueError, match=said):
        numbacaps.capsule_routing_backward(x, w, x[:, :2], **how)


@pytest.mark.parametrize("how", [{"stride": 20_000, "padding": 20_000}, {"stride": 2**70}], ids=str)
@pytest.mark.parametrize("routing", ["dynamic", "em"])
def test_numpy_takes_steps_of_any_size(routing, how):
    """What lies between is not laid out: windows of a far stride are those of one that just leaves the image."""
    near = {name: min(step, 6) for name, step in how.items()}
    by = {"routing": routing, "algorithm": "numpy"}
    results = []
    for steps in (how, near):
        found = numbacaps.capsule_routing(_X, _W, **by, **steps)
        found = found if isinstance(found, tuple) else (found,)
        dy = np.ones_like(found[0])
        found += numbacaps.capsule_routing_backward(_X, _W, dy, **by, **steps)
        results.append([one for one in found if one is not None])
    for found, wanted in zip(*results, strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_iterations_may_be_an_int_of_numpy():
    found = (numbacaps.capsule_routing(_X, _W, iterations=kind(2)) for kind in (int, np.int64))
    np.testing.assert_array_equal(*found)


def test_refused_by_the_gradient():
    with pytest.raises(ValueError, match="dy has shape"):
        numbacaps.capsule_routing_backward(_X, _W, _DY[:, :1])
    with pytest.raises(TypeError, match="detach is 1; it takes True or False"):
        numbacaps.capsule_routing_backward(_X, _W, _DY, detach=1)
    with pytest.raises(ValueError, match="needs is"):
        numbacaps.capsule_routing_backward(_X, _W, _DY, needs=("weights",))
    with pytest.raises(ValueError, match="d_activations has shape"):
        numbacaps.capsule_routing_backward(_X, _W, _DY, routing="em", d_activations=_ONES)


@pytest.mark.filterwarnings("error")
def test_numbers_may_be_numpy_s():
    for lam in (np.float32(2), np.int64(2)):
        found = numbacaps.capsule_routing(_X, _W, routing="em", lam=lam)
        np.testing.assert_array_equal(
            found[0], numbacaps.capsule_routing(_X, _W, routing="em", lam=2)[0]
        )
    yes = np.True_
    numbacaps.capsule_routing_backward(_X, _W, _DY, detach=yes)
    assert numbacaps.routing_plan(_X.shape, _W.shape, couplings=yes, algorithm="numpy")


def test_out_overlaps_what_routing_takes_besides():
    memory = np.linspace(0.1, 1, 12, dtype=np.float32)
    x, w = np.ones((1, 2, 1, 1, 2, 2), np.float32), np.ones((3, 2, 1, 1, 2, 2), np.float32)
    out = memory.reshape(1, 3, 1, 1, 2, 2)
    activations, logits = memory[4:6].reshape(1, 2, 1, 1), memory[:6].reshape(3, 2, 1, 1)
    with pytest.raises(ValueError, match="out overlaps activations; it takes memory of its own"):
        numbacaps.capsule_routing(x, w, routing="em", activations=activations, out=out)
    with pytest.raises(ValueError, match="out overlaps logits; it takes memory of its own"):
        numbacaps.capsule_routing(x, w, logits=logits, out=out)


def test_arrays_are_explained_in_their_own_dtype():
    wide = (one.astype(np.float64) for one in (_X, _W))
    said = numbacaps.explain_routing(*wide)
    assert said == numbacaps.explain_routing(_X.shape, _W.shape, "float64")
    assert said != numbacaps.explain_routing(_X, _W)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("how", [{}, {"routing": "em"}, {"votes": "sum"}])
def test_the_host_neither_warns_nor_raises(how):
    """Infinities, and results beyond float16; as on the device."""
    large, x = 60 * _X, _X.copy()
    x[0, 0, 0, 0] = np.inf
    with np.errstate(all="raise"):
        for values in (x, large, large.astype(np.float16)):
            w, dy = (60 * one.astype(values.dtype) for one in (_W, _DY))
            numbacaps.capsule_routing(values, w, algorithm="numpy", couplings=True, **how)
            numbacaps.capsule_routing_backward(values, w, dy, algorithm="numpy", **how)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"epsilon": 1e-50}, "epsilon is 1e-50; float32 takes 1.18e-38 to 3.4e"),
        ({"epsilon": 1e39}, "epsilon is 1e[+]39; float32 takes 1.18e-38 to 3.4e"),
        ({"lam": 1e39}, "lam is 1e[+]39; float32 takes 3.4e[+]38 at most"),
    ],
)
def test_numbers_that_kernels_would_round_to_0_or_infinity(how, said):
    how |= {"routing": "em"}
    with pytest.raises(ValueError, match=said):
        numbacaps.capsule_routing(_X, _W, algorithm="fused", **how)
    with pytest.raises(ValueError, match=said):
        numbacaps.routing_plan(_X.shape, _W.shape, algorithm="fused", **how)
    numbacaps.capsule_routing(_X, _W, algorithm="numpy", **how)  # in float64
