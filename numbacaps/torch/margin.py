"""The margin loss, one node of autograd: in eager PyTorch the host pays for each."""

import math

import torch

from numbacaps.torch.closed import backend_of

_REDUCTIONS = "mean", "sum", "none"


def reduced(losses, reduction):
    """The mean or the sum of losses, or all of them; ValueError for another ``reduction``."""
    if reduction not in _REDUCTIONS:
        raise ValueError(f"reduction is {reduction!r}; it takes 'mean', 'sum' or 'none'")
    return losses if reduction == "none" else getattr(losses, reduction)()


def margin_losses(lengths, labels, margins, reduction):
    """:func:`numbacaps.torch.functional.margin_loss` of arguments that were checked, but for ``reduction``."""
    is_ordinary = not torch.compiler.is_compiling() and backend_of(lengths)
    if is_ordinary and torch.is_grad_enabled() and lengths.requires_grad:
        return _MarginLoss.apply(lengths, labels, margins, reduction)
    return reduced(_gaps(lengths, labels, margins)[0].square().sum(1), reduction)


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
        return reduced(gaps.square().sum(1), reduction)

    @staticmethod
    def backward(ctx, d_loss):
        (lengths, labels, gaps, wanted), (margins, reduction) = ctx.saved_tensors, ctx.how
        if torch.is_grad_enabled():  # the gradient is differentiated, too
            losses = reduced(_gaps(lengths, labels, margins)[0].square().sum(1), reduction)
            (found,) = torch.autograd.grad(losses, lengths, d_loss, create_graph=True)
            return found, None, None, None
        # As few operations as there are; relu's own slope is in the gaps, which are 0 where it is.
        each = d_loss * (2 / max(1, len(lengths)) if reduction == "mean" else 2)
        found = torch.where(wanted, -gaps, math.sqrt(margins[2]) * gaps)
        return found.mul_(each[:, None] if reduction == "none" else each), None, None, None
