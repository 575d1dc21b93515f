"""What a walk is asked for, what it will do, and what it has found: records without a kernel."""

from dataclasses import dataclass

import numpy as np

from experiments.walk.image import Patches
from numbacaps import Geometry
from numbacaps.product import Product, inverse


@dataclass(frozen=True)
class Options:
    """What to convolve, with what. ``sizes`` gives the size of each axis letter of ``product``."""

    image: str
    crop: tuple | None
    kernel: tuple
    stride: tuple
    padding: tuple
    dilation: tuple
    channels: tuple
    product: str
    sizes: dict
    algorithms: tuple
    dtype: str
    seed: int


@dataclass(frozen=True)
class Plan:
    """What a walk will do: options that have been accepted, and what they come to."""

    options: Options
    product: Product
    patches: Patches
    geometry: Geometry


@dataclass(frozen=True)
class Operand:
    """An array of the convolution.

    Attributes
    ----------
    name : str
        The paper's, as in ``I_flat``.
    axes : str
        Its axes in the glossary's symbols.
    array : ndarray
    """

    name: str
    axes: str
    array: np.ndarray

    @property
    def shape(self):
        return self.array.shape


@dataclass(frozen=True)
class Check:
    """How far a result is from the reference, and how far rounding may take it."""

    operand: Operand
    error: float
    tolerance: float

    @property
    def passed(self):
        return self.error <= self.tolerance


@dataclass(frozen=True)
class StageRecord:
    """One stage, run and checked.

    Attributes
    ----------
    name : str
        Key of :data:`numbacaps.stages.STAGES`.
    direction : str
        ``"forward"`` (Algorithm 3) or ``"backward"`` (Algorithm 4).
    paper, where, formula : str
        The paper's line; its algorithm, step and figure; what is computed.
    inputs : tuple of Operand
    check : Check
        The output, and how it compares.
    bytes, flop : int
        What the stage must move and compute.
    seconds : float or None
        Of one launch; None if the check failed, since the time of a wrong result says nothing.
    launches : list
        What ``watch`` saw of it; see :func:`walk`.
    """

    name: str
    direction: str
    paper: str
    where: str
    formula: str
    inputs: tuple
    check: Check
    bytes: int
    flop: int
    seconds: float | None
    launches: list

    @property
    def output(self):
        return self.check.operand

    @property
    def passed(self):
        return self.check.passed


@dataclass(frozen=True)
class AlgorithmRecord:
    """A whole convolution by one algorithm of the registry, run and checked.

    Attributes
    ----------
    name : str
        Key of :data:`numbacaps.ALGORITHMS`.
    summary : str
    direction : str
        ``"forward"`` or ``"backward"`` (both gradients).
    inputs : tuple of Operand
    checks : tuple of Check
        O; or dI and dK.
    bytes, flop : int
        The fewest bytes that its passes can move (backward is two, one a gradient), and their FLOP.
    seconds : float or None
        Of one run; None if a check failed.
    launches : list
        What ``watch`` saw of it; see :func:`walk`.
    """

    name: str
    summary: str
    direction: str
    inputs: tuple
    checks: tuple
    bytes: int
    flop: int
    seconds: float | None
    launches: list

    @property
    def passed(self):
        return all(check.passed for check in self.checks)


@dataclass(frozen=True)
class Trace:
    """All that a walk computed.

    Attributes
    ----------
    plan : Plan
    device : str
        What the kernels ran on.
    simulated : bool
        It was the simulator, so the times mean nothing.
    operands : dict
        Every array by its name: I, K, T, dO and what the stages made of them.
    stages, algorithms : tuple
        Records in the order of the paper and of the registry.
    """

    plan: Plan
    device: str
    simulated: bool
    operands: dict
    stages: tuple
    algorithms: tuple

    @property
    def records(self):
        """Stages, then algorithms."""
        return self.stages + self.algorithms

    @property
    def failed(self):
        """How many records did not pass."""
        return sum(not record.passed for record in self.records)

    def image_of(self, name):
        """An array of I's shape laid out as an image again: (C, height, width)."""
        patches, order = self.plan.patches, self.plan.product.x_order
        sizes = tuple(patches.capsule[axis] for axis in order)
        capsules = self.operands[name].array.reshape(*self.plan.geometry.input_shape[:4], *sizes)
        axes = (0, 1, 2, 3, *(4 + axis for axis in inverse(order)))
        return patches.lay_out(capsules.transpose(axes))
