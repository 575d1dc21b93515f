"""A workspace's default limit, and how long its contents stay."""

from functools import lru_cache
from types import SimpleNamespace

import numpy as np
import pytest

from numbacaps import Geometry
from numbacaps.algorithms import staged
from numbacaps.device import workspace
from numbacaps.device.target import SIMULATED
from numbacaps.device.workspace import Rooms, Workspace, Workspaces
from numbacaps.stages.slab import Slab, slabs

_F4 = np.dtype(np.float32)


@pytest.mark.parametrize("free", [1000, 1001, 3 << 40])
def test_by_default_it_is_half_of_what_is_free(free, monkeypatch):
    context = SimpleNamespace(get_memory_info=lambda: SimpleNamespace(free=free, total=9 << 40))
    monkeypatch.setattr(workspace, "SIMULATED", False)
    monkeypatch.setattr(workspace, "cuda", SimpleNamespace(current_context=lambda: context))
    assert Workspace().limit == free // 2
    assert Workspaces()["some"].limit == free // 2


def test_on_the_simulator_it_is_a_gib():
    assert SIMULATED and Workspace().limit == 1 << 30


def test_a_limit_is_kept():
    assert Workspace(7).limit == Workspaces(7)["some"].limit == 7
    assert Workspace(0).limit == 0


def _written(room, sizes):
    """Arrays of these sizes, filled by what they are called."""
    found = room.arrays({name: (size,) for name, size in sizes.items()}, _F4)
    for name, array in found.items():
        array[:] = ord(name)
    return found


def _held(room, sizes):
    """Which of these arrays still hold what was written there."""
    found = room.arrays({name: (size,) for name, size in sizes.items()}, _F4)
    return "".join(n for n, array in found.items() if (array.copy_to_host() == ord(n)).all())


@pytest.mark.skipif(not SIMULATED, reason="the host writes to arrays on the device")
def test_contents_stay_as_long_as_all_arrays_fit():
    room = Workspace()
    _written(room, {"a": 8, "b": 8})
    assert _held(room, {"a": 4, "b": 8}) == "ab" and _held(room, {"b": 2}) == "b"
    assert _held(room, {"a": 8, "b": 8}) == "ab" and room.nbytes == 64


def test_where_one_array_grows_all_are_made_anew():
    """So that they never take more than was asked for; none is mistaken for the one that was."""
    room = Workspace()
    old = room.arrays({"a": (8,), "b": (8,), "c": (8,)}, _F4)
    new = room.arrays({"a": (2,), "b": (9,)}, _F4)
    assert room.nbytes == 44
    assert all(new[name]._ary.base is not old[name]._ary.base for name in new)


@pytest.mark.parametrize("rows", [1, 1.6, 2.5, 4, 9, 100])
@pytest.mark.parametrize("needs", [("input",), ("kernel",), ("input", "kernel")])
def test_the_first_slab_is_the_largest(needs, rows):
    """Sums of the kernel's gradient, and K', lie in a workspace from one slab to the next."""
    g = Geometry(5, 2, 2, 7, 5, 3, 2, 1, 2, 2, 1, (2, 1), (1, 0))
    for shapes_of in (
        lambda slab: staged.backward_workspace(slab, needs),
        staged.forward_workspace,
    ):
        sizes = lru_cache(lambda slab: staged.elements(shapes_of(slab)))
        cut = [shapes_of(slab) for slab in slabs(g, sizes, rows * sizes(Slab(g, 0, 1, 0, 1)))]
        for shapes in cut:
            assert shapes.keys() == cut[0].keys()
            for name, shape in shapes.items():
                assert np.prod(shape) <= np.prod(cut[0][name])


def test_what_all_streams_read_outlives_each(monkeypatch):
    """Also a stream whose workspaces made way for others'."""
    kept, behind_all = [], []
    monkeypatch.setattr(
        workspace, "keep_later", lambda stream, held, *_: kept.append((stream, held[1]))
    )
    monkeypatch.setattr(workspace, "keep_behind_all", lambda *held: behind_all.append(held))
    rooms = Rooms(held=["tables"], device=1)
    for stream in range(1, Rooms.STREAMS + 2):
        rooms.of(stream)
    assert not kept and not behind_all  # its owner has it
    rooms.drop()
    assert kept == [(stream, ["tables"]) for stream in range(2, Rooms.STREAMS + 2)]
    assert behind_all == [(1, ["tables"])]
