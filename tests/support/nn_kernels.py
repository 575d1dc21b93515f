"""Every kernel of numbacaps.nn with the types of its arguments: what the ptx tier compiles."""

from dataclasses import dataclass

import numpy as np
from numba import float32, float64, int64, types, uint64

from numbacaps.nn.kernels.adam import Adam, make_adam, make_adam_factors
from numbacaps.nn.kernels.capsule_length import make_capsule_length, make_capsule_length_backward
from numbacaps.nn.kernels.gather_rows import make_take_images, make_take_rows
from numbacaps.nn.kernels.he_normal import make_he_normal
from numbacaps.nn.kernels.leaky_relu import make_leaky_relu, make_leaky_relu_backward
from numbacaps.nn.kernels.margin_loss import make_margin_loss, make_margin_loss_backward
from numbacaps.squash.formulas import FORMULAS
from numbacaps.squash.kernels import make_squash, make_squash_backward

_TYPES = {"float32": float32, "float64": float64}


@dataclass(frozen=True)
class Kernel:
    """A kernel, the factory that made it and its signature."""

    kernel: object
    factory: object
    signature: tuple


def nn_kernels(dtype):
    """Kernels by name for a dtype, at the published network's sizes."""
    number = _TYPES[dtype]
    dtype = np.dtype(dtype)
    array, integers = types.Array(number, 1, "C"), types.Array(int64, 1, "C")
    made = (
        (make_leaky_relu, (0.1, dtype), (array, array, int64, int64)),
        (make_leaky_relu_backward, (0.1, dtype), (array, array, array, int64, int64)),
        (make_capsule_length, (32, 16 // dtype.itemsize, 8, dtype), (array, array, int64)),
        (make_capsule_length_backward, (32, dtype), (array, array, array, array, int64)),
        (
            make_margin_loss,
            (10, 256, dtype),
            (array, integers, integers, array, integers, int64, int64),
        ),
        (make_margin_loss_backward, (10, dtype), (array, integers, array, int64)),
        (make_adam_factors, (Adam(), dtype), (integers, array)),
        (make_adam, (Adam(), dtype), (array,) * 5 + (integers, int64)),
        (make_take_rows, (), (integers,) * 5 + (int64, int64)),
        (make_take_images, (), (array, integers, array, int64, int64)),
        (make_he_normal, (dtype,), (array, number, uint64, uint64, int64)),
    )
    found = {
        factory.__name__.removeprefix("make_"): Kernel(factory(*how), factory, signature)
        for factory, how, signature in made
    }
    for formula in FORMULAS:
        how = 32, 16 // dtype.itemsize, 4, 0.1, dtype, formula
        for factory, arrays in ((make_squash, 2), (make_squash_backward, 3)):
            name = f"{formula}_{factory.__name__.removeprefix('make_')}"
            signature = (*[array] * arrays, int64, int64)
            found[name] = Kernel(factory(*how), factory, signature)
    return found


NN_FACTORIES = {kernel.factory for kernel in nn_kernels("float32").values()}
