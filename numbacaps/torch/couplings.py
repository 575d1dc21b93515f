"""Routing's couplings as a tensor, to be looked at: how much of each child went to which parent."""

import torch

from numbacaps.routing.api import capsule_routing
from numbacaps.routing.options import check_given, options_of
from numbacaps.torch.closed import check, check_device, check_tensors
from numbacaps.torch.functional import pair
from numbacaps.torch.routing import OPTIONS


def routing_couplings(
    x, w, *, activations=None, beta_u=None, beta_a=None, logits=None,
    stride=1, padding=0, dilation=1, product="ab,bc->ac", precision="auto", **options,
):  # fmt: skip
    """The last iteration's couplings, without a gradient; arguments as of :func:`numbacaps.torch.capsule_routing`.

    CPU tensors are routed by NumPy.

    Returns
    -------
    Tensor (N, P, OH, OW, C, KH, KW)
        Of summed votes (N, P, OH, OW, C, 1, 1); float32, of float64 operands float64.

    Raises
    ------
    TypeError, ValueError
        As :func:`numbacaps.capsule_routing`.
    """
    given = {"activations": activations, "beta_u": beta_u, "beta_a": beta_a, "logits": logits}
    tensors = {"x": x, "w": w} | {name: one for name, one in given.items() if one is not None}
    check_tensors(**tensors)
    check_device(**tensors)
    for name, tensor in tensors.items():
        check(**{name: tensor})  # their dtypes may differ: all are widened
    form = options_of(options)
    check_given(given, form)
    window = {"stride": pair("stride", stride, 1), "padding": pair("padding", padding, 0)}
    window |= {"dilation": pair("dilation", dilation, 1), "product": product}
    window["precision"] = precision
    # All but detach, which is of gradients.
    named = {name: getattr(form, name) for name in OPTIONS if name != "detach"}
    arrays = {name: _as_array(one) for name, one in tensors.items()}
    algorithm = "auto" if x.is_cuda else "numpy"
    how = named | window | {"algorithm": algorithm, "couplings": True}
    *_, found = capsule_routing(arrays.pop("x"), arrays.pop("w"), **arrays, **how)
    return torch.as_tensor(found, device=x.device)


def _as_array(tensor):
    """A tensor as an array of the dtype of sums."""
    wide = tensor.detach().to(torch.promote_types(tensor.dtype, torch.float32)).contiguous()
    return wide if wide.is_cuda else wide.numpy()
