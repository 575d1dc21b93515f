"""What a call costs the host: what is called, how it is timed and kept; on a GPU, that it is measured."""

import time
from functools import partial

import numpy as np
import pytest

import reference
from experiments import host_cost
from experiments.measuring import command, device_memory, host, listed, opponents, quick, records
from experiments.measuring.listing import Listing
from experiments.measuring.problem import Problem
from experiments.measuring.workloads import square

SMALL = square(2, 2, 3, 5, 3, 1, 2, 3, 4)
NOW = {"gpu": "here", "driver": "1", "versions": "{}", "source_sha256": "now"}


# ---- the CSV


def test_rows_are_kept_by_their_keys(tmp_path):
    path = tmp_path / "some" / "x.csv"
    first = Listing(path, ("what",), ("us", "note"), NOW)
    first.add([{"what": "a", "us": 1.23456789}, {"what": "b", "note": "absent"}])
    first.add([{"what": "a", "us": 2.0}])
    again = Listing(path, ("what",), ("us", "note"), NOW)
    assert [(row["what"], row["us"]) for row in again.rows] == [("b", ""), ("a", "2")]
    assert again.rows[0]["gpu"] == "here" and again.rows[0]["timestamp"]
    assert again.has(("a",)) and not again.has(("c",)) and not again.is_current
    assert not Listing(path, ("what",), ("us", "note"), NOW, fresh=True).has(("a",))
    for name in NOW:
        other = Listing(path, ("what",), ("us", "note"), NOW | {name: "other"})
        assert not other.has(("a",)), name


def test_rows_of_the_package_as_it_is_are_current(tmp_path):
    of = {"source_sha256": records.provenance.source_sha256()}
    found = Listing(tmp_path / "x.csv", ("what",), ("us",), NOW | of)
    assert not found.is_current
    found.add([{"what": "a"}])
    assert found.is_current


@pytest.mark.parametrize("text", [b"", b"what,us\n1,2\n", b"\xff\xfe"])
def test_a_foreign_file_is_left_alone(text, tmp_path):
    path = tmp_path / "x.csv"
    path.write_bytes(text)
    with pytest.raises(records.ForeignFile, match="x.csv"):
        Listing(path, ("what",), ("us",), NOW)
    assert path.read_bytes() == text


# ---- what is called


@pytest.mark.slow
def test_ours_are_the_three_calls():
    x, w, dy, y = host.arrays_of("numba", SMALL)
    calls = host.ours(SMALL, (x, w, dy, y), "ieee")
    assert set(calls) == set(host.OURS) == set(host.THEIRS)
    operands = [array.copy_to_host() for array in (x, w, dy)]
    wide = [array[..., None, :, :].astype(np.float64) for array in operands]
    right = reference.capsule_convolution(*wide[:2])[..., 0, :, :]
    calls["plan"]()
    reference.assert_close(y.copy_to_host(), right, SMALL.Q * SMALL.D2)
    reference.assert_close(calls["capsule_conv2d"]().copy_to_host(), right, SMALL.Q * SMALL.D2)
    gradients = reference.capsule_convolution_backward(*wide)
    for found, want in zip(calls["gradients"](), gradients):
        reference.assert_close(found.copy_to_host(), want[..., 0, :, :], 100)


@pytest.mark.parametrize("layout", host.LAYOUTS)
def test_the_fold_is_the_convolution(layout):
    torch = pytest.importorskip("torch")
    problem = Problem(SMALL)
    x, w, dy = (torch.from_numpy(array[..., 0, :, :].copy()) for array in problem.operands)
    calls = host.fold(SMALL, (x, w, dy, None), layout)
    assert calls["forward"]().is_contiguous()
    found = [calls["forward"](), *calls["gradients"](), *calls["gradients"]()]
    wanted = ["forward", *["backward_input", "backward_kernel"] * 2]
    for result, name in zip(found, wanted):
        problem.check(name, result.numpy()[..., None, :, :], "ieee")


def test_an_absent_library_is_named(monkeypatch):
    def absent(*names):
        raise ImportError("host_cost takes the extra 'cublas'")

    monkeypatch.setattr(host, "require", absent)
    with pytest.raises(ImportError, match="cublas"):
        host.arrays_of("cupy", SMALL)


# ---- how it is timed


@pytest.mark.slow
def test_waiting_is_not_the_host_s_time():
    wait = partial(time.sleep, 0.02)
    us = host_cost.queueing_us(partial(time.sleep, 0.001), wait, queued=4, repeats=3)
    assert 1000 <= us < 5000
    assert host_cost.wall_us(partial(time.sleep, 0.001), wait) >= 21000


@pytest.fixture
def machine(monkeypatch):
    """A machine that says it has a GPU; arrays are Numba's, and calls take what they are told to."""
    monkeypatch.setattr(command, "refuse_without_gpu", lambda name: None)
    monkeypatch.setattr(opponents, "torch_on_gpu", lambda: None)
    monkeypatch.setattr(listed.provenance, "gpu_name", lambda: "here")
    monkeypatch.setattr(listed, "of_machine", lambda: NOW)
    monkeypatch.setattr(device_memory, "release", lambda: None)
    monkeypatch.setattr(host_cost, "cases", lambda options: [CASE])
    monkeypatch.setattr(host_cost.host, "arrays_of", lambda library, geometry: None)
    calls = dict.fromkeys(host.OURS, "ours")
    monkeypatch.setattr(host_cost.host, "ours", lambda geometry, arrays, precision: calls)

    def fold(geometry, arrays, layout):
        return {"forward": layout, "gradients": layout}

    monkeypatch.setattr(host_cost.host, "fold", fold)
    times = {"ours": 20.0, "nchw": 90.0, "channels_last": 80.0}
    monkeypatch.setattr(host_cost, "queueing_us", lambda call, wait: times[call])


CASE = ("host", host_cost.LAYER, "plan", "torch", "default")


def test_a_row_has_both_times_and_is_not_measured_again(machine, tmp_path, monkeypatch, capsys):
    pytest.importorskip("torch")
    assert host_cost.main(["--results", str(tmp_path)]) == 0
    assert "0.25" in capsys.readouterr().out
    (row,) = host_cost.listing(tmp_path / "here").rows
    assert (row["ours_us"], row["fold_us"], row["ratio"]) == ("20", "80", "0.25")
    monkeypatch.setattr(host_cost, "measure_case", None)
    assert host_cost.main(["--results", str(tmp_path)]) == 0
    assert not host_cost.is_current(tmp_path / "here")  # of other sources


def test_what_cannot_be_called_is_noted(machine, tmp_path, monkeypatch, capsys):
    def absent(library, geometry):
        raise ImportError("host_cost takes the extra 'cublas'")

    monkeypatch.setattr(host_cost.host, "arrays_of", absent)
    assert host_cost.main(["--results", str(tmp_path)]) == 0
    assert "absent: host_cost takes the extra" in capsys.readouterr().out


def test_a_class_that_ours_lacks_is_named(machine, tmp_path, monkeypatch, capsys):
    def lacking(names):
        raise LookupError(names[0])

    monkeypatch.setattr(quick, "choose", lacking)
    with pytest.raises(SystemExit) as stop:
        host_cost.main(["--precisions", "tf32", "--results", str(tmp_path)])
    said = capsys.readouterr().err
    assert stop.value.code == 2 and "--precisions got tf32; it takes classes that ours has" in said
    assert not list(tmp_path.iterdir())


def test_ctrl_c_keeps_finished_rows(machine, tmp_path, monkeypatch, capsys):
    def interrupted(call, wait):
        raise KeyboardInterrupt

    monkeypatch.setattr(host_cost, "queueing_us", interrupted)
    pytest.importorskip("torch")
    assert host_cost.main(["--results", str(tmp_path)]) == 130
    assert "every finished row" in capsys.readouterr().err


def test_every_array_and_workload_has_a_row():
    options = host_cost.make_parser().parse_args([])
    found = host_cost.cases(options)
    assert len(set(found)) == len(found) == 2 * (3 * 3 + 11)
    assert {case[3] for case in found} == set(host.ARRAYS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--arrays", "jax"], "--arrays: got 'jax'; it takes torch, cupy, numba"),
        (["--precisions", "ieee"], "got 'ieee'; it takes default, tf32"),
        (["--workloads", "huge"], "got 'huge'; it takes paper-layer-2"),
    ],
)
def test_bad_arguments(arguments, message, capsys):
    with pytest.raises(SystemExit) as stop:
        host_cost.main(arguments)
    assert stop.value.code == 2 and message in capsys.readouterr().err


@pytest.mark.tiers("gpu")
def test_host_cost_is_measured(tmp_path):
    arguments = ["--arrays", "torch,numba", "--precisions", "default", "--workloads", "em-caps2"]
    assert host_cost.main([*arguments, "--results", str(tmp_path)]) == 0
    rows = host_cost.listing(next(tmp_path.iterdir())).rows
    assert len(rows) == 7 and all(float(row["ratio"]) > 0 and not row["note"] for row in rows)
