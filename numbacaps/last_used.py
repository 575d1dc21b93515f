"""Plans and the like, kept for calls that come again."""

import threading


class LastUsed:
    """The last few that were used, of plans or of what else has workspaces, which have at most some bytes.

    Parameters
    ----------
    count, nbytes : int
        ``nbytes`` of all, each of which has an attribute ``nbytes``.
    """

    def __init__(self, count, nbytes):
        # No OrderedDict: it asks for hashes when it is gone through, and Ctrl-C in a key's own one would become a KeyError.
        self._count, self._nbytes, self._kept = count, nbytes, {}
        self._lock = threading.Lock()

    def __len__(self):
        return len(self._kept)

    @property
    def nbytes(self):
        """Bytes of workspaces."""
        return sum(one.nbytes for one in self._kept.values())

    def get(self, key, make):
        """The one of a key, kept, or else made by ``make()``."""
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept[key] = self._kept.pop(key)  # the last one now
                return found
        made = make()
        with self._lock:
            found = self._kept.setdefault(key, made)  # or another thread's, which came first
            dropped = [self._drop_first() for _ in range(len(self._kept) - self._count)]
        del made, dropped  # outside of the lock
        return found

    def fit(self):
        """Drop those that were used longest ago, until the bytes are not too many."""
        dropped = []
        with self._lock:
            while self._kept and self.nbytes > self._nbytes:
                dropped.append(self._drop_first())

    def clear(self):
        """Drop all."""
        with self._lock:
            dropped, self._kept = self._kept, {}
        dropped.clear()

    def _drop_first(self):
        return self._kept.pop(next(iter(self._kept)))
