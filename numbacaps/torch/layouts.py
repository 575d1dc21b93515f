"""From the layouts of other capsule code to (N, C, H, W, *T), and back.

Results are views where that can be; the layers copy what is not contiguous.
"""

import torch

from numbacaps.torch.closed import check_tensors
from numbacaps.torch.functional import pair
from numbacaps.torch.modules import check_count


def from_vectors(x):
    """Vector capsules (N, caps, dim) as (N, caps, 1, 1, 1, dim): every capsule is a channel of one position.

    The layout of Sabour et al. 2017 in XifengGuo/CapsNet-Pytorch (``PrimaryCapsule`` and ``DenseCapsule``) and its kin.
    A row vector times a matrix is the default product's (1, dim) @ (dim, out). ``DenseCapsule`` multiplies from the
    left: its weight (out, in, out_dim, in_dim) is ``weight.transpose(-1, -2)`` of :class:`numbacaps.torch.CapsuleLinear`.
    That layer and :class:`numbacaps.torch.RoutedCapsuleLinear` take (N, caps, 1, dim) themselves: ``x[:, :, None]``.
    """
    _check("x", x, 3, "(N, caps, dim)")
    return x[:, :, None, None, None, :]


def to_vectors(x):
    """(N, C, H, W, *T) as (N, C*H*W, elements of T), capsules in the order of c, h, w; the inverse of
    :func:`from_vectors` at one position.

    The layout of Sabour et al. 2017 in XifengGuo/CapsNet-Pytorch and its kin.
    """
    _check_image(x)
    return x.flatten(4).flatten(1, 3)


def from_poses(x, caps, pose=4):
    """(N, H, W, caps*(P*P+1)) as poses (N, caps, H, W, P, P) and activations (N, caps, H, W).

    The layout of EM routing (Hinton et al. 2018) in yl-1993/Matrix-Capsules-EM-PyTorch and its kin: at each position all
    poses, then all activations.

    Parameters
    ----------
    x : Tensor
    caps : int
        Types of capsules.
    pose : int or pair of int
        Rows and columns of a pose.

    Returns
    -------
    poses, activations : Tensor
    """
    rows, columns = pair("pose", pose, 1)
    check_count("caps", caps)
    wanted = caps * (rows * columns + 1)
    _check("x", x, 4, f"(N, H, W, {wanted})")
    if x.shape[3] != wanted:
        raise ValueError(f"x has shape {tuple(x.shape)}; it takes (N, H, W, {wanted})")
    poses, activations = x.split([caps * rows * columns, caps], 3)
    poses = poses.unflatten(3, (caps, rows, columns)).permute(0, 3, 1, 2, 4, 5)
    return poses, activations.permute(0, 3, 1, 2)


def to_poses(poses, activations):
    """Poses (N, caps, H, W, P, P) and activations (N, caps, H, W) as (N, H, W, caps*(P*P+1)); see :func:`from_poses`."""
    _check("poses", poses, 6, "(N, caps, H, W, P, P)")
    check_tensors(activations=activations)
    if activations.shape != poses.shape[:4]:
        raise ValueError(
            f"activations has shape {tuple(activations.shape)}; it takes {tuple(poses.shape[:4])}"
        )
    poses = poses.permute(0, 2, 3, 1, 4, 5).flatten(3)
    return torch.cat([poses, activations.permute(0, 2, 3, 1)], 3)


def from_atoms(x):
    """(N, H, W, caps, atoms) as (N, caps, H, W, 1, atoms).

    The layout of SegCaps (LaLonde and Bagci 2018), in the Keras code lalonde/SegCaps and its kin: a capsule is a vector of
    ``atoms``.
    """
    _check("x", x, 5, "(N, H, W, caps, atoms)")
    return x.permute(0, 3, 1, 2, 4).unsqueeze(4)


def to_atoms(x):
    """(N, C, H, W, *T) as (N, H, W, C, elements of T); the inverse of :func:`from_atoms`.

    The layout of SegCaps (LaLonde and Bagci 2018), in the Keras code lalonde/SegCaps and its kin.
    """
    _check_image(x)
    return x.flatten(4).permute(0, 2, 3, 1, 4)


def _check(name, x, rank, takes):
    check_tensors(**{name: x})
    if x.dim() != rank:
        raise ValueError(f"{name} has shape {tuple(x.shape)}; it takes {takes}")


def _check_image(x):
    check_tensors(x=x)
    if x.dim() < 5:
        raise ValueError(f"x has shape {tuple(x.shape)}; it takes (N, C, H, W, *T), T not empty")
