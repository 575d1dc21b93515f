"""The reference beside the convolutions: gradients by finite differences, known answers."""

import numpy as np
import pytest

from reference import nn

_STEP = 1e-6


def _by_differences(function, x):
    """Gradient of a scalar function in float64, an element at a time."""
    gradient = np.empty_like(x)
    for at in np.ndindex(x.shape):
        ends = []
        for sign in (1, -1):
            moved = x.copy()
            moved[at] += sign * _STEP
            ends.append(function(moved))
        gradient[at] = (ends[0] - ends[1]) / (2 * _STEP)
    return gradient


def _away_from(x, *kinks):
    """x with every value that lies within a few steps of a kink moved off it."""
    for kink in kinks:
        x = np.where(np.abs(x - kink) < 10 * _STEP, x + 0.1, x)
    return x


def test_leaky_relu(rng):
    x, dy = _away_from(rng.standard_normal((3, 5)), 0), rng.standard_normal((3, 5))
    want = _by_differences(lambda x: np.sum(dy * nn.leaky_relu(x, 0.1)), x)
    np.testing.assert_allclose(nn.leaky_relu_backward(x, dy, 0.1), want, rtol=1e-7)
    assert nn.leaky_relu(np.array([-2.0, 0, 3]), 0.1).tolist() == [-0.2, 0, 3]


@pytest.mark.parametrize("scale", [1e-4, 1e-2, 1, 30])
@pytest.mark.parametrize("group", [1, 4])
def test_squash(group, scale, rng):
    x, dy = scale * rng.standard_normal((2, 8)), rng.standard_normal((2, 8))

    def total(moved):
        return np.sum(dy * nn.squash(moved, group))

    want = _by_differences(lambda unit: total(scale * unit), x / scale) / scale
    np.testing.assert_allclose(nn.squash_backward(x, dy, group), want, rtol=1e-5, atol=1e-8 / scale)


def test_squash_at_zero_and_far_out():
    """Nothing comes of nothing, the gradient passes, and long capsules come close to length 1."""
    zero, dy = np.zeros((1, 4)), np.array([[1.0, -2, 3, 4]])
    assert np.array_equal(nn.squash(zero, 4), zero)
    factor = (1 - np.exp(-np.sqrt(1e-7))) / np.sqrt(1e-7)
    np.testing.assert_allclose(nn.squash_backward(zero, dy, 4), factor * dy, rtol=1e-9)
    assert np.linalg.norm(nn.squash(np.array([[30.0, 40, 0, 0]]), 4)) == pytest.approx(1)
    assert np.linalg.norm(nn.squash(np.array([[0.3, 0.4, 0, 0]]), 4)) == pytest.approx(
        1 - np.exp(-0.5), rel=1e-6
    )


def test_squash_jacobian_is_whole(rng):
    jacobian = nn.squash_jacobian(rng.standard_normal(3))
    assert np.all(np.abs(jacobian[~np.eye(3, dtype=bool)]) > 1e-3)


def test_capsule_length(rng):
    x, dv = rng.standard_normal((3, 4, 5)), rng.standard_normal((3, 4))
    want = _by_differences(lambda x: np.sum(dv.ravel() * nn.capsule_length(x, 5)), x)
    np.testing.assert_allclose(nn.capsule_length_backward(x, dv, 5), want, rtol=1e-6, atol=1e-9)
    assert not nn.capsule_length_backward(np.zeros((1, 5)), np.ones(1), 5).any()


def test_margin_loss(rng):
    lengths = _away_from(rng.uniform(0, 1, (6, 4)), 0.1, 0.5)
    labels = rng.integers(0, 4, 6)
    want = _by_differences(lambda v: nn.margin_loss(v, labels), lengths)
    np.testing.assert_allclose(
        nn.margin_loss_backward(lengths, labels), want, rtol=1e-6, atol=1e-10
    )


def test_margin_loss_by_hand():
    lengths = np.array([[0.4, 0.3, 0.05], [0.6, 0.6, 0.1]])
    # image 0: (0.5 - 0.4)^2 + 0.5 * (0.3 - 0.1)^2; image 1: 0.5 * (0.6 - 0.1)^2
    assert nn.margin_loss(lengths, np.array([0, 1])) == pytest.approx((0.01 + 0.02 + 0.125) / 2)
    assert nn.hits(lengths, np.array([0, 1])) == 1  # of a tie the first one counts
    assert nn.hits(lengths, np.array([0, 0])) == 2


def test_adam_first_steps():
    """The first step moves by the rate, whatever the gradient; step 4,001 by half of it."""
    zeros = np.zeros(2)
    first, second, weight = nn.adam(1, np.array([3.0, -1e-3]), zeros, zeros, zeros)
    np.testing.assert_allclose(weight, [-1e-2, 1e-2], rtol=1e-4)
    settled = np.ones(2), np.ones(2)
    moved = [nn.adam(step, np.ones(2), *settled, zeros)[2] for step in (4000, 4001)]
    np.testing.assert_allclose(moved[1] / moved[0], 0.5, rtol=1e-2)


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ("00000000 " * 4, "00000000 " * 2, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff " * 4, "ffffffff " * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            "243f6a88 85a308d3 13198a2e 03707344",
            "a4093822 299f31d0",
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_philox_gives_the_published_words(counter, key, words):
    numbers = ([int(word, 16) for word in text.split()] for text in (counter, key))
    assert [f"{word:08x}" for word in nn.philox(*numbers)] == words.split()


@pytest.mark.slow
def test_he_normal_is_normal():
    from scipy import stats  # the tiers that leave this out need none

    drawn = nn.he_normal(2000, 50, seed=7, layer=1)
    assert stats.kstest(drawn / np.sqrt(2 / 50), "norm").pvalue > 0.01
    for other in (
        {"seed": 8, "layer": 1},
        {"seed": 7, "layer": 2},
        {"seed": 7 + 2**32, "layer": 1},
    ):
        assert abs(np.corrcoef(drawn[:500], nn.he_normal(500, 50, **other))[0, 1]) < 0.15
