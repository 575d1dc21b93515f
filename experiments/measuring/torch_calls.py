"""Whose host time of a layer's call is measured: our operator of PyTorch, a plan's own call, and PyTorch's conv2d.

All take tensors that lie as they read them. "training" is the forward pass and both gradients, by autograd where there is
one.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numbacaps
from experiments.measuring import opponents
from experiments.measuring.problem import PASSES
from experiments.measuring.torch_rows import OPERATOR, PLAN

CLASSES = {"default": ("auto", "ieee"), "tf32": ("tf32", "tf32")}  # ours and the library's


@dataclass(frozen=True)
class Caller:
    """Calls of a layer.

    Attributes
    ----------
    forward, training : callable
        Each returns tensors, those of the first of :data:`experiments.measuring.problem.PASSES` or of all.
    deliver : callable
        ``deliver(pass, tensor)``: in capsule layout (N, C, H, W, G, D1, D2).
    precision : str
        How the result may be rounded.
    """

    forward: Callable
    training: Callable
    deliver: Callable
    precision: str


def make(contestant, problem, name, device="cuda"):
    """A contestant's calls.

    Parameters
    ----------
    contestant : str
        One of :data:`experiments.measuring.torch_rows.CALLERS`.
    problem : experiments.measuring.problem.Problem
        Of one group.
    name : str
        Of a class of precision.
    device : str
        Of PyTorch.

    Returns
    -------
    Caller
    """
    ours, theirs = CLASSES[name]
    torch = opponents.torch()
    tensors = [torch.from_numpy(array).to(device) for array in problem.operands]
    if contestant == OPERATOR:
        return _operator(problem.geometry, tensors, ours)
    if contestant == PLAN:
        return _plan(problem.geometry, tensors, ours)
    return _conv2d(problem.geometry, tensors, contestant.removeprefix("conv2d-"), theirs)


def check(caller, what, problem):
    """The largest relative error of a call's results.

    Raises
    ------
    experiments.measuring.problem.WrongResult
        It is more than rounding explains.
    """
    found = getattr(caller, what)()
    arrays = {
        name: caller.deliver(name, tensor).detach().cpu().numpy()
        for name, tensor in zip(PASSES, found)
    }
    return max(problem.check(name, array, caller.precision) for name, array in arrays.items())


def _moves(g):
    return {"stride": g.stride, "padding": g.padding, "dilation": g.dilation}


def _differentiated(function, x, w, dy):
    """(forward, training) of a function that PyTorch differentiates."""
    grad = opponents.torch().autograd.grad
    leaves = [tensor.detach().clone().requires_grad_() for tensor in (x, w)]

    def training():
        y = function(*leaves)
        return (y, *grad(y, leaves, dy))

    return lambda: (function(x, w),), training


def _operator(g, tensors, precision):
    from numbacaps.torch import capsule_conv2d

    x, w, dy = (tensor.squeeze(4) for tensor in tensors)
    how = _moves(g) | {"precision": precision}
    calls = _differentiated(lambda x, w: capsule_conv2d(x, w, **how), x, w, dy)
    return Caller(*calls, lambda name, tensor: tensor.unsqueeze(4), precision)


def _plan(g, tensors, precision):
    x, w, dy = (tensor.squeeze(4) for tensor in tensors)
    y, dx, dw = (tensor.new_empty(tensor.shape) for tensor in (dy, x, w))
    plan = numbacaps.plan(tuple(x.shape), tuple(w.shape), **_moves(g), precision=precision)

    def forward():
        return (plan(x, w, y),)

    def training():
        plan(x, w, y)
        plan.backward(x, w, dy, dx, dw)
        return y, dx, dw

    return Caller(forward, training, lambda name, tensor: tensor.unsqueeze(4), precision)


def _conv2d(g, tensors, layout, precision):
    torch = opponents.torch()
    fold = next(
        one for one in opponents.OPPONENTS if (one.algorithm, one.layout) == ("torch_fold", layout)
    )
    x, w, dy = fold.prepare(g, *tensors)
    moves = g.stride, g.padding, g.dilation, g.G

    def convolve(x, w):
        return torch.nn.functional.conv2d(x, w, None, *moves)

    calls = _differentiated(convolve, x, w, dy)
    return Caller(*calls, lambda name, tensor: fold.deliver[name](g, tensor), precision)
