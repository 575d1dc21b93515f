"""Compiling ahead: what is asked of plans, in which processes, and what is said of it."""

import os
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import numbacaps
from experiments import fused
from experiments.measuring.drawing import drawn
from numbacaps import Geometry, nn
from numbacaps.algorithms.fused import FusedPasses
from numbacaps.device import gpu
from numbacaps.device.bfloat16 import dtype_of
from numbacaps.nn.resident.layout import layout_of

package = import_module("numbacaps.warmup")
_SMALL = Geometry(2, 2, 3, 6, 5, 3, 2, 1, 2, 4, 3, (2, 1), 1)
_ROOT = Path(__file__).parents[1]
# In a process that takes it that it has a GPU, whose workers pretend too.
_PRETENDED = """
import numbacaps
from importlib import import_module
from experiments.ahead import pretend
package = import_module("numbacaps.warmup")
whole = package._make_ready

def work(*how):
    pretend((9, 0), 132)
    whole(*how)

package._make_ready = work
pretend((9, 0), 132)
if __name__ == "__main__":
    shapes = (2, 2, 5, 5, 4, 4), (4, 2, 3, 3, 4, 4)
    done = numbacaps.warmup([shapes], precisions=["ieee", "tf32"], processes=2)
    print(done.made, done.failed, done.seconds > 0)
"""


def _late(seconds):
    time.sleep(seconds)


def _fails(word):
    raise ValueError(f"no {word}")


# ---- what is asked for


def test_two_presets_are_what_experiments_time():
    known = [g for name in ("network", "workloads") for g in package.PRESETS[name].values()]
    assert sorted(map(str, known)) == sorted(map(str, fused.WORKLOADS.values()))


def _kernels(geometry):
    """What the passes of a convolution take on an H100: the pass, the kernel and, where one serves all sizes, its tile."""
    of_any_size = (
        "mma_sync",
        "mma_sync_split_k",
        "col2im",
        "register_tiles",
        "register_tiles_split_k",
    )
    passes = FusedPasses(geometry, np.dtype(np.float32), "auto")
    chosen = passes.forward_launchers, passes.input_launchers, [passes.kernel_launcher]
    return {
        (wanted, one.rung, str(one.tile) if one.rung in of_any_size else "")
        for wanted, some in enumerate(chosen)
        for one in some
    }


@pytest.mark.tiers("ptx")
def test_presets_take_most_kernels_that_drawn_convolutions_take(monkeypatch):
    monkeypatch.setattr(gpu, "current", lambda: gpu.H100)
    monkeypatch.setattr(FusedPasses, "_launchers", lambda passes, wanted, chosen: chosen)
    presets = [
        one
        for some in package.PRESETS.values()
        for one in some.values()
        if isinstance(one, Geometry)
    ]
    known = set().union(*map(_kernels, presets))
    taken = [one for number in range(100) for one in _kernels(drawn(20261127, number))]
    assert sum(one in known for one in taken) >= 0.85 * len(taken)


@pytest.mark.tiers("ptx")
@pytest.mark.parametrize(
    ("name", "rung"),
    [
        ("13, 2x2, stride 3", "warp_specialized_im2col"),
        ("10, few channels, 5x5, stride 2", "warp_specialized_lines_im2col"),
    ],
)
@pytest.mark.parametrize(
    ("dtype", "precision"),
    [("float32", "auto"), ("float32", "tf32"), ("float16", "ieee"), ("bfloat16", "ieee")],
)
def test_presets_take_im2col(name, rung, dtype, precision, monkeypatch):
    monkeypatch.setattr(gpu, "current", lambda: gpu.H100)
    monkeypatch.setattr(FusedPasses, "_launchers", lambda passes, wanted, chosen: chosen)
    passes = FusedPasses(package.PRESETS["capsules"][name], dtype_of(dtype), precision)
    assert [one.rung for one in passes.forward_launchers] == [rung]


def test_each_convolution_is_asked_for_once():
    shapes = (2, 2, 6, 5, 2, 4), (3, 2, 3, 2, 4, 3)
    jobs = package._jobs([_SMALL, shapes, _SMALL], ("float32", "float16"), ["ieee", "tf32"])
    words = [("float32", "ieee"), ("float32", "tf32"), ("float16", "ieee")]
    plain = Geometry(2, 2, 3, 6, 5, 3, 2, 1, 2, 4, 3)
    assert jobs == [(package._make_ready, (g, *word)) for g in (_SMALL, plain) for word in words]
    assert package._jobs(_SMALL, ("float64",), None) == [
        (package._make_ready, (_SMALL, "float64", "ieee"))
    ]
    assert package._jobs(_SMALL, ("float16",), ["auto"]) == [
        (package._make_ready, (_SMALL, "float16", "ieee"))
    ]


def test_layers_with_routing():
    """Kernels that two words have in common are asked for once."""
    layer = (2, 8, 5, 5, 2, 2), (4, 8, 3, 3, 2, 2), {"routing": "em", "stride": 2}
    asked = package.Routed(*layer[:2], (("routing", "em"), ("stride", 2)))
    jobs = package._jobs([layer], ("float32", "float16"), ["auto", "tf32x3", "tf32"])
    words = ("float32", "auto"), ("float32", "tf32"), ("float16", "ieee")
    assert jobs == [(package._make_routing_ready, (asked, *word)) for word in words]
    assert {one for _, (one, *_) in package._jobs("routing", ("float32",), None)} == set(
        package.PRESETS["routing"].values()
    )
    package._make_routing_ready(asked, "float32", "ieee")
    with pytest.raises(ValueError, match="routing is 'none'"):
        package._jobs([(*layer[:2], {"routing": "none"})], ("float32",), None)
    with pytest.raises(ValueError, match="holds 'precision' of a layer; precisions are of all"):
        package._jobs([(*layer[:2], {"precision": "ieee"})], ("float32",), None)
    plans = package._jobs([(*layer[:2], {"logits": True, "couplings": True})], ("float32",), None)
    package._make_routing_ready(*plans[-1][1])
    with pytest.raises(TypeError, match="logits is 3; it takes True or False"):
        package._jobs([(*layer[:2], {"logits": 3})], ("float32",), None)
    with pytest.raises(TypeError, match="x_shape is 3"):
        package._jobs([(3, layer[1], {})], ("float32",), None)
    pairs = [(*layer[:2], {"routing": "em", "stride": stride}) for stride in ([2, 1], (2, 1))]
    assert len(package._jobs(pairs, ("float32",), ["auto"])) == 1


def test_the_network_trains_and_infers_too():
    jobs = package._jobs("network", ("float32",), ["tf32"])
    assert jobs[:4] == [
        (package._network, ("float32", "tf32", what, which))
        for what in ("step", "forward")
        for which in ("published", "layer by layer")
    ]
    assert len(jobs) == 4 + 4
    assert len(package._jobs("network", ("float16",), None)) == 4  # networks take no float16
    assert len(package._jobs(("network", "workloads"), ("float32",), ["tf32"])) == 4 + 11


@pytest.mark.parametrize(
    ("how", "kind", "message"),
    [
        ({"convolutions": "netwrk"}, ValueError, "did you mean 'network'"),
        ({"convolutions": [((1, 2), (3, 4))]}, ValueError, "convolutions holds"),
        (
            {"convolutions": [((1, 2, 3, 3, 1, 1), (1, 3, 1, 1, 1, 1))]},
            ValueError,
            "convolutions h",
        ),
        ({"convolutions": [3]}, ValueError, "convolutions holds 3"),
        (
            {"convolutions": [((1, 2, 3, 3, 4, 4), (2, 2, 5, 5, 4, 4))]},
            ValueError,
            "w spans 5 of the input's height; x has 3 there",
        ),
        ({"convolutions": None}, TypeError, "convolutions is None; it takes a preset's name"),
        ({"dtypes": "float32"}, TypeError, "dtypes is 'float32'; it takes a sequence of words"),
        ({"convolutions": np.array(2)}, TypeError, "convolutions is a ndarray of shape"),
        ({"dtypes": np.array("float32")}, TypeError, "dtypes is a ndarray of shape"),
        ({"dtypes": None}, TypeError, "dtypes is None; it takes a sequence of words"),
        ({"dtypes": 0}, TypeError, "dtypes is 0; it takes a sequence of words"),
        ({"dtypes": np.array(["int8", "int4"])}, ValueError, "dtypes names .*int8"),
        ({"dtypes": (np.float32,)}, ValueError, "dtypes names <class 'numpy.float32'>; it takes"),
        ({"precisions": "tf32"}, TypeError, "precisions is 'tf32'; it takes a sequence of words"),
        ({"processes": np.float32(2)}, TypeError, "processes is .*; it takes an int"),
        ({"dtypes": ("int8",)}, ValueError, "int8"),
        ({"precisions": ("none",)}, ValueError, "precisions is"),
        ({"processes": 0}, ValueError, "processes is 0; it takes 1 or more"),
        ({"processes": True}, TypeError, "processes is True; it takes an int"),
        ({}, RuntimeError, "compiles nothing"),
    ],
)
def test_refused(how, kind, message):
    with pytest.raises(kind, match=message):
        numbacaps.warmup(**how)


# ---- processes


@pytest.mark.slow
def test_processes_work_side_by_side_and_failures_are_kept():
    jobs = [(_late, (0.01,)), (_fails, ("room",)), (_late, (0.02,))]
    told = []
    failed = package._side_by_side(jobs, 2, lambda done, of: told.append((done, of)))
    assert failed == {"room": "ValueError: no room"} and told == [(1, 3), (2, 3), (3, 3)]


def test_a_plan_makes_every_pass_ready():
    package._make_ready(_SMALL, "float32", "ieee")
    with pytest.raises(ValueError, match="precision"):
        package._make_ready(_SMALL, "float32", "none")


def test_a_network_steps_and_infers(monkeypatch):
    ran = []

    class Small(nn.CapsNet):
        @classmethod
        def published(cls, **how):
            layer = nn.Layer(2, (1, 4), precision=how["precision"])
            return cls((layer,), (1, 3, 3, 1, 1), dtype=how["dtype"])

        def step(self, x, labels):
            super().step(x, labels)
            ran.append("step")

        def forward(self, x):
            ran.append("forward")
            return super().forward(x)

    monkeypatch.setattr(nn, "CapsNet", Small)
    monkeypatch.setattr(package, "_BATCH", 2)
    for what in ("step", "forward"):
        package._network("float32", "ieee", what, "published")
    assert ran == ["step", "forward"]


def test_the_other_network_goes_layer_by_layer(monkeypatch):
    """The kernels of a network as a whole are warmed up by the published one."""
    made = []
    monkeypatch.setattr(nn.CapsNet, "step", lambda net, x, labels: made.append((net, x, labels)))
    monkeypatch.setattr(nn.CapsNet, "history", lambda net: None)
    package._network("float32", "tf32", "step", "layer by layer")
    [(net, x, labels)] = made
    assert x.shape == (128, *net.input_shape) and labels.max() < net.classes == 10
    assert layout_of(net.layers).why_not


@pytest.mark.slow
@pytest.mark.tiers("ptx")
def test_what_is_compiled_is_on_disk(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(_PRETENDED)
    where = {"NUMBA_CACHE_DIR": str(tmp_path / "kernels"), "PYTHONPATH": str(_ROOT)}
    done = subprocess.run(
        [sys.executable, script],
        env={**os.environ, **where, "NUMBACAPS_TARGET": "cuda"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "2 {} True", done.stderr
    assert len(list((tmp_path / "kernels").rglob("*.nbc"))) >= 3


# ---- the command


def _command(*arguments):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "numbacaps.warmup", *arguments],
        env={**os.environ, "NUMBACAPS_TARGET": "sim"},
        cwd=_ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("network",), "warmup: kernels run on the simulator here"),
        (("netwrk",), "warmup: convolutions names 'netwrk'; it takes one of"),
        (("--precisions", "none"), "warmup: precisions is"),
        (("--processes", "0"), "warmup: processes is 0"),
    ],
)
def test_bad_arguments(arguments, message):
    status, said = _command(*arguments)
    assert status == 2 and said.startswith(message)


def test_the_command_says_how_long_it_took(monkeypatch, capsys):
    command = import_module("numbacaps.warmup.__main__")
    asked = []

    def fake(presets, **how):
        asked.append((tuple(presets), how["dtypes"], how["precisions"], how["processes"]))
        return package.Warmup(2.345, 3, {"a layer": "why"} if len(asked) > 1 else {})

    monkeypatch.setattr(command, "warmup", fake)
    assert command.main([]) == 0
    assert "3 of 3 are ready, in 2.3 s" in capsys.readouterr().out
    assert command.main(["workloads", "--dtypes", "float16,float32", "--processes", "2"]) == 1
    said = capsys.readouterr()
    assert "3 of 4 are ready" in said.out and "not compiled: a layer: why" in said.err
    assert asked == [
        (("network", "workloads", "capsules", "routing"), ("float32",), None, None),
        (("workloads",), ("float16", "float32"), None, 2),
    ]


@pytest.mark.tiers("gpu")
def test_kernels_are_compiled_on_a_gpu():
    done = numbacaps.warmup([_SMALL], precisions=["ieee"], processes=1)
    assert done.made == 1 and not done.failed and done.seconds > 0
