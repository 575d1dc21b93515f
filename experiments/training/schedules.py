"""How fast a capsule network of a paper learns, step by step."""

from dataclasses import dataclass


@dataclass(frozen=True)
class DecayingAdam:
    """Adam's settings, TensorFlow's defaults, with a rate that decays exponentially.

    Attributes
    ----------
    rate : float
        Learning rate of the first step.
    decay : float
        What is left of it after ``every`` steps.
    every : int
    beta1, beta2, epsilon : float
        Adam's own.
    weight_decay : float
        Times half the squared weights is added to a batch's loss.
    """

    rate: float = 1e-3
    decay: float = 0.96
    every: int = 2000
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0

    def rate_of(self, step):
        """Learning rate of a step, counted from 0."""
        return self.rate * self.decay ** (step / self.every)


@dataclass(frozen=True)
class Ramp:
    """A number that grows linearly from its first value to its last, and stays there.

    Attributes
    ----------
    first, last : float
    steps : int
        How many it takes to get there.
    """

    first: float
    last: float
    steps: int

    def at(self, step):
        """The number at a step, counted from 0."""
        return self.first + (self.last - self.first) * min(1.0, step / self.steps)
