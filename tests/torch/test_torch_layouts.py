"""Layouts of other capsule code: element by element, and there and back."""

import pytest

torch = pytest.importorskip("torch")
import numbacaps.torch as nt  # noqa: E402  (where torch is)
from numbacaps.torch import layouts  # noqa: E402

pytestmark = pytest.mark.tiers("simulator")


def test_vectors():
    x = torch.randn(2, 6, 8)
    ours = layouts.from_vectors(x)
    assert ours.shape == (2, 6, 1, 1, 1, 8)
    assert torch.equal(layouts.to_vectors(ours), x)
    image = torch.randn(2, 3, 4, 5, 1, 8)
    assert torch.equal(layouts.to_vectors(image)[1, (2 * 4 + 3) * 5 + 4], image[1, 2, 3, 4, 0])


def test_a_dense_layer_of_vectors():
    """DenseCapsule's votes: its weight (out, in, out_dim, in_dim) times a column."""
    x, weight = torch.randn(2, 6, 8), torch.randn(10, 6, 16, 8)
    want = torch.einsum("nib,pidb->npid", x, weight)
    layer = nt.CapsuleLinear(6, 10, (1, 8), (1, 16))
    with torch.no_grad():
        layer.weight.copy_(weight.transpose(-1, -2))
    votes = layer.votes(layouts.from_vectors(x).flatten(1, 3))
    torch.testing.assert_close(votes.squeeze(3), want)


def test_poses():
    x = torch.randn(2, 5, 6, 3 * 17)
    poses, activations = layouts.from_poses(x, 3)
    assert poses.shape == (2, 3, 5, 6, 4, 4) and activations.shape == (2, 3, 5, 6)
    assert poses[1, 2, 3, 4, 1, 2] == x[1, 3, 4, 2 * 16 + 1 * 4 + 2]
    assert activations[1, 2, 3, 4] == x[1, 3, 4, 3 * 16 + 2]
    assert torch.equal(layouts.to_poses(poses, activations), x)
    poses, _ = layouts.from_poses(torch.randn(1, 2, 2, 2 * 7), 2, (2, 3))
    assert nt.CapsuleConv2d(2, 1, 2, in_capsule=(2, 3), out_capsule=(2, 4))(poses).shape == (
        1,
        1,
        1,
        1,
        2,
        4,
    )


def test_atoms():
    x = torch.randn(2, 5, 6, 3, 7)
    ours = layouts.from_atoms(x)
    assert ours.shape == (2, 3, 5, 6, 1, 7) and ours[1, 2, 3, 4, 0, 5] == x[1, 3, 4, 2, 5]
    assert torch.equal(layouts.to_atoms(ours), x)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: layouts.from_vectors(x), r"it takes \(N, caps, dim\)"),
        (lambda x: layouts.to_vectors(x), r"it takes \(N, C, H, W, \*T\)"),
        (lambda x: layouts.from_poses(x, 3), r"it takes \(N, H, W, 51\)"),
        (lambda x: layouts.from_atoms(x), r"it takes \(N, H, W, caps, atoms\)"),
        (lambda x: layouts.to_atoms(x), r"it takes \(N, C, H, W, \*T\)"),
        (lambda x: layouts.to_poses(x, x), r"poses has shape .* it takes \(N, caps, H, W, P, P\)"),
        (
            lambda x: layouts.to_poses(x[..., None, None], x[:1]),
            r"activations has shape \(1, 3, 4, 5\); it takes \(2, 3, 4, 5\)",
        ),
    ],
)
def test_other_shapes_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call(torch.randn(2, 3, 4, 5))
