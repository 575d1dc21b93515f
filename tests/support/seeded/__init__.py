"""Faults that somebody may make, with the tests that ought to catch them: see :mod:`tests.faults`."""

from tests.support.seeded import keeping, kernels

FAULTS = kernels.FAULTS + keeping.FAULTS
