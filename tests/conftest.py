"""The three tiers of proof. ``pytest --tier simulator|ptx|gpu`` runs one of them.

A tier is chosen before numbacaps is imported, because the target is. Tests name their tiers with
``pytest.mark.tiers``; a test that names none needs no kernel and belongs to the simulator's.
"""

import os
import sys
from collections import defaultdict
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest

from experiments.measuring import cards

_TIERS = {
    "simulator": (
        "indexing and arithmetic of every kernel against reference/, on Numba's simulator",
        "races (threads take turns: some missing barriers show), types (float64 creeping in), speed",
    ),
    "ptx": (
        "every kernel compiled for the GPUs it is for, cc 7.5 to 12.0: types, memory, instructions",
        "results, registers: nothing was assembled or run",
    ),
    "gpu": (
        "every kernel and public path on a real GPU against a float64 oracle",
        "races (compute-sanitizer: python -m tests.record_gpu), speed, other GPUs than this one",
    ),
}


def pytest_addoption(parser):
    parser.addoption("--tier", choices=list(_TIERS), default="simulator", help="tier to run")
    parser.addoption(
        "--part",
        choices=["quick", "rest"],
        help="quick: leave out what is marked slow, as make test does; rest: only that",
    )
    parser.addoption("--passed", help="file of tests to leave out; those that pass are added to it")


def pytest_configure(config):
    assert not any(name.startswith("numbacaps") for name in sys.modules), (
        "a conftest.py imports numbacaps"
    )
    os.environ["NUMBACAPS_TARGET"] = "sim" if config.option.tier == "simulator" else "cuda"
    if config.option.tier == "simulator":
        os.environ["NUMBA_ENABLE_CUDASIM"] = "1"  # for a file that imports Numba before numbacaps
    if config.option.tier == "gpu" and hasattr(config, "workerinput"):
        os.environ |= cards.turned(int(config.workerinput["workerid"].removeprefix("gw")))
    if config.option.passed and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Noted(config.option.passed))


def pytest_ignore_collect(collection_path, config):
    """A file that has no test of the tier or the part is left alone: to import it takes time.

    One that was asked for is read.
    """
    path = collection_path
    asked = any(path.name in argument for argument in config.args)
    if asked or not path.name.startswith("test_"):
        return None
    text = path.read_text()
    left_out = config.option.part == "quick" and _is_slow(text)
    return True if left_out or not _may_have(config.option.tier, text) else None


def _is_slow(text):
    """Whether all tests of a file that holds the text are marked slow, with no case excepted."""
    return "\npytestmark = pytest.mark.slow\n" in text and "slow(but=" not in text


def _may_have(tier, text):
    """Whether a file that holds the text may have a test of a tier; a test that names none is the simulator's."""
    all_named = "\npytestmark = pytest.mark.tiers(" in text
    return f'"{tier}"' in text or (tier == "simulator" and not all_named)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    tier = config.option.tier
    kept, left = [], []
    for item in items:
        marker = item.get_closest_marker("tiers")
        tiers = marker.args if marker else ("simulator",)
        enough = item.get_closest_marker("two_gpus") is None or _gpus() >= 2
        (kept if tier in tiers and enough else left).append(item)
    if config.option.part:
        slow = _slow(kept, whole=not any("::" in argument for argument in config.args))
        wanted = [(item in slow) == (config.option.part == "rest") for item in kept]
        left += [item for item, is_wanted in zip(kept, wanted) if not is_wanted]
        kept = [item for item, is_wanted in zip(kept, wanted) if is_wanted]
    passed = _passed(config)
    left += [item for item in kept if item.nodeid in passed]
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in kept if item.nodeid not in passed]


@cache
def _gpus():
    """How many GPUs there are."""
    from numbacaps.device.target import SIMULATED, cuda

    return 0 if SIMULATED or not cuda.is_available() else len(cuda.gpus)


def _slow(items, whole):
    """Tests that are marked slow, but for the cases that the mark names; each name must be of some case."""
    slow, named, found = set(), defaultdict(set), defaultdict(set)
    for item in items:
        marker = item.get_closest_marker("slow")
        if marker is None:
            continue
        function, case = item.nodeid.partition("[")[0], getattr(item, "callspec", None)
        patterns = marker.kwargs.get("but", ())
        matched = {pattern for pattern in patterns if case and fnmatch(case.id, pattern)}
        named[function].update(patterns)
        found[function] |= matched
        if not matched:
            slow.add(item)
    absent = {name: missing for name in named if (missing := named[name] - found[name])}
    if absent and whole:
        raise pytest.UsageError(f"slow(but=...) names cases that are not there: {absent}")
    return slow


def _passed(config):
    """Names of the tests that passed before."""
    path = config.option.passed
    return set(Path(path).read_text().splitlines()) if path and Path(path).exists() else set()


class _Noted:
    """Adds the tests that pass to a file and shows why others fail, at once, so that no interruption loses it.

    Of several processes only the first has one.
    """

    def __init__(self, path):
        self._path = path

    def pytest_runtest_logreport(self, report):
        if report.when == "call" and report.passed:
            with open(self._path, "a") as file:
                file.write(report.nodeid + "\n")
        if report.failed:
            print(f"{report.nodeid}, {report.when}:\n{report.longreprtext}", flush=True)


def pytest_terminal_summary(terminalreporter, config):
    checked, unchecked = _TIERS[config.option.tier]
    terminalreporter.write_sep("-", f"tier {config.option.tier}")
    terminalreporter.write_line(f"checked:     {checked}")
    terminalreporter.write_line(f"not checked: {unchecked}")


@pytest.fixture(autouse=True)
def _initcheck(request):
    """On the simulator, a test that is marked ``sanitize`` fails if its kernels read uninitialized device memory."""
    marked = request.node.get_closest_marker("sanitize")
    if not marked or request.config.option.tier != "simulator":
        yield
        return
    import numbacaps
    from tests.support.initcheck import initcheck

    numbacaps.clear_caches()  # workspaces of earlier tests are not watched
    with initcheck() as initialized:
        yield
    assert not initialized.errors, "uninitialized memory is read: " + ", ".join(
        set(initialized.errors)
    )


@pytest.fixture
def rng():
    """A generator that every test starts alike."""
    import numpy as np

    return np.random.default_rng(20210)
