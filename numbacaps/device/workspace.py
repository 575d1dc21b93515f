"""Workspaces: device memory for the intermediate arrays of an algorithm."""

import threading
from dataclasses import dataclass, field
from math import prod

import numpy as np

from numbacaps.device.compiled import as_argument
from numbacaps.device.keeping import keep, keep_behind_all, keep_later, let_go
from numbacaps.device.streams import identity, place
from numbacaps.device.target import SIMULATED, cuda

_LARGE = 1 << 24  # bytes of workspaces, before which kept memory is freed; chosen, not measured


class Growth:
    """Whether memory was allocated, since somebody set it to False."""

    grown = False


@dataclass
class Use:
    """What workspaces are used for: a Numba stream, or 0, its device and place, and who hears of their growth."""

    stream: object = 0
    growth: Growth = field(default_factory=Growth)
    device: int | None = None
    place: object = 0


class Workspace:
    """Memory that the calls of one algorithm share: allocated by the first, reused by the others.

    An algorithm allocates nothing else, so calls that reuse a workspace can be captured into a CUDA
    graph, which needs the workspace for as long as it is replayed. Calls that share one must follow
    each other on one stream.

    An array keeps its contents from one set to the next as long as every array of the set fits in what there is.
    Where one does not, all are made anew, so that together they stay within the limit. Who keeps sums in one while
    others change asks for the largest set first, as the slabs of a convolution do, or gives each array a workspace
    of its own, as routing does.

    Parameters
    ----------
    limit : int, optional
        Most bytes; half of the free device memory by default (1 GiB on the simulator, which reports
        infinite memory).
    use : Use, optional
    """

    def __init__(self, limit=None, use=None):
        self._limit, self._use = limit, use or Use()
        self._arrays = {}
        self._asked, self._views, self._arguments = None, None, None  # by the last call

    @property
    def limit(self):
        """Most bytes."""
        if self._limit is None:
            let_go()
            free = 2 << 30 if SIMULATED else cuda.current_context().get_memory_info().free
            self._limit = free // 2
        return self._limit

    @property
    def nbytes(self):
        """Bytes allocated now."""
        return sum(array.nbytes for array in list(self._arrays.values()))

    def arrays(self, shapes, dtype):
        """Arrays of the named shapes, on the first elements of what there is if all fit there; else all are new.

        Parameters
        ----------
        shapes : dict of str to tuple
        dtype : numpy.dtype

        Returns
        -------
        dict of str to device array
            Of new ones contents are undefined.
        """
        asked = shapes, dtype
        if asked != self._asked:
            self._asked, self._views, self._arguments = None, None, None  # they hold memory
            self._views = self._fitted(shapes, dtype)
            self._arguments = {name: as_argument(view) for name, view in self._views.items()}
            self._asked = asked
        return self._views

    def arguments(self, shapes, dtype):
        """The same arrays, as arguments of kernels of :mod:`numbacaps.device.compiled`.

        Who asks again and again gives the same ``shapes`` and ``dtype``, so that they need not be compared.
        """
        if self._asked is None or self._asked[0] is not shapes or self._asked[1] is not dtype:
            self.arrays(shapes, dtype)
        return self._arguments

    def _fitted(self, shapes, dtype):
        """Views of what there is, if it is large enough, or of new arrays."""
        if any(
            name not in self._arrays
            or self._arrays[name].dtype != dtype
            or self._arrays[name].size < prod(shape)
            for name, shape in shapes.items()
        ):
            old, self._arrays = self._arrays, {}  # freed before the new ones are asked for
            if old:
                keep(self._use.stream, old)
            del old
            if sum(map(prod, shapes.values())) * dtype.itemsize >= _LARGE:
                let_go()
            self._arrays = {
                name: cuda.device_array(prod(shape), dtype) for name, shape in shapes.items()
            }
            self._use.growth.grown = True
        return {
            name: self._arrays[name][: prod(shape)].reshape(shape) for name, shape in shapes.items()
        }


class Workspaces:
    """The workspaces of a convolution's passes, each by a name, each made when first asked for.

    A pass drops what another one laid out in the same workspace, so each has its own.

    Parameters
    ----------
    limit : int, optional
        Most bytes of each.
    use : Use, optional

    Attributes
    ----------
    use : Use
    captured : bool
        A graph may have their addresses.
    """

    captured = False

    def __init__(self, limit=None, use=None):
        self._limit, self.use, self._named = limit, use or Use(), {}

    def __getitem__(self, name):
        if name not in self._named:
            self._named[name] = Workspace(self._limit, self.use)
        return self._named[name]

    @property
    def nbytes(self):
        """Bytes allocated now."""
        return sum(workspace.nbytes for workspace in list(self._named.values()))

    def release(self):
        """Free all of it as soon as the stream, on which a call is under way, has passed what is queued."""
        self._hand_over(keep, ())

    def drop(self, held=()):
        """Free all of it, and ``held``, as soon as the calls have been passed whose stream may be gone by now."""
        self._hand_over(keep_later, held, self.use.device)

    def _hand_over(self, keep, held, *where):
        nbytes = self.nbytes
        if nbytes or held:
            keep(self.use.stream, (self._named, held), nbytes, *where)
        self._named = {}


class Rooms:
    """The workspaces of a plan, a set for each stream that calls it.

    Calls on two streams overlap, so they share no workspace. The last :data:`STREAMS` sets are kept, and those that
    a graph may have the addresses of. The set of a destroyed stream is dropped when another stream has its place. Of a captured
    stream only the place is known. So call the plan once on a stream before you capture it: otherwise it may share the set of a destroyed stream.

    Parameters
    ----------
    limit : int, optional
        Most bytes of each workspace.
    held : object, optional
        What calls on any of the streams read besides; it outlives them too.
    device : int, optional
        Which has the memory; by default the current one at any time.

    Attributes
    ----------
    growth : Growth
    """

    STREAMS = 8

    def __init__(self, limit=None, held=(), device=None):
        self._limit, self._held, self._of, self.growth = limit, held, {}, Growth()
        self._device = device
        # Several threads may bring a new stream together. Garbage may be collected while it is held.
        self._lock = threading.RLock()
        self._ready = None  # allocated ahead: the first stream that comes takes it
        self._has_forgotten = False  # a stream, whose calls may still read what is held

    @property
    def nbytes(self):
        """Bytes allocated now."""
        ready = self._ready
        return (ready.nbytes if ready else 0) + sum(room.nbytes for room in list(self._of.values()))

    def ahead(self):
        """Workspaces for the first stream that comes."""
        self._ready = self._ready or Workspaces(self._limit, Use(0, self.growth))
        return self._ready

    def of(self, stream):
        """The workspaces of a Numba stream. They and what is held outlive the stream's calls."""
        own = identity(stream) if stream else 0  # each function costs a call of the plan
        if own is None:
            return self._captured(stream)
        return self._of.get(own) or self._found(own, stream)

    def _captured(self, stream):
        """Those of a stream that is captured, by its place: CUDA tells no more."""
        with self._lock:
            there = [room for room in self._of.values() if room.use.place == place(stream)]
            room = there[-1] if there else self._new(stream)
            room.captured = True
            if not there:
                self._of[object()] = room  # calls outside the graph have workspaces of their own
        return room

    def _found(self, own, stream):
        """Those of a stream by its identity. New ones take the place of a destroyed stream's, or of the oldest one's if there are many."""
        with self._lock:
            if own in self._of:
                return self._of[own]
            idle = {one: room for one, room in self._of.items() if not room.captured}
            gone = [one for one, room in idle.items() if room.use.place == place(stream)]
            if not gone and len(idle) >= self.STREAMS:
                gone = [next(iter(idle))]
            dropped = [self._of.pop(one) for one in gone]
            room = self._of[own] = self._new(stream)
        for one in dropped:
            self._has_forgotten = True
            one.drop()  # what is held stays with its owner
        return room

    def _new(self, stream):
        room, self._ready = self._ready or Workspaces(self._limit, Use(0, self.growth)), None
        room.use.stream, room.use.device, room.use.place = stream, self._device, place(stream)
        return room

    def release(self):
        """Free all workspaces as soon as the streams have passed the calls that are queued."""
        for room in list(self._of.values()):
            room.release()
        self._ready = None

    def drop(self):
        """The same, and let go of what is held."""
        for room in list(self._of.values()):
            room.drop(self._held)
        if self._has_forgotten and self._held:
            keep_behind_all(self._device, self._held)
        self._ready = None


def check_limit(limit):
    """``workspace_limit`` as an int, or None."""
    if limit is None:
        return None
    if not isinstance(limit, (int, np.integer)) or isinstance(limit, bool):
        raise TypeError(f"workspace_limit is {limit!r}; it takes a number of bytes or None")
    if limit < 0:
        raise ValueError(f"workspace_limit is {limit}; it takes 0 or more bytes")
    return int(limit)
