"""The reference checks itself: loops, stages, einsum, SciPy, finite differences, adjoints.

Nothing here needs a GPU or the product. Sizes are odd on purpose: ones, primes, rectangles.
"""

import numpy as np
import pytest

import reference as ref


def case(N, C, H, W, P, KH, KW, G, D1, D2, D3, stride=1, padding=0, dilation=1):
    """One geometry: the shapes of x and w, and the arguments that move the window."""
    moves = {"stride": stride, "padding": padding, "dilation": dilation}
    return (N, C, H, W, G, D1, D2), (P, C, KH, KW, G, D2, D3), moves


GEOMETRIES = [
    case(1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1),
    case(1, 1, 5, 5, 1, 4, 4, 3, 3, 3, 3),
    case(2, 3, 5, 4, 2, 3, 2, 1, 2, 3, 5),
    case(1, 2, 7, 5, 3, 3, 3, 1, 4, 2, 1, stride=2),
    case(2, 1, 7, 8, 1, 2, 3, 2, 1, 3, 2, stride=3),
    case(1, 2, 5, 7, 2, 3, 1, 3, 2, 1, 3, stride=(2, 3)),
    case(2, 2, 3, 4, 1, 3, 3, 1, 2, 2, 3, padding=1),
    case(1, 1, 2, 3, 2, 3, 3, 2, 1, 2, 2, padding=(2, 1)),
    case(1, 3, 7, 6, 2, 3, 2, 1, 3, 2, 1, dilation=2),
    case(1, 2, 7, 8, 1, 3, 2, 2, 2, 1, 2, dilation=(2, 3)),
    case(2, 2, 6, 5, 3, 2, 3, 2, 2, 3, 1, stride=(3, 2), padding=(1, 2), dilation=(2, 1)),
    case(1, 1, 8, 3, 1, 3, 3, 1, 3, 1, 2, stride=(3, 1), padding=(0, 3), dilation=(3, 2)),
    case(1, 1, 2, 2, 1, 1, 1, 1, 2, 2, 2, stride=3, padding=3),
    case(3, 5, 3, 3, 7, 3, 3, 1, 1, 1, 1),
    case(0, 2, 3, 3, 2, 2, 2, 1, 2, 2, 2),
    case(2, 0, 3, 3, 2, 2, 2, 1, 2, 2, 2),
]

SMALL = [
    case(1, 2, 3, 4, 2, 2, 3, 1, 2, 3, 1),
    case(2, 1, 4, 3, 2, 2, 2, 2, 1, 2, 2, stride=(2, 1), padding=(1, 0), dilation=(1, 2)),
    case(1, 1, 2, 3, 1, 3, 2, 1, 2, 1, 2, stride=2, padding=(2, 1)),
]


def label(geometry):
    """Readable test id of a geometry."""
    x_shape, w_shape, moves = geometry
    sizes = "x".join(map(str, x_shape)) + "-" + "x".join(map(str, w_shape))
    return sizes + "-" + "-".join(f"{name[0]}{value}" for name, value in moves.items())


every_geometry = pytest.mark.parametrize("geometry", GEOMETRIES, ids=label)
every_small = pytest.mark.parametrize("geometry", SMALL, ids=label)


def random_arrays(geometry, dtype=np.float64, seed=0):
    """Arrays x, w, dy of one geometry; dy has the shape that the einsum gives."""
    x_shape, w_shape, moves = geometry
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(x_shape).astype(dtype)
    w = rng.standard_normal(w_shape).astype(dtype)
    dy_shape = ref.capsule_convolution_einsum(x, w, **moves).shape
    return x, w, rng.standard_normal(dy_shape).astype(dtype)


def forward_terms(w):
    """Number of products in one element of the output."""
    _, C, KH, KW, _, D2, _ = w.shape
    return C * KH * KW * D2


def input_terms(w):
    """Most products in one element of the input's gradient."""
    P, _, KH, KW, _, _, D3 = w.shape
    return P * KH * KW * D3


def kernel_terms(dy):
    """Number of products in one element of the kernel's gradient."""
    N, _, OH, OW, _, D1, _ = dy.shape
    return N * OH * OW * D1


def correlate_scalars(x, w, stride, padding, dilation):
    """Algorithm 1 with SciPy: x (N, C, H, W), w (P, C, KH, KW) -> (N, P, OH, OW)."""
    from scipy import signal  # the tiers that leave this out need none

    (sh, sw), (ph, pw), (dh, dw) = (np.broadcast_to(v, 2) for v in (stride, padding, dilation))
    x = np.pad(x, ((0, 0), (0, 0), (ph, ph), (pw, pw)))
    P, C, KH, KW = w.shape
    spread = np.zeros((P, C, dh * (KH - 1) + 1, dw * (KW - 1) + 1))
    spread[:, :, ::dh, ::dw] = w
    return np.stack(
        [
            np.stack(
                [
                    sum(signal.correlate(a, b, mode="valid", method="direct") for a, b in pairs)
                    for pairs in ([*zip(image, kernel, strict=True)] for kernel in spread)
                ]
            )
            for image in x
        ]
    )[:, :, ::sh, ::sw]


def correlate_capsules(x, w, **moves):
    """Algorithm 2 with SciPy: the contraction of each capsule counted as more channels."""
    N, C, H, W, G, D1, D2 = x.shape
    P, _, KH, KW, _, _, D3 = w.shape
    groups = []
    for g in range(G):
        rows = []
        for d1 in range(D1):
            channels = np.moveaxis(x[:, :, :, :, g, d1], -1, 2).reshape(N, C * D2, H, W)
            columns = []
            for d3 in range(D3):
                kernel = np.moveaxis(w[:, :, :, :, g, :, d3], -1, 2).reshape(P, C * D2, KH, KW)
                columns.append(correlate_scalars(channels, kernel, **moves))
            rows.append(np.stack(columns, axis=-1))
        groups.append(np.stack(rows, axis=-2))
    return np.stack(groups, axis=-3)


@every_geometry
def test_loops_match_einsum(geometry):
    x, w, _ = random_arrays(geometry)
    actual = ref.capsule_convolution(x, w, **geometry[2])
    expected = ref.capsule_convolution_einsum(x, w, **geometry[2])
    ref.assert_close(actual, expected, forward_terms(w))


@every_geometry
def test_stages_match_loops(geometry):
    x, w, _ = random_arrays(geometry)
    actual = ref.staged_forward(x, w, **geometry[2])
    ref.assert_close(actual, ref.capsule_convolution(x, w, **geometry[2]), forward_terms(w))


@every_geometry
def test_votes_sum_to_the_output(geometry):
    x, w, _ = random_arrays(geometry)
    votes = ref.capsule_votes_einsum(x, w, **geometry[2])
    assert votes.shape[4:7] == w.shape[1:4]
    expected = ref.capsule_convolution(x, w, **geometry[2])
    ref.assert_close(votes.sum(axis=(4, 5, 6)), expected, forward_terms(w))


@every_geometry
def test_votes_are_the_staged_products(geometry):
    x, w, dy = random_arrays(geometry)
    P, C, KH, KW = w.shape[:4]
    columns = ref.capsule_im2col(x, (KH, KW), **geometry[2])
    products = ref.strided_batched_matrix_multiply(
        ref.input_extend(columns, P), ref.kernel_extend(w, columns.shape[1])
    )
    votes = ref.capsule_votes_einsum(x, w, **geometry[2])
    ref.assert_close(products.reshape(votes.shape), votes, w.shape[5])


@pytest.mark.parametrize("geometry", [g for g in GEOMETRIES if g[0][0] and g[0][1]], ids=label)
def test_loops_match_scipy(geometry):
    x, w, _ = random_arrays(geometry)
    actual = ref.capsule_convolution(x, w, **geometry[2])
    ref.assert_close(actual, correlate_capsules(x, w, **geometry[2]), forward_terms(w))


@pytest.mark.parametrize(
    "moves",
    [
        {"stride": 1, "padding": 0, "dilation": 1},
        {"stride": 2, "padding": 1, "dilation": 1},
        {"stride": (3, 2), "padding": (2, 0), "dilation": (1, 2)},
    ],
)
def test_scalar_capsules_are_an_ordinary_convolution(moves):
    rng = np.random.default_rng(1)
    x, w = rng.standard_normal((2, 3, 7, 5)), rng.standard_normal((2, 3, 3, 2))
    plain = ref.convolution(x, w, **moves)
    ref.assert_close(plain, correlate_scalars(x, w, **moves), 18)
    capsules = ref.capsule_convolution(x[..., None, None, None], w[..., None, None, None], **moves)
    ref.assert_close(capsules[..., 0, 0, 0], plain, 18)


@pytest.mark.parametrize(
    "forward", [ref.capsule_convolution, ref.staged_forward, ref.capsule_convolution_einsum]
)
def test_figure_2_is_all_48s(forward):
    x, w = np.ones((1, 1, 5, 5, 3, 3, 3)), np.ones((1, 1, 4, 4, 3, 3, 3))
    output = forward(x, w)
    assert output.shape == (1, 1, 2, 2, 3, 3, 3)
    assert np.all(output == 48)


def test_one_capsule_by_hand():
    x = np.array([[1.0, 2.0], [3.0, 4.0]]).reshape(1, 1, 1, 1, 1, 2, 2)
    w = np.array([[5.0], [6.0]]).reshape(1, 1, 1, 1, 1, 2, 1)
    output = ref.capsule_convolution(x, w)
    assert output.shape == (1, 1, 1, 1, 1, 2, 1)
    assert output.ravel().tolist() == [17.0, 39.0]


def test_matrix_multiply_adds_at_its_offsets():
    i, k = np.arange(6.0), np.arange(8.0)
    o = np.full(6, 100.0)
    ref.matrix_multiply(i, 2, k, 1, o, 1, D1=2, D2=2, D3=2)
    product = i[2:6].reshape(2, 2) @ k[1:5].reshape(2, 2)
    assert o.tolist() == [100.0, *(100.0 + product.ravel()), 100.0]


@pytest.mark.parametrize(
    "forward", [ref.capsule_convolution, ref.staged_forward, ref.capsule_convolution_einsum]
)
def test_padding_multiplies_like_any_zero(forward):
    x, w = np.ones((1, 1, 3, 3, 1, 1, 1)), np.ones((1, 1, 3, 3, 1, 1, 1))
    w[0, 0, 0, 0] = np.inf
    output = forward(x, w, padding=1)[0, 0, :, :, 0, 0, 0]
    assert np.isnan(output[0]).all() and np.isnan(output[:, 0]).all()
    assert np.isposinf(output[1:, 1:]).all()


@every_geometry
def test_gradient_loops_match_einsum(geometry):
    x, w, dy = random_arrays(geometry)
    dx, dw = ref.capsule_convolution_backward(x, w, dy, **geometry[2])
    expected_dx, expected_dw = ref.capsule_convolution_backward_einsum(x, w, dy, **geometry[2])
    ref.assert_close(dx, expected_dx, input_terms(w))
    ref.assert_close(dw, expected_dw, kernel_terms(dy))


@every_geometry
def test_staged_gradients_match_loops(geometry):
    x, w, dy = random_arrays(geometry)
    dx, dw = ref.staged_backward(x, w, dy, **geometry[2])
    expected_dx, expected_dw = ref.capsule_convolution_backward(x, w, dy, **geometry[2])
    ref.assert_close(dx, expected_dx, input_terms(w))
    ref.assert_close(dw, expected_dw, kernel_terms(dy))


@every_geometry
def test_adjoint_identity(geometry):
    x, w, dy = random_arrays(geometry)
    output = ref.capsule_convolution(x, w, **geometry[2])
    dx, dw = ref.capsule_convolution_backward(x, w, dy, **geometry[2])
    # <dO, conv(I, K)> = <dI, I> = <dK, K>, to rounding of the largest sum of absolute terms
    scale = np.vdot(np.abs(dy), ref.capsule_convolution(np.abs(x), np.abs(w), **geometry[2]))
    expected = np.vdot(dy, output)
    assert abs(np.vdot(dx, x) - expected) <= 1e-14 * scale
    assert abs(np.vdot(dw, w) - expected) <= 1e-14 * scale


def central_differences(function, array, step=0.5):
    """Gradient of a scalar function; exact for a linear one, so the step may be large."""
    gradient = np.zeros_like(array)
    for index in np.ndindex(array.shape):
        up, down = array.copy(), array.copy()
        up[index] += step
        down[index] -= step
        gradient[index] = (function(up) - function(down)) / (2 * step)
    return gradient


@every_small
def test_gradients_match_finite_differences(geometry):
    x, w, dy = random_arrays(geometry)
    moves = geometry[2]
    dx, dw = ref.capsule_convolution_backward(x, w, dy, **moves)
    expected_dx = central_differences(
        lambda a: np.vdot(dy, ref.capsule_convolution(a, w, **moves)), x
    )
    expected_dw = central_differences(
        lambda a: np.vdot(dy, ref.capsule_convolution(x, a, **moves)), w
    )
    assert ref.relative_error(dx, expected_dx) <= 1e-12
    assert ref.relative_error(dw, expected_dw) <= 1e-12


def test_im2col_of_a_drawn_image():
    # 0 1 2
    # 3 4 5    windows of 2x2 at l = 0, 1, 2, 3, read row by row
    # 6 7 8
    x = np.arange(9.0).reshape(1, 1, 3, 3, 1, 1, 1)
    columns = ref.capsule_im2col(x, (2, 2))
    assert columns.shape == (1, 4, 4, 1, 1, 1)
    assert columns.reshape(4, 4).tolist() == [
        [0, 1, 3, 4],
        [1, 2, 4, 5],
        [3, 4, 6, 7],
        [4, 5, 7, 8],
    ]


def test_im2col_with_stride_padding_and_dilation_of_a_drawn_image():
    # . . . . .
    # . 0 1 2 .    padded by one, rows 0 and 2 of columns 0 and 2, then 2 columns further
    # . 3 4 5 .
    # . . . . .
    x = np.arange(6.0).reshape(1, 1, 2, 3, 1, 1, 1) + 10
    columns = ref.capsule_im2col(x, 2, stride=(1, 2), padding=1, dilation=2)
    assert columns.reshape(4, 4).tolist() == [
        [0, 0, 0, 14],
        [0, 0, 14, 0],
        [0, 11, 0, 0],
        [11, 0, 0, 0],
    ]


def test_im2col_orders_channels_before_the_window():
    x = np.arange(2 * 2 * 1 * 2 * 3).reshape(1, 2, 2, 1, 1, 2, 3)
    columns = ref.capsule_im2col(x, (2, 1))
    assert np.array_equal(columns, x.reshape(1, 1, 4, 1, 2, 3))


def test_input_extend_repeats_along_a_new_axis():
    columns = np.arange(48.0).reshape(2, 2, 3, 2, 1, 2)
    extended = ref.input_extend(columns, 3)
    assert np.array_equal(extended, np.repeat(columns[:, None], 3, axis=1))


def test_kernel_extend_repeats_and_flattens_the_window():
    w = np.arange(2 * 3 * 2 * 1 * 1 * 2 * 2.0).reshape(2, 3, 2, 1, 1, 2, 2)
    extended = ref.kernel_extend(w, 5)
    assert np.array_equal(extended, np.repeat(w.reshape(2, 1, 6, 1, 2, 2), 5, axis=1))


@pytest.mark.parametrize(
    ("transpose_a", "transpose_b", "letters"),
    [
        (False, False, "nlij,ljk->nlik"),
        (True, False, "nlji,ljk->nlik"),
        (False, True, "nlij,lkj->nlik"),
        (True, True, "nlji,lkj->nlik"),
    ],
)
def test_batched_multiply_broadcasts_and_transposes(transpose_a, transpose_b, letters):
    sizes = {"n": 2, "l": 3, "i": 2, "j": 5, "k": 4}
    rng = np.random.default_rng(2)
    a, b = (
        rng.standard_normal([sizes[axis] for axis in operand])
        for operand in letters.split("->")[0].split(",")
    )
    products = ref.strided_batched_matrix_multiply(a, b, transpose_a, transpose_b)
    ref.assert_close(products, np.einsum(letters, a, b), 5)


def test_output_reduce_sums_the_products():
    products = np.arange(2 * 2 * 6 * 3 * 2.0).reshape(2, 2, 6, 3, 1, 2, 1)
    output = ref.output_reduce(products, 2, 3)
    assert np.array_equal(output, products.sum(axis=3).reshape(2, 2, 2, 3, 1, 2, 1))


def test_output_extend_repeats_each_capsule():
    dy = np.arange(2 * 1 * 2 * 3 * 2.0).reshape(2, 1, 2, 3, 1, 1, 2)
    extended = ref.output_extend(dy, 4)
    assert np.array_equal(extended, np.repeat(dy.reshape(2, 1, 6, 1, 1, 1, 2), 4, axis=3))


def test_input_reduce_sums_over_output_channels():
    products = np.arange(2 * 3 * 2 * 2 * 2.0).reshape(2, 3, 2, 2, 1, 2, 1)
    assert np.array_equal(ref.input_reduce(products), products.sum(axis=1))


def test_kernel_reduce_sums_over_images_and_positions():
    products = np.arange(2 * 2 * 3 * 12 * 2.0).reshape(2, 2, 3, 12, 1, 2, 1)
    dw = ref.kernel_reduce(products, 2, 3, 2)
    assert np.array_equal(dw, products.sum(axis=(0, 2)).reshape(2, 2, 3, 2, 1, 2, 1))


def test_col2im_of_ones_counts_the_windows():
    d_columns = np.ones((1, 4, 4, 1, 1, 1))
    dx = ref.capsule_col2im(d_columns, (1, 1, 3, 3, 1, 1, 1), (2, 2))
    assert dx[0, 0, :, :, 0, 0, 0].tolist() == [[1, 2, 1], [2, 4, 2], [1, 2, 1]]


@every_geometry
def test_col2im_is_the_adjoint_of_im2col(geometry):
    x_shape, w_shape, moves = geometry
    rng = np.random.default_rng(3)
    x = rng.integers(-9, 9, x_shape).astype(np.float64)
    columns = ref.capsule_im2col(x, w_shape[2:4], **moves)
    d_columns = rng.integers(-9, 9, columns.shape).astype(np.float64)
    dx = ref.capsule_col2im(d_columns, x_shape, w_shape[2:4], **moves)
    assert np.vdot(dx, x) == np.vdot(d_columns, columns)


def test_padding_helpers_are_inverse():
    x = np.arange(12.0).reshape(1, 2, 2, 3)
    padded = ref.zero_pad(x, (2, 1))
    assert np.array_equal(padded, np.pad(x, ((0, 0), (0, 0), (2, 2), (1, 1))))
    assert np.array_equal(ref.drop_padding(padded, (2, 1)), x)


def test_window_helpers():
    assert ref.pair("stride", 3, 1) == (3, 3)
    assert ref.pair("stride", (np.int64(2), 1), 1) == (2, 1)
    assert ref.window_step(1, (0, 2), 3) == ((1, 1), (0, 2), (3, 3))
    assert ref.output_size((7, 8), (3, 2), (2, 3), (0, 1), (1, 4)) == (3, 2)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dtype_in_is_dtype_out(dtype):
    geometry = GEOMETRIES[10]
    x, w, dy = random_arrays(geometry, dtype)
    moves = geometry[2]
    for output in (ref.capsule_convolution(x, w, **moves), ref.staged_forward(x, w, **moves)):
        assert output.dtype == dtype and output.flags.c_contiguous
        ref.assert_close(output, ref.capsule_convolution_einsum(x, w, **moves), forward_terms(w))
    expected_dx, expected_dw = ref.capsule_convolution_backward_einsum(x, w, dy, **moves)
    for backward in (ref.capsule_convolution_backward, ref.staged_backward):
        dx, dw = backward(x, w, dy, **moves)
        assert dx.dtype == dw.dtype == dtype
        assert dx.flags.c_contiguous and dw.flags.c_contiguous
        ref.assert_close(dx, expected_dx, input_terms(w))
        ref.assert_close(dw, expected_dw, kernel_terms(dy))
    assert ref.convolution(x[..., 0, 0, 0], w[..., 0, 0, 0]).dtype == dtype


def test_float32_sums_in_float32():
    # 2**24 + 1 is no float32, so each one added to 2**24 is lost
    x = np.ones((1, 1, 1, 5, 1, 1, 1), np.float32)
    x[0, 0, 0, 0] = 2**24
    output = ref.capsule_convolution(x, np.ones_like(x))
    assert output.item() == 2**24


def test_einsum_returns_float64():
    x, w, dy = random_arrays(GEOMETRIES[2], np.float32)
    dx, dw = ref.capsule_convolution_backward_einsum(x, w, dy)
    for result in (ref.capsule_convolution_einsum(x, w), ref.capsule_votes_einsum(x, w), dx, dw):
        assert result.dtype == np.float64 and result.flags.c_contiguous


def test_inputs_are_left_alone_and_may_be_strided():
    geometry = GEOMETRIES[2]
    x, w, dy = random_arrays(geometry)
    strided = [np.asfortranarray(a) for a in (x, w, dy)]
    for backward in (
        ref.capsule_convolution_backward,
        ref.staged_backward,
        ref.capsule_convolution_backward_einsum,
    ):
        for from_c, from_f in zip(backward(x, w, dy), backward(*strided), strict=True):
            ref.assert_close(from_f, from_c, 64)
    for before, after in zip((x, w, dy), strided, strict=True):
        assert np.array_equal(before, after)


X, K = np.ones((2, 3, 5, 4, 2, 2, 3)), np.ones((2, 3, 3, 2, 2, 3, 2))
DY = np.ones((2, 2, 3, 3, 2, 2, 2))

FORWARDS = [
    ref.capsule_convolution,
    ref.staged_forward,
    ref.capsule_convolution_einsum,
    ref.capsule_votes_einsum,
]
BACKWARDS = [
    ref.capsule_convolution_backward,
    ref.staged_backward,
    ref.capsule_convolution_backward_einsum,
]

BAD_ARRAYS = [
    ("x", X[0], K),
    ("x", X[..., None], K),
    ("w", X, K[0]),
    ("w", X, K[:, :2]),
    ("w", X, K[:, :, :, :, :1]),
    ("w", X, K[:, :, :, :, :, :2]),
    ("w", X[:, :, :2], K),
    ("w", X[:, :, :, :1], K),
    ("w", X, K[:, :, :0]),
]

BAD_MOVES = [
    {"stride": 0},
    {"stride": (1, -1)},
    {"stride": (1, 1, 1)},
    {"padding": -1},
    {"padding": (0, -2)},
    {"dilation": 0},
    {"dilation": (1,)},
]


@pytest.mark.parametrize(("name", "x", "w"), BAD_ARRAYS)
def test_arrays_that_do_not_fit_are_refused(name, x, w):
    for forward in FORWARDS:
        with pytest.raises(ValueError, match=f"^{name}: "):
            forward(x, w)
    for backward in BACKWARDS:
        with pytest.raises(ValueError, match=f"^{name}: "):
            backward(x, w, DY)


@pytest.mark.parametrize("moves", BAD_MOVES, ids=str)
def test_moves_that_make_no_sense_are_refused(moves):
    (name,) = moves
    calls = [lambda f=f: f(X, K, **moves) for f in FORWARDS]
    calls += [lambda f=f: f(X, K, DY, **moves) for f in BACKWARDS]
    calls += [
        lambda: ref.convolution(X[..., 0, 0, 0], K[..., 0, 0, 0], **moves),
        lambda: ref.capsule_im2col(X, (3, 2), **moves),
        lambda: ref.capsule_col2im(np.ones((2, 9, 18, 2, 2, 3)), X.shape, (3, 2), **moves),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=f"^{name}: "):
            call()


def test_a_window_stretched_over_the_padded_input_is_refused():
    for forward in FORWARDS:
        forward(X, K, dilation=(2, 3))
        with pytest.raises(ValueError, match="^w: the window covers 7 rows, .* has 5"):
            forward(X, K, dilation=(3, 1))
        with pytest.raises(ValueError, match="^w: the window covers 8 columns, .* has 6"):
            forward(X, K, dilation=(1, 7), padding=(0, 1))


@pytest.mark.parametrize("dy", [DY[0], DY[:1], DY[:, :, :2], DY[..., :1]])
def test_a_gradient_that_does_not_fit_is_refused(dy):
    for backward in BACKWARDS:
        with pytest.raises(ValueError, match="^dy: "):
            backward(X, K, dy)


def test_values_that_are_not_integers_are_refused():
    for bad in (1.5, "2", (1, None)):
        with pytest.raises(TypeError, match="^stride: "):
            ref.capsule_convolution(X, K, stride=bad)


def test_mixed_dtypes_are_refused():
    small = K.astype(np.float32)
    for forward in FORWARDS[:2]:
        with pytest.raises(TypeError, match="^w: "):
            forward(X, small)
    for backward in BACKWARDS[:2]:
        with pytest.raises(TypeError, match="^dy: "):
            backward(X, K, DY.astype(np.float32))
    with pytest.raises(TypeError, match="^w: "):
        ref.convolution(X[..., 0, 0, 0], small[..., 0, 0, 0])


def test_plain_convolution_refuses_arrays_that_do_not_fit():
    x, w = X[..., 0, 0, 0], K[..., 0, 0, 0]
    for name, bad in (
        ("x", (X, w)),
        ("w", (x, K)),
        ("w", (x, w[:, :2])),
        ("w", (x[:, :, :2], w)),
    ):
        with pytest.raises(ValueError, match=f"^{name}: "):
            ref.convolution(*bad)


def test_stages_refuse_arrays_that_do_not_fit():
    flat, seven = np.ones((2, 9, 18, 2, 2, 3)), np.ones((2, 2, 9, 18, 2, 2, 3))
    refused = [
        ("x", lambda: ref.capsule_im2col(X[0], (3, 2))),
        ("window", lambda: ref.capsule_im2col(X, (6, 2))),
        ("window", lambda: ref.capsule_im2col(X, (0, 2))),
        ("columns", lambda: ref.input_extend(flat[0], 2)),
        ("w", lambda: ref.kernel_extend(K[0], 9)),
        ("a", lambda: ref.strided_batched_matrix_multiply(np.ones(3), np.ones((3, 3)))),
        ("b", lambda: ref.strided_batched_matrix_multiply(np.ones((3, 3)), np.ones(3))),
        ("b", lambda: ref.strided_batched_matrix_multiply(np.ones((2, 3)), np.ones((2, 3)))),
        ("b", lambda: ref.strided_batched_matrix_multiply(np.ones((2, 3, 3)), np.ones((4, 3, 3)))),
        ("products", lambda: ref.output_reduce(flat, 3, 3)),
        ("products", lambda: ref.output_reduce(seven, 3, 2)),
        ("dy", lambda: ref.output_extend(DY[0], 18)),
        ("d_input_products", lambda: ref.input_reduce(flat)),
        ("d_kernel_products", lambda: ref.kernel_reduce(flat, 3, 3, 2)),
        ("d_kernel_products", lambda: ref.kernel_reduce(seven, 3, 3, 3)),
        ("input_shape", lambda: ref.capsule_col2im(flat, X.shape[1:], (3, 2))),
        ("d_columns", lambda: ref.capsule_col2im(flat[:, :8], X.shape, (3, 2))),
        ("window", lambda: ref.capsule_col2im(flat, X.shape, (6, 2))),
    ]
    for name, call in refused:
        with pytest.raises(ValueError, match=f"^{name}: "):
            call()


def test_relative_error_of_known_values():
    assert ref.relative_error([1.0, 2.0], [1.0, 4.0]) == 0.5
    assert ref.relative_error([3.0, -4.0], [0.0, 0.0]) == 4.0
    assert ref.relative_error(np.empty((0, 3)), np.empty((0, 3))) == 0.0
    assert ref.relative_error(np.float32([2.0]), [2.0]) == 0.0
    assert ref.relative_error([1e308], [-1e308]) == np.inf


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_relative_error_of_what_is_not_finite_is_inf(bad):
    for actual, expected in ([bad, 1.0], [1.0, 2.0]), ([1.0, 2.0], [bad, 1.0]), ([bad], [bad]):
        assert ref.relative_error(actual, expected) == np.inf


def test_relative_error_does_not_broadcast():
    for other in (np.ones((1, 3)), np.ones(1), np.float64(1)):
        with pytest.raises(ValueError, match="^actual: shape"):
            ref.relative_error(other, np.ones(3))


def test_tolerance_grows_with_the_square_root_of_the_sum():
    assert ref.tolerance(np.float64, 0) == 4 * np.finfo(np.float64).eps
    assert ref.tolerance("float32", 16) == 12 * np.finfo(np.float32).eps
    assert ref.tolerance(np.float32, 10_000) < 2.5e-5


def test_tolerance_of_shorter_operands():
    assert ref.tolerance(np.float32, 0, "tf32") == ref.tolerance(np.float32, 0) + 3 * 2.0**-10
    assert ref.tolerance(np.float32, 100, "float16") < 3e-3
    with pytest.raises(
        ValueError, match="^precision: takes ieee, tf32x3, tf32, float16, bfloat16, not 'int4'"
    ):
        ref.tolerance(np.float32, 1, "int4")


@pytest.mark.parametrize("dtype", [np.float16, np.int32, np.complex128])
def test_tolerance_names_the_dtypes_it_takes(dtype):
    with pytest.raises(TypeError, match="float32 or float64"):
        ref.tolerance(dtype, 1)
    with pytest.raises(TypeError, match="float32 or float64"):
        ref.assert_close(np.ones(3, dtype), np.ones(3), 1)


def test_tolerance_refuses_a_negative_count():
    with pytest.raises(ValueError, match="^terms: "):
        ref.tolerance(np.float32, -1)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_assert_close_passes_rounding_and_fails_more(dtype):
    expected = np.linspace(-1.0, 1.0, 12).reshape(3, 4)
    ref.assert_close(expected.astype(dtype), expected, 4)
    off = expected.astype(dtype)
    off[1, 2] += 0.9 * ref.tolerance(dtype, 4)
    ref.assert_close(off, expected, 4)
    off[1, 2] = expected[1, 2] + 1.5 * ref.tolerance(dtype, 4)
    with pytest.raises(AssertionError, match=r"\(1, 2\)"):
        ref.assert_close(off, expected, 4)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_assert_close_fails_on_what_is_not_finite(bad):
    good, spoiled = np.ones((2, 3)), np.ones((2, 3))
    spoiled[1, 0] = bad
    for actual, expected in (spoiled, good), (good, spoiled), (spoiled, spoiled):
        with pytest.raises(AssertionError, match=r"worst element \(1, 0\)"):
            ref.assert_close(actual, expected, 1)


def test_assert_close_fails_on_an_output_that_was_never_written():
    with pytest.raises(AssertionError, match="nan"):
        ref.assert_close(np.full((2, 3), np.nan, np.float32), np.zeros((2, 3)), 10**12)


def test_assert_close_says_what_is_wrong():
    actual, expected = np.zeros((2, 2), np.float32), np.zeros((2, 2))
    expected[0, 1] = 3.0
    with pytest.raises(AssertionError) as caught:
        ref.assert_close(actual, expected, 9)
    message = str(caught.value)
    for part in ("1.000e+00", "1.192e-06", "float32", "9 terms", "(0, 1)", "3.0"):
        assert part in message


def test_assert_close_does_not_broadcast():
    with pytest.raises(ValueError, match="^actual: shape"):
        ref.assert_close(np.ones((1, 3)), np.ones(3), 1)


@pytest.mark.parametrize("wrong", ["stride", "transposed kernel", "dropped group", "one element"])
def test_assert_close_catches_the_usual_mistakes(wrong):
    x, w, _ = random_arrays(case(2, 2, 5, 5, 2, 3, 3, 2, 2, 2, 2), np.float32)
    expected = ref.capsule_convolution_einsum(x, w)
    actual = {
        "stride": lambda: ref.capsule_convolution(x, w, padding=1, stride=2),
        "transposed kernel": lambda: ref.capsule_convolution(x, w.swapaxes(-1, -2)),
        "dropped group": lambda: ref.capsule_convolution(x, w[:, :, :, :, [0, 0]]),
        "one element": lambda: ref.capsule_convolution(x, w),
    }[wrong]()
    if wrong == "one element":
        actual[0, 1, 2, 0, 1, 0, 1] += 1e-3
    with pytest.raises(AssertionError):
        ref.assert_close(actual, expected, forward_terms(w))
