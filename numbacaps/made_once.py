"""Properties that are worked out when they are first asked for, and are then the same for every thread.

Of two threads that ask at once ``functools.cached_property`` (since Python 3.12) lets each work one out, and keeps the later one: kernels that
are queued, and CUDA graphs, may then read tables of the earlier one, which nobody holds.
"""

from functools import cached_property


class made_once(cached_property):
    """Decorator of a method without arguments. Threads that ask at once may all call it; each gets what was made first."""

    def __get__(self, instance, owner=None):
        if instance is None:
            return self
        made = vars(instance)
        if self.attrname not in made:
            made.setdefault(self.attrname, self.func(instance))
        return made[self.attrname]
