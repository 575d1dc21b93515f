"""Every kernel of numbacaps.nn against the reference in float64, its output NaN beforehand."""

import numpy as np
import pytest

from numbacaps.device import launch
from numbacaps.device.target import SIMULATED, cuda
from numbacaps.fused.activation import (
    squash_factor,
    squash_slopes,
    squash_slopes_of_result,
)
from numbacaps.nn.kernels import adam as adam_module
from numbacaps.nn.kernels.adam import Adam, adam_step
from numbacaps.nn.kernels.capsule_length import capsule_length, capsule_length_backward
from numbacaps.nn.kernels.he_normal import he_normal
from numbacaps.nn.kernels.leaky_relu import leaky_relu, leaky_relu_backward
from numbacaps.nn.kernels.margin_loss import margin_loss, margin_loss_backward
from numbacaps.nn.kernels.squash import squash, squash_backward
from reference import assert_close, nn
from tests.support.cases import nan

pytestmark = pytest.mark.tiers("simulator", "gpu")

# case: (images, groups an image, elements a group)
_SMALL = {"primes": (3, 5, 7), "ones": (1, 1, 1), "published": (2, 2, 8), "class": (2, 1, 32)}
_LARGE = {
    "primes": (7, 53, 11),
    "ones": (1, 1, 1),
    "published": (128, 484, 8),
    "class": (99, 10, 32),
}
_SIZES = _SMALL if SIMULATED else _LARGE
_CASES = [(case, "float32") for case in _SIZES] + [("primes", "float64")]
_IMAGES_AT_ONCE = 65536  # more images than a grid has blocks along an axis

sizes = pytest.mark.parametrize(("case", "dtype"), _CASES)


def _device(array, dtype):
    return cuda.to_device(np.ascontiguousarray(array, dtype))


def _rounded(rng, shape, dtype, scale=1.0):
    """Random numbers that the dtype holds exactly, in float64."""
    return (scale * rng.standard_normal(shape)).astype(dtype).astype(np.float64)


@pytest.mark.sanitize
@sizes
def test_leaky_relu(case, dtype, rng):
    shape = _SIZES[case]
    x, dy = (_rounded(rng, shape, dtype) for _ in range(2))
    x[0, 0, 0] = 0.0
    y, dx = nan(shape, dtype), nan(shape, dtype)
    leaky_relu(_device(x, dtype), y, 0.1)
    leaky_relu_backward(_device(x, dtype), _device(dy, dtype), dx, 0.1)
    assert_close(y.copy_to_host(), nn.leaky_relu(x, 0.1), 1)
    assert_close(dx.copy_to_host(), nn.leaky_relu_backward(x, dy, 0.1), 1)


def test_leaky_relu_in_place(rng):
    x, dy = _rounded(rng, (2, 9), "float32"), _rounded(rng, (2, 9), "float32")
    y, dx = _device(x, "float32"), _device(dy, "float32")
    leaky_relu(y, y, 0.1)
    leaky_relu_backward(y, dx, dx, 0.1)  # y has the sign of x
    assert_close(y.copy_to_host(), nn.leaky_relu(x, 0.1), 1)
    assert_close(dx.copy_to_host(), nn.leaky_relu_backward(x, dy, 0.1), 1)


@pytest.mark.sanitize
@pytest.mark.parametrize("slope", [1.0, 0.1])
@sizes
def test_squash(case, dtype, slope, rng):
    images, groups, group = shape = _SIZES[case]
    # From capsules far shorter than the regulariser to long ones, a length an image.
    scale = np.logspace(-6, 1, images)[:, None, None] if images > 1 else 1.0
    x, dy = _rounded(rng, shape, dtype, scale), _rounded(rng, shape, dtype)
    y, dx = nan(shape, dtype), nan(shape, dtype)
    squash(_device(x, dtype), y, group, slope)
    squash_backward(_device(x, dtype), _device(dy, dtype), dx, group, slope)
    a = nn.leaky_relu(x, slope)
    da = nn.squash_backward(a, dy, group)
    for n in range(images):  # each image by its own scale
        assert_close(y.copy_to_host()[n], nn.squash(a, group)[n], group)
        want = nn.leaky_relu_backward(x, da, slope)[n]
        assert_close(dx.copy_to_host()[n], want, group)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_squash_at_zero(dtype, rng):
    dy = _rounded(rng, (1, 8), dtype)
    x, y, dx = _device(np.zeros((1, 8)), dtype), nan((1, 8), dtype), nan((1, 8), dtype)
    squash(x, y, 4)
    squash_backward(x, _device(dy, dtype), dx, 4)
    np.testing.assert_array_equal(y.copy_to_host(), 0)
    assert_close(dx.copy_to_host(), nn.squash_backward(np.zeros((1, 8)), dy, 4), 1)


def test_squash_refuses_groups_that_do_not_fit():
    x = cuda.to_device(np.zeros((2, 6), np.float32))
    for call in (lambda: squash(x, x, 4), lambda: squash_backward(x, x, x, 4)):
        with pytest.raises(ValueError, match="group is 4; it takes a divisor of an image's 6"):
            call()


@pytest.mark.sanitize
@sizes
def test_capsule_length(case, dtype, rng):
    *lead, size = shape = _SIZES[case]
    x, dv = _rounded(rng, shape, dtype), _rounded(rng, lead, dtype)
    if case != "ones":
        x[0, 0] = 0.0
    lengths, dx = nan(lead, dtype), nan(shape, dtype)
    capsule_length(_device(x, dtype), lengths)
    capsule_length_backward(_device(x, dtype), lengths, _device(dv, dtype), dx)
    assert_close(lengths.copy_to_host(), nn.capsule_length(x, size).reshape(lead), size)
    assert_close(dx.copy_to_host(), nn.capsule_length_backward(x, dv, size), size)


@pytest.mark.sanitize
@pytest.mark.parametrize("lanes", [2, 4] if SIMULATED else [2, 32, 256])
@pytest.mark.parametrize(
    ("case", "dtype"), [("primes", "float32"), ("primes", "float64"), ("ones", "float32")]
)
def test_margin_loss(case, dtype, lanes, rng):
    N, P = {"ones": (1, 1), "primes": (7, 3) if SIMULATED else (997, 11)}[case]
    lengths = rng.uniform(0, 1, (N, P)).astype(dtype).astype(np.float64)
    lengths[0] = 0.6  # all alike: a tie
    labels = rng.integers(0, P, N)
    on_device = _device(lengths, dtype), cuda.to_device(labels)
    losses, hits = nan(3, dtype), cuda.to_device(np.full(3, -1))
    margin_loss(*on_device, cuda.to_device(np.array([7])), losses, hits, lanes=lanes)
    d_lengths = nan((N, P), dtype)
    margin_loss_backward(*on_device, d_lengths)
    found = losses.copy_to_host()
    assert_close(found[1:2], [nn.margin_loss(lengths, labels)], N * P)
    assert np.isnan(found[[0, 2]]).all(), "a step writes its own place alone"
    assert hits.copy_to_host().tolist() == [-1, nn.hits(lengths, labels), -1]
    if case != "ones":
        assert_close(d_lengths.copy_to_host(), nn.margin_loss_backward(lengths, labels), 1)


def test_margin_loss_of_nan_is_nan():
    lengths = _device([[np.nan, 0.5]], "float32")
    losses, zero = nan(1, "float32"), cuda.to_device(np.zeros(1, np.int64))
    losses.copy_to_device(np.zeros(1, np.float32))
    margin_loss(lengths, zero, zero, losses, cuda.to_device(np.zeros(1, np.int64)), lanes=2)
    assert np.isnan(losses.copy_to_host()[0])


@pytest.mark.sanitize
@pytest.mark.parametrize(("case", "dtype"), [("primes", "float32"), ("primes", "float64")])
def test_adam(case, dtype, rng):
    count = 13 if SIMULATED else 30011
    weight = want = _rounded(rng, count, dtype, 0.01)  # of the size of what a step moves
    first = second = np.zeros(count)
    moments = _device(first, dtype), _device(second, dtype)
    weights, step = _device(weight, dtype), cuda.to_device(np.zeros(1, np.int64))
    factors = nan(2, dtype)
    for t in range(1, 4):
        gradient = _rounded(rng, count, dtype, 10.0 ** rng.integers(-6, 2, count))
        adam_step(Adam(), _device(gradient, dtype), *moments, weights, step, factors)
        first, second, want = nn.adam(t, gradient, first, second, want)
        assert step.copy_to_host()[0] == t
        assert_close(weights.copy_to_host(), want, 16)
        for have, moment in zip(moments, (first, second)):
            assert_close(have.copy_to_host(), moment, t)


@pytest.mark.parametrize("done", [0, 1, 3999, 4000, 8000, 40_000])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_adam_factors_at_any_step(dtype, done):
    """Where beta^t is almost 1, where it is almost 0, and on both sides of a halving."""
    step, factors = cuda.to_device(np.array([done])), nan(2, dtype)
    one = [cuda.to_device(np.zeros(1, dtype)) for _ in range(4)]
    adam_step(Adam(), *one, step, factors)
    t = done + 1
    want = [1e-2 * 0.5 ** (done // 4000) / (1 - 0.9**t), (1 - 0.999**t) ** -0.5]
    rtol = {"float32": 1e-6, "float64": 1e-12}[dtype]
    np.testing.assert_allclose(factors.copy_to_host(), want, rtol=rtol)
    assert Adam().rate_of(done) == 1e-2 * 0.5 ** (done // 4000)


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ({"rate": 0}, "rate is 0; it takes more than 0"),
        ({"rate": np.inf}, "rate is inf"),
        ({"epsilon": 10**400}, "epsilon is 1000.*; it takes a number that a float holds"),
        ({"beta1": 1.0}, "beta1 is 1.0; it takes between 0 and 1"),
        ({"epsilon": -1}, "epsilon is -1"),
        ({"halve_every": 0}, "halve_every is 0; it takes 1 or more"),
    ],
)
def test_adam_refuses(what, said):
    with pytest.raises(ValueError, match=said):
        Adam(**what)


@pytest.mark.sanitize
@pytest.mark.parametrize(("case", "dtype"), [("primes", "float32"), ("primes", "float64")])
def test_he_normal(case, dtype):
    count = 53 if SIMULATED else 4999
    weights, seed = nan(count, dtype), 12345 + (6789 << 32)
    he_normal(weights, 18, seed, 3)
    assert_close(weights.copy_to_host(), nn.he_normal(count, 18, seed, 3), 1 << 6)


@pytest.mark.parametrize("threads", (1, 3, 32))
def test_tiny_blocks(threads, rng):
    """Groups and capsules that lie in several blocks."""
    x, dy, dv = (_rounded(rng, shape, "float32") for shape in ((2, 3, 5), (2, 3, 5), (2, 3)))
    on_device = _device(x, "float32"), _device(dy, "float32")
    y, dx, lengths, d_capsules = (
        nan(shape, "float32") for shape in (x.shape, x.shape, (2, 3), x.shape)
    )
    squash(on_device[0], y, 5, threads=threads)
    squash_backward(*on_device, dx, 5, threads=threads)
    capsule_length(on_device[0], lengths, threads=threads)
    scores = lengths, _device(dv, "float32")
    capsule_length_backward(on_device[0], *scores, d_capsules, threads=threads)
    assert_close(y.copy_to_host(), nn.squash(x, 5), 5)
    assert_close(dx.copy_to_host(), nn.squash_backward(x, dy, 5), 5)
    assert_close(lengths.copy_to_host().ravel(), nn.capsule_length(x, 5), 5)
    assert_close(d_capsules.copy_to_host(), nn.capsule_length_backward(x, dv, 5), 5)


@pytest.mark.parametrize("blocks", (1, 7))
def test_few_blocks(blocks, rng, monkeypatch):
    """Blocks walk images in uneven steps."""
    monkeypatch.setattr(launch, "BLOCKS", blocks)
    x, dy = _rounded(rng, (10, 2, 3), "float32"), _rounded(rng, (10, 2, 3), "float32")
    y, dx = nan(x.shape, "float32"), nan(x.shape, "float32")
    squash(_device(x, "float32"), y, 3)
    leaky_relu_backward(_device(x, "float32"), _device(dy, "float32"), dx, 0.1)
    assert_close(y.copy_to_host(), nn.squash(x, 3), 3)
    assert_close(dx.copy_to_host(), nn.leaky_relu_backward(x, dy, 0.1), 1)


@pytest.mark.tiers("gpu")  # on the simulator one block walks all images anyway
def test_many_images():
    """Blocks walk the images that the grid has no place for."""
    x = np.arange(2.0 * _IMAGES_AT_ONCE, dtype=np.float32).reshape(-1, 2)
    y = nan(x.shape, "float32")
    leaky_relu(cuda.to_device(x), y, 0.1)
    np.testing.assert_array_equal(y.copy_to_host(), x)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_slopes_of_squash_at_any_length(dtype):
    """From where the root is regularised to where exp(-n) is 0."""
    ONE = np.dtype(dtype).type(1)

    @cuda.jit
    def kernel(squares, slopes):
        i = cuda.grid(1)
        if i < squares.size:
            slopes[i, 0], slopes[i, 1] = squash_slopes(squares[i], ONE)
            slopes[i, 2], slopes[i, 3] = squash_slopes_of_result(squares[i])

    squares = np.geomspace(1e-7, 1e6, 40 if SIMULATED else 4000).astype(dtype)
    found = nan((squares.size, 4), dtype)
    kernel[-(-squares.size // 32), 32](_device(squares, dtype), found)
    f, h, again, k = found.copy_to_host().astype(np.float64).T
    length = np.sqrt(squares.astype(np.float64))
    wanted = -np.expm1(-length) / length
    slope = (np.exp(-length) - wanted) / length**2
    near, lost = (5e-7, 2e-3) if dtype == "float32" else (1e-14, 1e-11)
    np.testing.assert_allclose(f, wanted, rtol=near)
    np.testing.assert_array_equal(again, f)
    # exp(-n) - f loses digits where n is small.
    np.testing.assert_allclose(h, slope, rtol=lost)
    np.testing.assert_allclose(k, slope / wanted**2, rtol=lost)


# ---- numbers at the ends of what a dtype holds


_HUGE = {"float32": (2e19, 1e25, 3e38), "float64": (2e154, 1e200, 1e308)}
_HUGE_CASES = [(dtype, scale) for dtype in _HUGE for scale in _HUGE[dtype]]


@pytest.mark.filterwarnings("ignore:.*(overflow|invalid value) encountered")  # on the simulator
@pytest.mark.parametrize(("dtype", "scale"), _HUGE_CASES)
def test_squash_of_numbers_whose_squares_overflow(dtype, scale):
    """Finite, and as the reference has it in the same dtype; the other group has nothing of it."""
    x = np.array([[1.0, -0.5, 0, 0.25, 1e-3, 2e-3, 3e-3, -4e-3]]).astype(dtype)
    x[0, :4] *= np.asarray(scale, dtype)
    dy = np.linspace(-20, 30, 8).reshape(1, 8).astype(dtype)
    y, dx = nan(x.shape, dtype), nan(x.shape, dtype)
    squash(_device(x, dtype), y, 4)
    squash_backward(_device(x, dtype), _device(dy, dtype), dx, 4)
    y, dx = y.copy_to_host(), dx.copy_to_host()
    for found, want in ((y, nn.squash(x, 4)), (dx, nn.squash_backward(x, dy, 4))):
        assert np.isfinite(found).all()
        for group in (slice(0, 4), slice(4, 8)):
            np.testing.assert_allclose(found[0, group], want[0, group], rtol=1e-5)
    assert np.linalg.norm(y[0, :4].astype(np.float64)) >= 0.9, "not taken for nothing"


@pytest.mark.parametrize("scale", [1e3, 1e10, 1e16, 1e19])
def test_squash_gradient_of_long_capsules(scale):
    """Both of its terms count, however long a capsule is."""
    x, dy = scale * np.array([[0.5, -0.25, 0.75, 0.125]]), np.array([[1.0, 2, -3, 4]])
    dx = nan(x.shape, "float32")
    squash_backward(_device(x, "float32"), _device(dy, "float32"), dx, 4)
    np.testing.assert_allclose(dx.copy_to_host(), nn.squash_backward(x, dy, 4), rtol=1e-5)


def test_slopes_of_an_overflow_are_those_of_a_constant():
    ONE = np.float32(1)

    @cuda.jit
    def kernel(squares, slopes):
        i = cuda.grid(1)
        if i < squares.size:
            slopes[i, 0] = squash_factor(squares[i])
            slopes[i, 1], slopes[i, 2] = squash_slopes(squares[i], ONE)
            slopes[i, 3], slopes[i, 4] = squash_slopes_of_result(squares[i])

    found = nan((2, 5), "float32")
    kernel[1, 32](_device([np.inf, np.nan], "float32"), found)
    overflow, nothing = found.copy_to_host()
    factor = np.finfo(np.float32).max ** -0.5
    np.testing.assert_allclose(overflow, [factor, factor, 0, factor, 0], rtol=1e-6)
    assert np.isnan(nothing).all(), "NaN stays NaN"


@pytest.mark.parametrize("slope", [0.1, 2.0])
def test_squash_backward_at_a_zero_among_others(slope, rng):
    """LeakyReLU's gradient at 0 is that of a negative number."""
    x, dy = _rounded(rng, (1, 8), "float32"), _rounded(rng, (1, 8), "float32")
    x[0, [1, 6]] = 0.0
    dx = nan(x.shape, "float32")
    squash_backward(_device(x, "float32"), _device(dy, "float32"), dx, 4, slope)
    da = nn.squash_backward(nn.leaky_relu(x, slope), dy, 4)
    assert np.abs(da[0, [1, 6]]).min() > 1e-3
    assert_close(dx.copy_to_host(), nn.leaky_relu_backward(x, da, slope), 4)


def test_a_length_of_nan_is_no_hit():
    nothing = np.nan
    lengths = [[nothing, 0.5], [nothing, 0.5], [0.5, nothing], [0.5, nothing], [0.6, 0.5]]
    labels = np.array([0, 1, 0, 1, 0])
    hits = cuda.to_device(np.zeros(1, np.int64))
    zero = cuda.to_device(np.zeros(1, np.int64))
    arrays = _device(lengths, "float32"), cuda.to_device(labels), zero
    margin_loss(*arrays, nan(1, "float32"), hits, lanes=2)
    assert hits.copy_to_host()[0] == 1 == nn.hits(np.array(lengths), labels)
    one = _device([[nothing]], "float32"), zero, zero  # a single class, which no other length beats
    margin_loss(*one, nan(1, "float32"), hits, lanes=2)
    assert hits.copy_to_host()[0] == 0 == nn.hits(np.array([[nothing]]), np.array([0]))


# ---- Adam's settings, and its step cut in two


def test_adams_settings_are_pythons_numbers():
    made = Adam(np.float32(0.5), np.float64(0.9), 0.75, np.float16(0.25), np.int32(10))
    assert made == Adam(0.5, 0.9, 0.75, 0.25, 10)
    for value in (made.rate, made.beta1, made.epsilon, Adam(rate=1).rate):
        assert type(value) is float
    assert type(made.halve_every) is int


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ({"rate": "0.1"}, "rate is '0.1'; it takes a number"),
        ({"rate": np.ones(1)}, r"rate is array\(\[1.\]\); it takes a number"),
        ({"beta1": True}, "beta1 is True; it takes a number"),
        ({"beta2": 0.9j}, "beta2 is 0.9j"),
        ({"halve_every": 10.0}, "halve_every is 10.0; it takes an int"),
    ],
)
def test_adam_refuses_what_is_no_number(what, said):
    with pytest.raises(TypeError, match=said):
        Adam(**what)


def test_adam_counts_a_step_with_the_weights(monkeypatch):
    """Interrupted between its two launches it has done neither."""

    def interrupted(*arguments):
        raise KeyboardInterrupt

    weights, step = _device([1.0, 2], "float32"), cuda.to_device(np.array([4]))
    others = [_device([1.0, 1], "float32") for _ in range(3)]
    with monkeypatch.context() as patch:
        patch.setattr(adam_module, "launch", interrupted)
        with pytest.raises(KeyboardInterrupt):
            adam_step(Adam(), *others, weights, step, nan(2, "float32"))
    cuda.synchronize()
    assert step.copy_to_host()[0] == 4 and weights.copy_to_host().tolist() == [1, 2]
    adam_step(Adam(), *others, weights, step, nan(2, "float32"))
    assert step.copy_to_host()[0] == 5 and (weights.copy_to_host() < [1, 2]).all()
