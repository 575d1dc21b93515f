"""Losses of class capsules. The margin loss is one node of autograd: in eager PyTorch the host pays for each."""

import math

import torch

from numbacaps.torch.closed import check_tensors, is_autocast, is_number, ordinary

_REDUCTIONS = "mean", "sum", "none"


def margin_loss(lengths, labels, m_plus=0.9, m_minus=0.1, down_weight=0.5, reduction="mean"):
    """The margin loss (Sabour et al. 2017, equation 4), summed over the classes.

    Parameters
    ----------
    lengths : Tensor (N, classes)
        Of the class capsules; under autocast the loss is float32.
    labels : int64 Tensor (N,)
    m_plus, m_minus, down_weight : float
        They have no gradient.
    reduction : str
        ``"mean"`` or ``"sum"`` over the images, or ``"none"``.

    Raises
    ------
    TypeError, ValueError
        ``labels`` are not one int64 an image, a margin or weight is no number, ``down_weight`` is negative, or ``reduction`` is
        another word.
    """
    _check_labels("lengths", lengths, labels)
    check_options(reduction, m_plus=m_plus, m_minus=m_minus, down_weight=down_weight)
    lengths = _full(lengths)
    margins = m_plus, m_minus, down_weight
    is_proxy = isinstance(lengths, torch.fx.Proxy)
    differentiated = not is_proxy and torch.is_grad_enabled() and lengths.requires_grad
    if differentiated and ordinary(lengths):
        return _MarginLoss.apply(lengths, labels, margins, reduction)
    return _reduced(_gaps(lengths, labels, margins)[0].square().sum(1), reduction)


def _gaps(lengths, labels, margins):
    """(what lengths lack or have too much, weighted under the square; where the labels' classes are)."""
    m_plus, m_minus, down_weight = margins
    wanted = torch.zeros_like(lengths, dtype=torch.bool).scatter(1, labels[:, None], True)
    absent = math.sqrt(down_weight) * (lengths - m_minus)
    return torch.where(wanted, m_plus - lengths, absent).relu(), wanted


class _MarginLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, lengths, labels, margins, reduction):
        gaps, wanted = _gaps(lengths, labels, margins)
        ctx.save_for_backward(lengths, labels, gaps, wanted)
        ctx.how = margins, reduction
        return _reduced(gaps.square().sum(1), reduction)

    @staticmethod
    def backward(ctx, d_loss):
        (lengths, labels, gaps, wanted), (margins, reduction) = ctx.saved_tensors, ctx.how
        if torch.is_grad_enabled():  # the gradient is differentiated, too
            losses = _reduced(_gaps(lengths, labels, margins)[0].square().sum(1), reduction)
            (found,) = torch.autograd.grad(losses, lengths, d_loss, create_graph=True)
            return found, None, None, None
        # As few operations as there are; relu's own slope is in the gaps, which are 0 where it is.
        each = d_loss * (2 / max(1, len(lengths)) if reduction == "mean" else 2)
        found = torch.where(wanted, -gaps, math.sqrt(margins[2]) * gaps)
        return found * (each[:, None] if reduction == "none" else each), None, None, None


def spread_loss(activations, labels, margin=0.2, reduction="mean"):
    """The spread loss (Hinton et al. 2018, equation 3), summed over the other classes.

    Parameters
    ----------
    activations : Tensor (N, classes)
    labels : int64 Tensor (N,)
    margin : float
        From 0.2 to 0.9 in the course of training, in that paper.
    reduction : str
        As for :func:`margin_loss`.

    Raises
    ------
    TypeError, ValueError
        As :func:`margin_loss`.
    """
    _check_labels("activations", activations, labels)
    check_options(reduction, margin=margin)
    activations = _full(activations)
    target = activations.gather(1, labels[:, None])
    losses = (margin - (target - activations)).clamp_min(0) ** 2
    return _reduced(losses.scatter(1, labels[:, None], 0.0).sum(1), reduction)


def _full(scores):
    """Scores as PyTorch's own losses take them under autocast: in float32 at least."""
    if isinstance(scores, torch.fx.Proxy) or not is_autocast(scores):
        return scores
    return scores.to(torch.promote_types(scores.dtype, torch.float32))


def _check_labels(name, scores, labels):
    """Refuse labels that are not a class an image; which classes there are PyTorch looks at itself."""
    check_tensors(**{name: scores, "labels": labels})
    if isinstance(scores, torch.fx.Proxy):  # which has no shape yet
        return
    if scores.dim() != 2:
        raise ValueError(f"{name} has shape {tuple(scores.shape)}; it takes (N, classes)")
    if labels.dtype != torch.int64:
        raise TypeError(f"labels has dtype {labels.dtype}; it takes torch.int64, a class an image")
    if labels.shape != scores.shape[:1]:
        raise ValueError(
            f"labels has shape {tuple(labels.shape)}; it takes {tuple(scores.shape[:1])}, a class an image"
        )


def check_options(reduction, **numbers):
    """Refuse what is no reduction, and numbers by name that are none, or a ``down_weight`` below 0."""
    if reduction not in _REDUCTIONS:
        raise ValueError(f"reduction is {reduction!r}; it takes 'mean', 'sum' or 'none'")
    for name, number in numbers.items():
        taken = is_number(number)
        if isinstance(number, torch.Tensor):
            taken = number.dim() == 0 and not number.requires_grad
        if not taken:
            raise TypeError(f"{name} is {number!r}; it takes a number that wants no gradient")
        if name == "down_weight" and not number >= 0:
            raise ValueError(f"down_weight is {number!r}; it takes 0 or more")


def _reduced(losses, reduction):
    return losses if reduction == "none" else getattr(losses, reduction)()
