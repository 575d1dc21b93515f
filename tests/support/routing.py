"""What routing should give: the reference's loops over a batch, in float64 and in the layouts of the public functions."""

from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

import numbacaps
from numbacaps.geometry import Geometry
from numbacaps.routing import bands
from reference import routing
from reference.compare import ROUTING

#                    N  C  P  H  W KH KW  G D1 D2 D3  stride  padding dilation
CASES = {
    "ones": Geometry(1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1),
    "window": Geometry(2, 2, 3, 4, 5, 2, 3, 1, 2, 3, 2, (2, 1), (1, 0)),
    "class": Geometry(3, 2, 5, 3, 2, 3, 2, 2, 1, 2, 3),  # the window is the input; rank-3 capsules
    "dilated": Geometry(1, 4, 2, 5, 4, 2, 2, 1, 2, 2, 2, (2, 1), (0, 1), (2, 1)),  # gaps
}


@dataclass
class Wanted:
    """Results and gradients by name."""

    results: tuple
    gradients: dict


def operands(g, rng, em):
    """x, w, dy and what else the routing takes, in float32."""
    shapes = {"x": g.input_shape, "w": g.kernel_shape, "dy": g.output_shape}
    made = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    if em:
        made["activations"] = rng.uniform(0.1, 1, (g.N, g.C, g.H, g.W))
        made["beta_u"], made["beta_a"] = rng.standard_normal((2, g.P))
        made["d_activations"] = rng.standard_normal((g.N, g.P, g.OH, g.OW))
    else:
        made["logits"] = rng.standard_normal((g.P, g.C, g.KH, g.KW))
    return {name: np.float32(array) for name, array in made.items()}


def operands_of_sums(g, rng, shared=False):
    """Those of dynamic routing on votes that are summed over the window; ``shared`` by all channels is w."""
    made = operands(g, rng, em=False)
    made["logits"] = made["logits"][..., 0, 0].copy()
    if shared:
        made["w"] = made["w"][:, :1].copy()
    return made


# A problem, and bytes for which its image is a band of rows, not a whole one.
ONE_BAND = Geometry(1, 2, 2, 9, 2, 4, 1, 1, 1, 2, 2, (4, 1), (1, 0)), 768


@contextmanager
def in_bands(nbytes):
    """A ``with`` block in which bands of summed votes have room for ``nbytes``."""
    before = bands._ALWAYS, bands._SHARE
    bands._ALWAYS, bands._SHARE = nbytes, 1 << 40  # none that operands would give
    bands.bands_of.cache_clear()
    try:
        yield
    finally:
        bands._ALWAYS, bands._SHARE = before
        bands.bands_of.cache_clear()


def window(g):
    """The options of a geometry."""
    how = {"stride": g.stride, "padding": g.padding, "dilation": g.dilation}
    return how | {"product": "gab,gbc->gac"}


def want_dynamic(g, given, iterations=3, softmax_over="parents", detach=False, kind="children"):
    """What dynamic routing gives."""
    x, w, dy, logits = (np.float64(given[name]) for name in ("x", "w", "dy", "logits"))
    how = g.stride, g.padding, g.dilation, kind
    votes, _ = routing.routing_votes(x, w, *how)
    logits = logits.reshape(g.P, -1).T
    dv = np.moveaxis(dy.reshape(g.N, g.P, g.L, -1), 1, 2)
    found = [routing.dynamic_routing(u, iterations, logits, softmax_over) for u in votes]
    back = [
        routing.dynamic_routing_backward(u, d, iterations, logits, softmax_over, detach)
        for u, d in zip(votes, dv)
    ]
    d_votes = np.array([one[0] for one in back])
    dx, dw = routing.routing_votes_backward(x, w, d_votes, *how)
    d_logits = sum(one[1] for one in back).T.reshape(given["logits"].shape)
    gradients = {"x": dx, "w": dw, "logits": d_logits}
    return Wanted((_capsules(g, found), _couplings(g, found, given["logits"])), gradients)


def without_logits(g, rng, **form):
    """Operands of dynamic routing without logits, and what they should give."""
    given = operands(g, rng, em=False)
    given["logits"][:] = 0
    wanted = want_dynamic(g, given, **form)
    del given["logits"], wanted.gradients["logits"]
    return given, wanted


def want_em(g, given, iterations=3, lam=1.0, normalise="window", detach=False):
    """What EM routing gives."""
    given = {name: np.float64(array) for name, array in given.items()}
    x, w, betas = given["x"], given["w"], (given["beta_u"], given["beta_a"])
    how = g.stride, g.padding, g.dilation
    votes, capsule = routing.routing_votes(x, w, *how)
    a = given["activations"].reshape(g.N, -1)
    a = np.where(capsule >= 0, a[:, np.maximum(capsule, 0)], 0)
    d_mu, d_out = (
        np.moveaxis(given[name].reshape(g.N, g.P, g.L, -1), 1, 2)
        for name in ("dy", "d_activations")
    )
    form = iterations, lam, normalise, capsule
    found = [routing.em_routing(V, of_image, *betas, *form) for V, of_image in zip(votes, a)]
    back = [
        routing.em_routing_backward(V, of_image, *betas, mu, out[..., 0], *form, detach=detach)
        for V, of_image, mu, out in zip(votes, a, d_mu, d_out)
    ]
    dx, dw = routing.routing_votes_backward(x, w, np.array([one[0] for one in back]), *how)
    da = np.zeros((g.N, g.C * g.H * g.W + 1))
    for image, one in zip(da, back):
        np.add.at(image, capsule, one[1])
    gradients = {"x": dx, "w": dw, "activations": da[:, :-1].reshape(given["activations"].shape)}
    gradients["beta_u"], gradients["beta_a"] = (sum(one[i] for one in back) for i in (2, 3))
    a_out = np.moveaxis(np.array([one[1] for one in found]), 2, 1)
    a_out = a_out.reshape(g.N, g.P, g.OH, g.OW)
    shape = (g.P, g.C, g.KH, g.KW)
    couplings = _couplings(g, [one[1:] for one in found], np.empty(shape))
    return Wanted((_capsules(g, found), a_out, couplings), gradients)


def chosen(given, names):
    """Operands of some names, those that are given."""
    return {name: given[name] for name in names if name in given}


def close(found, wanted, tolerance=ROUTING):
    """Whether an array is what it should be, of its shape, relative to its largest element."""
    found = found.copy_to_host() if hasattr(found, "copy_to_host") else found
    scale = np.abs(wanted).max()
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance * (scale or 1))


def by(who):
    """The options by which an algorithm computes; "ieee" is "fused" without tensor cores."""
    return {"algorithm": "fused", "precision": "ieee"} if who == "ieee" else {"algorithm": who}


def _several(found):
    return found if isinstance(found, tuple) else (found,)


def check(g, given, wanted, tolerance=ROUTING, algorithm="auto", **form):
    """Whether capsule_routing, with couplings and without, and its gradients are what they should be."""
    form = window(g) | form | by(algorithm)
    detach = {"detach": form.pop("detach", False)}
    operands = chosen(given, ("activations", "beta_u", "beta_a", "logits"))
    arrays = given["x"], given["w"]
    results = numbacaps.capsule_routing(*arrays, couplings=True, **operands, **form)
    for found, want in zip(results, wanted.results, strict=True):
        close(found, want, tolerance)
    # Without them less is kept, so other kernels may run.
    y, *_ = _several(numbacaps.capsule_routing(*arrays, **operands, **form))
    close(y, wanted.results[0], tolerance)
    operands |= chosen(given, ("d_activations",))
    form |= detach
    found = numbacaps.capsule_routing_backward(*arrays, given["dy"], **operands, **form)
    for name, want in wanted.gradients.items():
        close(getattr(found, name), want, tolerance)


def _capsules(g, found):
    capsules = np.moveaxis(np.array([one[0] for one in found]), 2, 1)
    return capsules.reshape(g.output_shape)


def _couplings(g, found, logits):
    couplings = np.moveaxis(np.array([one[1] for one in found]), 3, 1)
    taps = logits.shape[2:] or (1, 1)
    return couplings.reshape(g.N, g.P, g.OH, g.OW, g.C, *taps)


def check_captured(launch, results):
    """Compare what ``launch(stream)`` writes to device arrays with what it writes as a CUDA graph, bit by bit."""
    from experiments.measuring.gpu_time import clock

    stream = clock().numba
    clock().synchronize()  # operands are copied on the default stream; copies of 64 KiB or less may end after the call returns
    launch(stream)
    stream.synchronize()
    wanted = [result.copy_to_host() for result in results]
    replay = clock().capture([lambda: launch(stream)])
    for result in results:
        result.copy_to_device(np.full(result.shape, np.nan, np.float32))
    clock().synchronize()
    replay.run()
    clock().synchronize()
    for result, want in zip(results, wanted, strict=True):
        np.testing.assert_array_equal(result.copy_to_host(), want)
