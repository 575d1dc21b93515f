"""Packed copies of kernels that stay as they are: made once, and kept as long as the kernel is the same.

The operators take tensors alone, so a copy is not the layer's: it is found by the tensor's memory. That is the same as long
as its storage lives, its place and strides in there are the same, and nothing in PyTorch has written to it, which the
version counter tells. So a layer that is copied, moved, loaded, pickled or parametrised needs nothing done to it.
What the counter does not tell is what is written in place through ``weight.data``, by other libraries, by the replay of a
CUDA graph, or by what sets the counter back (FSDP's gathering); :meth:`Packings.forget` is for that.
"""

import threading
from contextlib import contextmanager

import torch
from torch.multiprocessing.reductions import StorageWeakRef


class Packings:
    """The packed copies that were used last.

    Copies are of one stream each, on which they were packed and are read, so no stream waits for another.

    Parameters
    ----------
    count : int
        The most that are kept.
    """

    def __init__(self, count):
        self._count, self._kept, self._lock = count, {}, threading.Lock()

    def __len__(self):
        return len(self._kept)

    @contextmanager
    def room(self, w, key, new):
        """A ``with`` block in which a pass is launched, and behind which what it packed is kept.

        Parameters
        ----------
        w : Tensor
        key : tuple
            All that decides how it is packed, and the stream.
        new : callable
            ``new()`` is room to pack it in.

        Yields
        ------
        dict
            ``"room"``, and whether ``w`` is ``"packed"`` in there.
        """
        if w.is_inference():  # it has no version counter
            yield {"packed": False, "room": new()}
            return
        where = StorageWeakRef(w.untyped_storage()), w.data_ptr(), w.stride(), key
        version = w._version
        with self._lock:
            packed_of, room = self._kept.get(where, (None, None))
            if packed_of == version:
                self._kept[where] = self._kept.pop(where)  # the last one now
        if packed_of == version:
            yield {"packed": True, "room": room}
            return
        room = new()
        yield {"packed": False, "room": room}
        with self._lock:  # now that it is queued
            self._drop(lambda storage: storage.expired())
            self._kept.pop(where, None)
            self._kept[where] = version, room
            while len(self._kept) > self._count:
                del self._kept[next(iter(self._kept))]

    def clear(self):
        """Drop all copies."""
        with self._lock:
            self._kept.clear()

    def forget(self, w):
        """Drop the copies of what lies in a tensor's storage, and of storages that are gone. Tensors without storage have none."""
        if not self._kept or not torch._C._has_storage(w):  # a sparse kernel, or a batched one
            return
        of = StorageWeakRef(w.untyped_storage())
        with self._lock:
            self._drop(lambda storage: storage == of or storage.expired())

    def _drop(self, is_dropped):
        for where in [where for where in self._kept if is_dropped(where[0])]:
            del self._kept[where]
