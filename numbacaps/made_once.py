"""Properties that are computed at their first use and shared by all threads.

Since Python 3.12 ``functools.cached_property`` has no lock. If two threads use such a property for the first time together, each
thread computes a value, and the second value replaces the first one. The first value may own a table on the GPU. Python then frees
the table while queued kernels or CUDA graphs still read it.
"""

from functools import cached_property


class made_once(cached_property):
    """A decorator, as ``cached_property``. Several threads may call the method, but all of them get the first value."""

    def __get__(self, instance, owner=None):
        if instance is None:
            return self
        made = vars(instance)
        if self.attrname not in made:
            made.setdefault(self.attrname, self.func(instance))
        return made[self.attrname]
