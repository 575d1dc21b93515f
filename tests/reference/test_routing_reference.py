"""The routing reference: what the papers say of it, and its gradients by finite differences."""

import numpy as np
import pytest

import reference
from reference import routing

_STEP = 1e-6
_FORMS = [(over, detach) for over in ("parents", "children") for detach in (False, True)]


def _slopes(function, arrays, which, places):
    """Central differences of a number by some elements of one array."""
    found = []
    for place in places:
        sides = []
        for step in (_STEP, -_STEP):
            moved = [array.copy() for array in arrays]
            moved[which][place] += step
            sides.append(function(*moved))
        found.append((sides[0] - sides[1]) / (2 * _STEP))
    return np.array(found)


def _check(function, arrays, gradients, rng):
    for which, gradient in enumerate(gradients):
        everywhere = list(np.ndindex(gradient.shape))
        places = [everywhere[i] for i in rng.permutation(len(everywhere))[:12]]
        want = _slopes(function, arrays, which, places)
        np.testing.assert_allclose([gradient[p] for p in places], want, rtol=1e-5, atol=1e-7)


def test_votes_are_the_convolutions_products(rng):
    x, w = rng.standard_normal((2, 2, 4, 5, 2, 1, 3)), rng.standard_normal((3, 2, 2, 3, 2, 3, 2))
    how = (2, 1), (1, 0), 1
    votes, capsule = routing.routing_votes(x, w, *how)
    want = reference.capsule_votes_einsum(x, w, *how)
    N, P, OH, OW = want.shape[:4]
    want = np.moveaxis(want.reshape(N, P, OH * OW, 12, 4), 1, 3)
    np.testing.assert_allclose(votes, want, atol=1e-12)
    assert capsule.max() == 2 * 4 * 5 - 1 and (capsule == -1).any()
    summed, _ = routing.routing_votes(x, w, *how, kind="sum")
    np.testing.assert_allclose(summed.sum(2), votes.sum(2), atol=1e-12)


@pytest.mark.parametrize("kind", routing.KINDS)
@pytest.mark.parametrize("shared", [False, True])
def test_gradients_of_votes(kind, shared, rng):
    if shared and kind == "children":
        pytest.skip("a child of a window has a kernel of its own")
    x = rng.standard_normal((1, 2, 4, 3, 1, 2, 2))
    w = rng.standard_normal((2, 1 if shared else 2, 2, 2, 1, 2, 3))
    how = (1, 1), (1, 0), (2, 1)
    d_votes = rng.standard_normal(routing.routing_votes(x, w, *how, kind)[0].shape)
    gradients = routing.routing_votes_backward(x, w, d_votes, *how, kind)

    def loss(x, w):
        return np.sum(d_votes * routing.routing_votes(x, w, *how, kind)[0])

    _check(loss, (x, w), gradients, rng)


def test_one_dynamic_iteration_is_a_squashed_mean(rng):
    u = rng.standard_normal((2, 5, 3, 4))
    v, c = routing.dynamic_routing(u, 1)
    s = u.sum(1) / 3
    square = np.sum(s * s, -1, keepdims=True)
    np.testing.assert_allclose(v, square / (1 + square) * s / np.sqrt(square))
    np.testing.assert_allclose(c, 1 / 3)


def test_dynamic_couplings_add_up(rng):
    u = rng.standard_normal((2, 5, 3, 4))
    np.testing.assert_allclose(routing.dynamic_routing(u)[1].sum(2), 1)
    np.testing.assert_allclose(routing.dynamic_routing(u, softmax_over="children")[1].sum(1), 1)


@pytest.mark.parametrize("over, detach", _FORMS)
def test_dynamic_gradients(over, detach, rng):
    u, logits = rng.standard_normal((2, 4, 3, 2)), rng.standard_normal((4, 3))
    dv = rng.standard_normal((2, 3, 2))
    du, d_logits = routing.dynamic_routing_backward(u, dv, 3, logits, over, detach)
    if detach:
        constant = routing.dynamic_routing(u, 3, logits, over)[1]

        def loss(u):
            s = np.einsum("lij,lije->lje", constant, u)
            return np.sum(dv * np.array([[routing.squash(one) for one in row] for row in s]))

        return _check(loss, (u,), (du,), rng)

    def loss(u, logits):
        return np.sum(dv * routing.dynamic_routing(u, 3, logits, over)[0])

    return _check(loss, (u, logits), (du, d_logits), rng)


def _em_operands(rng, places=4):
    V, a = rng.standard_normal((2, 4, 3, 2)), rng.uniform(0.2, 1, (2, 4))
    return V, a, rng.standard_normal(3), rng.standard_normal(3)


def test_em_assignments_add_up(rng):
    operands = _em_operands(rng)
    capsule = np.array([[0, 1, 2, -1], [1, 2, 3, 4]])
    _, _, R = routing.em_routing(*operands, capsule=capsule)
    np.testing.assert_allclose(R.sum(2), 1)
    _, _, R = routing.em_routing(*operands, normalise="all", capsule=capsule)
    for number in range(5):
        np.testing.assert_allclose(R[capsule == number].sum(), 1)


def test_the_first_m_step_is_the_votes_mean_and_variance(rng):
    V, a, beta_u, beta_a = _em_operands(rng)
    mu, out, _ = routing.em_routing(V, a, beta_u, beta_a, 1, lam=2.0, epsilon=0)
    mean = np.einsum("li,lije->lje", a, V) / a.sum(1)[:, None, None]
    np.testing.assert_allclose(mu, mean)
    var = np.einsum("li,lije->lje", a, (V - mean[:, None]) ** 2) / a.sum(1)[:, None, None]
    cost = (beta_u[:, None] + np.log(np.sqrt(var))).sum(-1) * (a.sum(1) / 3)[:, None]
    np.testing.assert_allclose(out, 1 / (1 + np.exp(-2.0 * (1 - 0.95) * (beta_a - cost))))


@pytest.mark.parametrize("normalise", ["window", "all"])
@pytest.mark.parametrize("detach", [False, True])
def test_em_gradients(normalise, detach, rng):
    operands = _em_operands(rng)
    d_mu, d_out = rng.standard_normal((2, 3, 2)), rng.standard_normal((2, 3))
    how = (3, 1.0, normalise, np.array([[0, 1, 2, -1], [1, 2, 3, 4]]), 1e-6)
    gradients = routing.em_routing_backward(*operands, d_mu, d_out, *how, detach=detach)
    R = routing.em_routing(*operands, *how)[2]

    def loss(V, a, beta_u, beta_a):
        if not detach:
            mu, out, _ = routing.em_routing(V, a, beta_u, beta_a, *how)
        else:
            w = R * a[..., None]
            S = w.sum(1)
            mu = np.einsum("lij,lije->lje", w, V) / S[..., None]
            var = np.einsum("lij,lije->lje", w, (V - mu[:, None]) ** 2) / S[..., None] + 1e-6
            cost = S * (2 * beta_u + 0.5 * np.log(var).sum(-1))
            out = 1 / (1 + np.exp(-routing.inverse_temperature(1.0, 2) * (beta_a - cost)))
        return np.sum(d_mu * mu) + np.sum(d_out * out)

    _check(loss, operands, gradients, rng)


def test_nothing_but_zeros_routes_to_zeros():
    u, dv = np.zeros((1, 3, 2, 2)), np.ones((1, 2, 2))
    assert not routing.dynamic_routing(u)[0].any()
    assert np.isfinite(routing.dynamic_routing_backward(u, dv)[0]).all()
    a, beta = np.zeros((1, 3)), np.zeros(2)
    mu, out, _ = routing.em_routing(u, a, beta, beta)
    assert not mu.any() and np.all(out == 0.5)
    gradients = routing.em_routing_backward(u, a, beta, beta, dv, dv[..., 0])
    assert all(np.isfinite(gradient).all() for gradient in gradients)
