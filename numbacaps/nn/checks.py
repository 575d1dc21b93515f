"""What a network refuses of its arguments, one by one."""

import numpy as np

from numbacaps.forms import FULL_DTYPES, normal_range
from numbacaps.nn.checkpoint import MOST_STEPS
from numbacaps.nn.kernels.adam import Adam


def check_dtype(dtype):
    refusal = TypeError(f"dtype is {dtype!r}; it takes float32 or float64")
    try:
        found = np.dtype(dtype)
    except TypeError:
        raise refusal from None
    if dtype is None or found not in FULL_DTYPES:  # NumPy takes None for float64
        raise refusal
    return found


def refuse_masked(name, array):
    """Refuse what NumPy would take without its mask."""
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array; it takes one without a mask")


def check_range(name, numbers, count):
    """Refuse ints outside of 0 to count - 1."""
    # A negative one is a large one without its sign.
    if numbers.astype(np.int64, copy=False).view(np.uint64).max() >= count:
        wrong = numbers[(numbers < 0) | (numbers >= count)][0]
        raise ValueError(f"{name} hold {wrong}; they take 0 to {count - 1}")


def check_adam(adam, dtype):
    if not isinstance(adam, Adam):
        raise TypeError(f"adam is a {type(adam).__name__}; it takes an Adam")
    least, most = normal_range(dtype)
    for name in ("rate", "epsilon"):
        value = getattr(adam, name)
        if not least <= value <= most:
            raise ValueError(f"adam.{name} is {value}; {dtype} takes {least:.3g} to {most:.3g}")
    for name in ("beta1", "beta2"):
        value = getattr(adam, name)
        if not 0 < value < 1:  # one that lay between them may not as a float
            raise ValueError(f"adam.{name} is {value} as a float; it takes between 0 and 1")
    if adam.halve_every > MOST_STEPS:
        raise ValueError(f"adam.halve_every is {adam.halve_every}; it takes {MOST_STEPS} at most")
    return adam


def check_seed(seed):
    if not isinstance(seed, (int, np.integer)) or isinstance(seed, bool):
        raise TypeError(f"seed is {seed!r}; it takes an int")
    if not 0 <= seed < 2**64:
        raise ValueError(f"seed is {seed}; it takes 0 to 2^64 - 1")
    return int(seed)
