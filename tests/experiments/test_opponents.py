"""The opponents through PyTorch compute the same convolution, in every geometry."""

import pytest

import reference
from experiments.measuring import opponents
from tests.support.cases import SMALL, operands, sums

pytestmark = pytest.mark.tiers("simulator", "gpu")
torch = pytest.importorskip("torch", reason="the extra 'torch' is not installed")


@pytest.mark.parametrize("case", SMALL)
@pytest.mark.parametrize("opponent", opponents.OPPONENTS, ids=lambda o: f"{o.algorithm}-{o.layout}")
def test_opponent(case, opponent, rng):
    g = SMALL[case]
    arrays = operands(g, "float32", rng)
    moves = g.stride, g.padding, g.dilation
    wanted = (
        reference.capsule_convolution_einsum(*arrays[:2], *moves),
        *reference.capsule_convolution_backward_einsum(*arrays, *moves),
    )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    prepared = opponent.prepare(g, *(torch.from_numpy(array).to(device) for array in arrays))
    with opponents.precision("ieee"):
        for name, want, terms in zip(opponents.PASSES, wanted, sums(g)):
            result = opponent.deliver[name](g, getattr(opponent, name)(g, *prepared))
            reference.assert_close(result.cpu().numpy(), want, terms)


def test_precision_is_put_back():
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    with opponents.precision("tf32"):
        assert torch.backends.cudnn.allow_tf32 and torch.backends.cuda.matmul.allow_tf32
    assert before == (torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32)
