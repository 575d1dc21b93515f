"""How much memory a workspace may take where nobody says."""

from types import SimpleNamespace

import pytest

from numbacaps.device import workspace
from numbacaps.device.target import SIMULATED
from numbacaps.device.workspace import Workspace, Workspaces


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
