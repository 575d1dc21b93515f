"""Adam (Kingma and Ba, Algorithm 1) with the published schedule: the rate is halved every so often.

Of step t, counted from 1, with gradient g:

    rate = 1e-2 / 2^((t - 1) // 4000)
    m = beta1 * m + (1 - beta1) * g           v = beta2 * v + (1 - beta2) * g^2
    w = w - rate * (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + epsilon)

The step counter lies on the device, so that a captured step counts by itself. One kernel of one
thread works out the two factors that all weights share; the other one moves the weights and counts, so
that what is interrupted between the two has done neither.

Thread mapping of the other: one thread a weight; the first one counts.
"""

import math
import numbers
from dataclasses import dataclass
from functools import cache

from numbacaps.device.instructions import let_next_start, wait_for_last
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.launch import THREADS, early, flat, launch
from numbacaps.device.target import at, cuda
from numbacaps.messages import shown


def _as_float(name, number):
    try:
        return float(number)
    except OverflowError:
        raise ValueError(
            f"{name} is {shown(number)}; it takes a number that a float holds"
        ) from None


@dataclass(frozen=True)
class Adam:
    """How fast Adam learns. The defaults are the published ones.

    Attributes
    ----------
    rate : float
        Learning rate of the first step.
    beta1, beta2 : float
        What the two moments keep from step to step.
    epsilon : float
        Keeps the division finite.
    halve_every : int
        Steps after which the rate is halved.

    Raises
    ------
    TypeError
        A number is none; ``halve_every`` is no int.
    ValueError
        A number is out of range.

    Notes
    -----
    NumPy's numbers become Python's.
    """

    rate: float = 1e-2
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    halve_every: int = 4000

    def __post_init__(self):
        self._check_types()
        for name in ("rate", "epsilon"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)}; it takes more than 0")
        for name in ("beta1", "beta2"):
            if not 0 < getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it takes between 0 and 1")
        if self.halve_every < 1:
            raise ValueError(f"halve_every is {self.halve_every}; it takes 1 or more")
        for name in ("rate", "beta1", "beta2", "epsilon"):
            object.__setattr__(self, name, _as_float(name, getattr(self, name)))  # frozen
        object.__setattr__(self, "halve_every", int(self.halve_every))

    def _check_types(self):
        for name, kind in self.__annotations__.items():
            value, taken = getattr(self, name), numbers.Integral if kind is int else numbers.Real
            if not isinstance(value, taken) or isinstance(value, bool):
                takes = "an int" if kind is int else "a number"
                raise TypeError(f"{name} is {value!r}; it takes {takes}")

    def rate_of(self, step: int) -> float:
        """Learning rate of a step, counted from 0."""
        return math.ldexp(self.rate, -(step // self.halve_every))


@cache
def make_adam_factors(adam, dtype):
    """Kernel of one thread."""
    RATE = dtype.type(adam.rate)
    # 1 - beta^t = -expm1(t * log(beta)) keeps its digits where beta^t is almost 1.
    LOG_BETA1, LOG_BETA2 = (dtype.type(math.log(beta)) for beta in (adam.beta1, adam.beta2))
    HALVE_EVERY = adam.halve_every
    ONE = dtype.type(1)
    to_dtype = dtype.type

    @kept_on_disk
    @cuda.jit
    def adam_factors_kernel(
        step,  # in   (1,), int64: steps done
        factors,  # out  (2,): rate / (1 - beta1^t), 1 / sqrt(1 - beta2^t)
    ):
        let_next_start()
        wait_for_last()
        done = step[at(0)]
        t = to_dtype(done + 1)
        rate = math.ldexp(RATE, -int(done // HALVE_EVERY))
        factors[at(0)] = rate / -math.expm1(t * LOG_BETA1)
        factors[at(1)] = ONE / math.sqrt(-math.expm1(t * LOG_BETA2))

    return adam_factors_kernel


@cache
def make_adam(adam, dtype):
    """Kernel that moves the weights."""
    BETA1, BETA2, EPSILON = map(dtype.type, (adam.beta1, adam.beta2, adam.epsilon))
    NEW1, NEW2 = dtype.type(1 - adam.beta1), dtype.type(1 - adam.beta2)

    @kept_on_disk
    @cuda.jit
    def adam_kernel(
        gradients,  # in      (count,)
        first,  # in/out  (count,): m
        second,  # in/out  (count,): v
        weights,  # in/out  (count,)
        factors,  # in      (2,)
        step,  # in/out  (1,), int64: steps done
        count,
    ):
        let_next_start()
        i = cuda.grid(1)
        if i >= count:
            return
        wait_for_last()
        gradient = gradients[at(i)]
        m = BETA1 * first[at(i)] + NEW1 * gradient
        v = BETA2 * second[at(i)] + NEW2 * gradient * gradient
        first[at(i)] = m
        second[at(i)] = v
        weights[at(i)] -= factors[at(0)] * m / (math.sqrt(v) * factors[at(1)] + EPSILON)
        if i == 0:
            step[at(0)] += 1

    return adam_kernel


def adam_step(
    adam, gradients, first, second, weights, step, factors, stream=0, threads=THREADS
) -> None:
    """Move weights against their gradients, and count the step.

    Parameters
    ----------
    adam : Adam
    gradients : device array (count,), float32 or float64
    first, second, weights : device arrays (count,), dtype of gradients, updated
        The moments, 0 before the first step, and what is learnt.
    step : device array (1,), int64, updated
        Steps done.
    factors : device array (2,), dtype of gradients, written
    stream : Numba stream
    threads : int
        Most threads of a block.

    Raises
    ------
    ValueError
        An array has another size than it should, or is not C-contiguous.
    """
    count, dtype = weights.size, weights.dtype
    named = (("gradients", gradients), ("first", first), ("second", second), ("weights", weights))
    arrays = [flat(name, array, (count,)) for name, array in named]
    step, factors = flat("step", step, (1,)), flat("factors", factors, (2,))
    early(make_adam_factors(adam, dtype), (step, factors))[1, 1, stream, 0](step, factors)
    arguments = (*arrays, factors, step, count)
    launch(early(make_adam(adam, dtype), arguments), count, 1, arguments, stream, threads)
