"""The experiments: what they refuse, keep and predict; on a GPU, that they measure."""

import csv
import math
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

import reference
from experiments import memory, record, rungs, stages, sweep, table1
from experiments.measuring import (
    command,
    contestants,
    device_memory,
    gpu_time,
    networks,
    opponents,
    predict,
    records,
    sources,
)
from experiments.measuring.problem import (
    NETWORK_PASSES,
    PASSES,
    Problem,
    WrongResult,
    relative_error,
)
from experiments.measuring.shard import WHOLE
from experiments.measuring.workloads import EM_ROUTING, ONE_IMAGE, PUBLISHED, square
from numbacaps import ALGORITHMS, Geometry
from numbacaps.algorithms.passes import Passes
from numbacaps.device.target import SIMULATED, cuda
from numbacaps.extras import require

on_gpu = pytest.mark.tiers("gpu")


_ALL = SimpleNamespace(workload=None, shard=WHOLE)  # the options that choose among groups of rows
SMALL = square(2, 2, 3, 6, 3, 1, 2, 4, 3)


def _row(geometry=SMALL, wanted="forward", **cells):
    variant = {"algorithm": "indexed", "layout": "capsule", "precision": "ieee", "dtype": "float32"}
    group = {"experiment": "sweep", "workload": "some", "pass": wanted}
    return records.of_geometry(geometry) | group | variant | {"ms_p50": 1.5} | NOW | cells


# ---- rows


NOW = {"driver": "1", "versions": "{}", "method_sha256": "now"}
NOW |= {"source_sha256": "before", "kernel_sources": sources.NO_KERNELS}


def test_rows_are_kept_by_group(tmp_path):
    path = tmp_path / "gpu" / "sweep.csv"
    table = records.Table(path, NOW)
    forward, backward = _row(), _row(wanted="backward_input")
    table.replace([forward, forward | {"algorithm": "naive"}])
    table.replace([backward])
    table.replace([forward | {"ms_p50": 2.0}])
    rows = records.read(path)
    assert [(row["pass"], row["algorithm"], row["ms_p50"]) for row in rows] == [
        ("forward", "indexed", "2"),
        ("backward_input", "indexed", "1.5"),
    ]
    assert list(rows[0]) == list(records.COLUMNS)
    again = records.Table(path, NOW)
    assert again.has(forward, [forward]) and not again.has(forward, [{"algorithm": "naive"}])
    assert not again.has(forward | {"workload": "other"}, [forward])
    assert not records.Table(path, NOW, fresh=True).has(forward, [forward])


@pytest.mark.parametrize("what", ["driver", "versions", "method_sha256", "kernel_sources"])
def test_rows_of_something_else_are_measured_again(what, tmp_path):
    table = records.Table(tmp_path / "sweep.csv", NOW)
    table.replace([_row(**{what: "before"})])
    assert not table.has(_row(), [_row()])
    table.replace([_row()])
    assert table.has(_row(), [_row()])


def test_rows_that_name_no_kernels_are_of_the_sources_of_then(tmp_path):
    now = {"kernel_sources": "", "source_sha256": records.provenance.source_sha256()}
    table = records.Table(tmp_path / "sweep.csv", NOW)
    table.replace([_row(**now)])
    assert table.has(_row(), [_row()])
    table.replace([_row(**now | {"source_sha256": "before"})])
    assert not table.has(_row(), [_row()])


def test_what_measures_is_named():
    assert len(records.provenance.method_sha256()) == 64


def test_rows_without_a_package_are_measured_once_it_is_there(tmp_path):
    table = records.Table(tmp_path / "sweep.csv", NOW)
    table.replace([_row(note="absent: algorithm 'indexed' takes the extra 'indexed'")])
    assert table.has(_row(), [_row()], absent=["indexed"]) and not table.has(_row(), [_row()])


@pytest.mark.parametrize(
    "text", ["", "a,b\n1,2\n", ",".join(records.COLUMNS) + "\n1,2\n", b"\xff\xfe\x00"]
)
def test_a_foreign_file_is_left_alone(text, tmp_path, monkeypatch, capsys):
    path = tmp_path / "here" / "sweep.csv"
    path.parent.mkdir()
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    before = path.read_bytes()
    monkeypatch.setattr(command.provenance, "gpu_name", lambda: "here")
    monkeypatch.setattr(records, "of_machine", lambda: NOW)
    with pytest.raises(SystemExit) as stop:
        command.open_table("sweep", SimpleNamespace(results=tmp_path, fresh=False))
    assert stop.value.code == 2 and str(path) in capsys.readouterr().err
    assert path.read_bytes() == before


def test_an_unwritable_folder_is_named(tmp_path, monkeypatch, capsys):
    (tmp_path / "here").write_text("a file where the folder would be")
    monkeypatch.setattr(command.provenance, "gpu_name", lambda: "here")
    monkeypatch.setattr(records, "of_machine", lambda: NOW)
    with pytest.raises(SystemExit) as stop:
        command.open_table("sweep", SimpleNamespace(results=tmp_path, fresh=False))
    assert stop.value.code == 2 and "sweep.csv" in capsys.readouterr().err


@pytest.fixture
def no_device(monkeypatch):
    monkeypatch.setattr(device_memory, "release", lambda: None)


def _group(wanted, measure, names=("indexed",), others=()):
    choose = contestants.choose
    return command.Group("sweep", "some", SMALL, wanted, choose(names), measure, choose(others))


def _measured(problem, wanted, variants, tick):
    return [NOW | variant.cells | {"ms_p50": 1.0} for variant in variants]


def _passes(path):
    return [row["pass"] for row in records.read(path)]


def test_ctrl_c_loses_no_finished_group_and_resuming_skips_it(tmp_path, no_device):
    def interrupted(problem, wanted, variants, tick):
        raise KeyboardInterrupt

    def never(problem, wanted, variants, tick):
        raise AssertionError("measured before")

    path = tmp_path / "sweep.csv"
    groups = [_group("forward", _measured), _group("backward_input", interrupted)]
    with pytest.raises(SystemExit) as stop:
        command.run(records.Table(path, NOW), groups, _ALL)
    assert stop.value.code == 130 and _passes(path) == ["forward"]
    groups = [_group("forward", never), _group("backward_input", _measured)]
    command.run(records.Table(path, NOW), groups, _ALL)
    assert _passes(path) == ["forward", "backward_input"]
    assert not any(row["note"] for row in records.read(path))


def test_a_group_that_fails_is_noted_and_the_others_go_on(tmp_path, no_device, monkeypatch, capsys):
    def fails(problem, wanted, variants, tick):
        raise RuntimeError("illegal address")

    monkeypatch.setattr(records, "of_machine", lambda: NOW)
    path = tmp_path / "sweep.csv"
    groups = [_group("forward", fails), _group("backward_input", _measured)]
    command.run(records.Table(path, NOW), groups, _ALL)
    failed, measured = records.read(path)
    assert failed["note"] == "RuntimeError: illegal address" and not failed["ms_p50"]
    assert measured["ms_p50"] == "1"
    assert "no result of indexed: RuntimeError" in capsys.readouterr().err


def test_a_run_of_some_algorithms_keeps_the_others(tmp_path, no_device):
    path = tmp_path / "sweep.csv"
    command.run(
        records.Table(path, NOW), [_group("forward", _measured, ("naive", "indexed"))], _ALL
    )
    again = _group("forward", _measured, ("staged",), others=contestants.NAMES)
    command.run(records.Table(path, NOW), [again], _ALL)
    assert {row["algorithm"] for row in records.read(path)} == {"naive", "indexed", "staged"}


# ---- the command line


def test_presets():
    assert [g.D2 for _, g in sweep.preset("capsule-dims")] == list(range(1, 17))
    assert dict(sweep.preset("em-routing")) == EM_ROUTING
    gflop = {name: round(g.flop / 1e9, 1) for name, g in EM_ROUTING.items()}
    assert gflop["em"] == 21.7 and gflop["caps16"] == 543.6 and gflop["caps2"] == 12.8
    assert sum(g.flop for g in PUBLISHED.values()) / 1e9 == pytest.approx(1.914, abs=5e-4)


def test_points_are_the_product_of_the_axes():
    vary = [sweep._vary("D2=1,2"), sweep._vary("C+P=4,8")]
    found = sweep.points(vary, [("H", 6), ("N", 1)])
    assert [(g.D2, g.C, g.P) for _, g in found] == [(1, 4, 4), (1, 8, 8), (2, 4, 4), (2, 8, 8)]
    assert {name for name, _ in found} == {"D2=1,2 C+P=4,8"}


def test_every_field_of_the_geometry_is_an_axis():
    point = "N=1,C=2,P=3,H=9,W=8,KH=3,KW=2,stride=2x1,padding=1x0,dilation=1,G=2,D1=2,D2=3,D3=4"
    ((name, found),) = sweep.points([], sweep._fix(point))
    assert name == "one point"
    assert found == Geometry(1, 2, 3, 9, 8, 3, 2, 2, 2, 3, 4, (2, 1), (1, 0), 1)
    assert set(records.GEOMETRY) == set(sweep.AXES)
    ((_, square_one),) = sweep.points([], sweep._fix("H=9,KH=2"))
    assert (square_one.W, square_one.KW) == (9, 2)


def test_the_letters_of_a_product_are_axes():
    product = sweep._spec("gab,gbcd->gacd")
    found = sweep.points([sweep._vary("b=1,3")], sweep._fix("g=2,c=5"), product)
    assert [(g.G, g.D1, g.D2, g.D3) for _, g in found] == [(2, 4, 1, 20), (2, 4, 3, 20)]
    assert {name for name, _ in found} == {"gab,gbcd->gacd b=1,3"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--vary", "X=1"], "got axis 'X'; it takes D1, D2"),
        (["--vary", "D2=1,x"], "got 'D2=1,x'; it takes integers"),
        (["--vary", "D2=0"], "got 'D2=0'; it takes integers from 1"),
        (["--vary", "D2+D2=1"], "names an axis twice"),
        (["--vary", "D2=1", "--fix", "D2=3"], "D2 given twice"),
        (["--vary", "D2=1x2"], "stride, padding, dilation take pairs"),
        (["--fix", "dilation=0"], "it takes integers from 1"),
        (["--vary", "b=1,2"], "got axis 'b'; it takes D1"),
        (["--product", "ab,bc"], "--product"),
        (["--product", "ab,bc->ac", "--fix", "D2=1"], "got axis 'D2'; it takes C, "),
        (["--preset", "batch", "--product", "ab,bc->ac"], "--preset stands alone"),
        (["--fix", "C=1,2"], "'2'"),
        (["--vary", "KH=3,20"], "no output at"),
        (["--preset", "none"], "invalid choice: 'none'"),
        (["--preset", "batch", "--fix", "C=1"], "--preset stands alone"),
        (["--algorithms", "fast"], "got 'fast'; it takes naive"),
        (["--passes", "sideways"], "got 'sideways'; it takes forward"),
        (["--workload", "no such"], "--workload got 'no such'; it takes one of ['"),
        (["--precisions", "int4"], "got 'int4'; it takes auto, ieee"),
        (["--predict", "abacus"], "invalid choice: 'abacus'"),
        (["--vary", "D2=4,4"], "names a value twice"),
        (["--fix", "C=1", "--fix", "C=2"], "C given twice"),
        (["--fix", "C=1,C=2"], "C given twice"),
        (["--algorithms", "naive", "--precisions", "tf32"], "--precisions got tf32"),
        (["--predict", "H100-SXM", "--algorithms", "torch_extend_bmm"], "no floor of its own"),
        (["--predict", "H100-SXM", "--algorithms", "fused,naive"], "--algorithms got naive"),
        (["--predict", "TITAN-X-Pascal", "--precisions", "tf32"], "TITAN-X-Pascal lack tf32"),
    ],
)
def test_bad_arguments(arguments, message, capsys):
    with pytest.raises(SystemExit) as stop:
        sweep.main(arguments)
    assert stop.value.code == 2 and message in capsys.readouterr().err


@pytest.mark.parametrize("experiment", [*record.EXPERIMENTS, *record.WHOLE])
def test_without_a_gpu_it_says_what_works(experiment, capsys):
    main = __import__(f"experiments.{experiment}", fromlist=["main"]).main
    with pytest.raises(SystemExit) as stop:
        main([])
    message = capsys.readouterr().err
    assert stop.value.code == 2 and "--predict" in message and "experiments.figures" in message


@pytest.mark.tiers("simulator", "gpu")
@pytest.mark.parametrize("wanted", rungs.RUNGS)
def test_rungs_compute_what_they_are_timed_for(wanted, rng):
    """Each in the place of a plan."""
    g = Geometry(2, 2, 3, 4, 3, 2, 2, 1, 2, 4, 4) if SIMULATED else EM_ROUTING["EM ConvCaps2"]
    x, w, dy = (
        rng.standard_normal(shape, np.float32)
        for shape in (g.input_shape, g.kernel_shape, g.output_shape)
    )
    wide = [array.astype(np.float64) for array in (x, w, dy)]
    if wanted == "forward":
        want, terms = reference.capsule_convolution_einsum(*wide[:2], g.stride), g.Q * g.D2
    else:
        dx, dw = reference.capsule_convolution_backward_einsum(*wide, g.stride)
        is_dx = wanted == "backward_input"
        want = dx if is_dx else dw
        terms = g.P * g.KH * g.KW * g.D3 if is_dx else g.N * g.L * g.D1
    for rung in rungs.RUNGS[wanted]:
        if SIMULATED and ("warp_specialized" in rung.stage or rung.stage == "wgmma"):
            continue  # they take a GPU
        plan = rungs.plan_of(rung, g, wanted)
        arrays = (cuda.to_device(array.astype(rung.dtype)) for array in (x, w, dy))
        of_x, of_w, of_dy = arrays
        out = cuda.to_device(np.full(want.shape, np.nan, rung.dtype))
        if wanted == "forward":
            plan.launch_forward(of_x, of_w, out, 0)
        elif wanted == "backward_input":
            plan.launch_backward(None, of_w, of_dy, out, None, 0)
        else:
            plan.launch_backward(of_x, None, of_dy, None, out, 0)
        have = out.copy_to_host().astype(np.float32)
        reference.assert_close(have, want, terms, precision=rung.precision)


def test_every_experiment_is_in_the_list():
    text = (records.provenance.ROOT / "experiments" / "README.md").read_text()
    for experiment in (*record.EXPERIMENTS, *record.WHOLE):
        assert f"| `python -m experiments.{experiment}` |" in text


@pytest.mark.skipif(not SIMULATED, reason="without a GPU")
def test_measuring_without_a_gpu_says_so():
    indexed = contestants.choose(("indexed",))
    for measured in (
        lambda: command.measure.measure(Problem(SMALL), "forward", indexed),
        lambda: networks.measure_network(Problem(SMALL), "net_forward", []),
    ):
        with pytest.raises(RuntimeError, match="measured on a GPU; there is none here"):
            measured()


# ---- predictions


def test_predictions_say_so(tmp_path, capsys):
    assert sweep.main(["--predict", "A100-SXM-80GB", "--results", str(tmp_path)]) == 0
    assert "none of them measured" in capsys.readouterr().out
    rows = records.read(tmp_path / "A100-SXM-80GB-predicted" / "sweep.csv")
    assert rows and all(row["note"].startswith("prediction") for row in rows)
    assert {row["gpu"] for row in rows} == {"A100-SXM-80GB (predicted)"}
    assert {row["workload"] for row in rows} == {*sweep.PRESETS, *EM_ROUTING}
    count = len(rows)
    assert sweep.main(["--predict", "A100-SXM-80GB", "--results", str(tmp_path)]) == 0
    more = ["--predict", "A100-SXM-80GB", "--vary", "D2=3", "--results", str(tmp_path)]
    assert sweep.main(more) == 0
    again = records.read(tmp_path / "A100-SXM-80GB-predicted" / "sweep.csv")
    ours = [v for v in contestants.choose(predict.PREDICTED) if v.algorithm in ALGORITHMS]
    assert len(again) == count + 3 * len(ours)
    assert {row["algorithm"] for row in again} == {"fused", "staged"}


def test_predictions_do_not_overwrite_a_foreign_file(tmp_path):
    path = tmp_path / "H100-SXM-predicted" / "sweep.csv"
    path.parent.mkdir()
    path.write_text("mine\n")
    assert sweep.main(["--predict", "H100-SXM", "--results", str(tmp_path)]) == 2
    assert path.read_text() == "mine\n"


def test_what_has_no_prediction_is_said(tmp_path, capsys):
    arguments = ["--predict", "H200-SXM", "--results", str(tmp_path), "--vary", "D2=3"]
    assert sweep.main(arguments) == 0
    assert "not predicted: naive has no floor of its own" in capsys.readouterr().out
    assert sweep.main([*arguments, "--algorithms", "fused", "--precisions", "tf32"]) == 0
    assert "not predicted" not in capsys.readouterr().out
    rows = records.read(tmp_path / "H200-SXM-predicted" / "sweep.csv")
    assert [(row["algorithm"], row["precision"]) for row in rows] == [("fused", "tf32")] * 3


def test_floors_by_hand():
    g = Geometry(1, 1, 1, 2, 2, 1, 1, 1, 1, 1, 1)  # 4 in, 1 kernel element, 4 out; 8 FLOP
    gpu = "A100-SXM-80GB"
    gbs = predict.GPUS[gpu].gbs
    assert predict.floor_ms(g, "fused", "forward", gpu) == 9 * 4 / gbs / 1e6
    assert predict.floor_ms(g, "fused", "forward", gpu, "float16") == 9 * 2 / gbs / 1e6
    # im2col 4+4, extend 4+4, kernel 1+4, products 4+4+4, sum 4+4 elements
    assert predict.floor_ms(g, "staged", "forward", gpu) == pytest.approx(41 * 4 / gbs / 1e6)
    large = Geometry(64, 64, 64, 16, 16, 3, 3, 1, 16, 16, 16)
    for precision, tflops in (("ieee", 19.5), ("tf32", 156), ("tf32x3", 52), ("float16", 312)):
        ms = large.flop / tflops / 1e9
        assert predict.floor_ms(large, "fused", "forward", gpu, precision) == pytest.approx(ms)


def test_predicted_memory_by_hand():
    g = Geometry(2, 1, 3, 2, 2, 1, 1, 1, 1, 1, 1)
    assert memory.predicted_bytes(g, "indexed", "forward") == 4 * (8 + 3 + 24)
    # and I_flat 8, I' 24, K' 12, O' 24
    assert memory.predicted_bytes(g, "staged", "forward") == 4 * (35 + 8 + 24 + 12 + 24)
    assert memory.predicted_bytes(g, "torch_fold", "forward") is None


# ---- what is checked


def test_the_oracle_of_a_problem_is_the_reference():
    problem = Problem(SMALL)
    x, w, dy = problem.operands
    wanted = (
        reference.capsule_convolution(x, w),
        *reference.capsule_convolution_backward(x, w, dy),
    )
    for name, want in zip(PASSES, wanted):
        assert problem.shape(name) == want.shape
        assert problem.check(name, want, "ieee") < 1e-6


def test_a_wrong_result_is_not_timed():
    problem = Problem(SMALL)
    right = problem.expected("forward").astype(np.float32)
    for wrong in (right * np.float32(1.001), np.full_like(right, np.nan), np.zeros_like(right)):
        with pytest.raises(WrongResult, match="wrong result: relative error"):
            problem.check("forward", wrong, "ieee")
    assert problem.check("forward", right * np.float32(1.001), "tf32") < 2e-3
    with pytest.raises(WrongResult, match="shape"):
        problem.check("forward", right[0], "ieee")


def test_relative_error_is_the_reference_s(rng):
    expected = rng.standard_normal((5, 3, 4))
    actual = (expected + 1e-3 * rng.standard_normal(expected.shape)).astype(np.float32)
    assert relative_error(actual, expected) == pytest.approx(
        reference.relative_error(actual, expected)
    )
    actual[4, 2, 1] = np.nan
    assert relative_error(actual, expected) == np.inf


def test_variants():
    everyone = contestants.choose(contestants.NAMES)
    ours = [variant for variant in everyone if variant.algorithm in ALGORITHMS]
    assert [variant.algorithm for variant in ours if variant.precision == "ieee"] == [
        *contestants.OURS
    ]
    for variant in ours:
        precision = "ieee" if variant.precision == "float16" else variant.precision
        assert precision in ALGORITHMS[variant.algorithm].precisions(np.dtype(variant.dtype))
    theirs = {variant.cells["algorithm"] for variant in everyone} - set(ALGORITHMS)
    assert theirs == set(opponents.NAMES) and all(name.startswith("torch_") for name in theirs)
    assert len(set(everyone)) == len(everyone) == len(ours) + 3 * len(opponents.OPPONENTS)
    assert {v.dtype for v in everyone if v.precision == "float16"} == {"float16"}
    assert [v.algorithm for v in contestants.choose(("indexed",), ("tf32",))] == []


def test_variants_of_the_network():
    everyone = networks.choose(networks.NAMES)
    assert {variant.algorithm for variant in everyone} == set(networks.NAMES)
    assert len(set(everyone)) == len(everyone)
    names = [str(variant) for variant in networks.choose(("capsnet", "torch_net_graph"), ("ieee",))]
    assert names == [
        "capsnet capsule ieee",
        "torch_net_graph nchw ieee",
        "torch_net_graph channels_last ieee",
    ]
    assert networks.choose(("naive",)) == []


def test_work_of_the_network():
    flop, least = networks.work("net_forward", 128)
    assert flop == sum(g.flop for g in PUBLISHED.values())
    assert least == sum(g.min_bytes(4) for g in PUBLISHED.values())
    first = PUBLISHED["layer 1"]
    assert networks.work("net_step", 128) == (3 * flop - first.flop, 3 * least - first.min_bytes(4))


def test_the_reference_s_row():
    problem = Problem(square(1, 1, 2, 3, 2, 1, 2, 2, 2))
    for wanted in PASSES:
        row = table1.reference_row(problem, wanted)
        assert row["ms_p50"] > 0 and row["rel_error"] < 1e-6 and "run once" in row["note"]


# ---- the clock


def test_notes_of_failures():
    measure = command.measure
    for failure in (
        MemoryError("no room"),
        RuntimeError("CUDA out of memory. Tried to allocate 47.53 GiB."),
        RuntimeError("[2] Call to cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY"),
    ):
        assert device_memory.is_out_of_memory(failure)
        assert measure.note_of(failure).startswith("out of memory: ")
    assert not device_memory.is_out_of_memory(RuntimeError("illegal address"))
    with pytest.raises(ImportError) as missing:
        require("no_such_package", "some", "an experiment")
    note = measure.note_of(missing.value)
    assert note.startswith("absent: an experiment takes the extra 'some' (pip install 'numbacaps")
    assert len(measure.note_of(RuntimeError("word " * 100))) < 200


class _WarmGPU:
    """A clock whose GPU's slowness follows, 80 ms behind, the one that each kind of work leads to."""

    now, slowness = 0.0, 1.0

    def replay(self, ms, own):
        def run():
            taken = ms * self.slowness
            self.slowness += (own - self.slowness) * (1 - math.exp(-taken / 80))
            self.now += taken

        return gpu_time.Replay(run)

    @contextmanager
    def elapsed(self, host_us=0.0):
        begun, elapsed = self.now, []
        yield elapsed
        elapsed.append(self.now - begun)


def test_each_variant_is_timed_at_the_clock_that_it_leads_to(monkeypatch):
    gpu = _WarmGPU()
    monkeypatch.setattr(gpu_time, "clock", lambda: gpu)
    kinds = {"frugal": (1.0, 1.0), "hungry": (2.0, 1.3), "slow": (200.0, 1.1)}
    replays = {name: gpu.replay(*kind) for name, kind in kinds.items()}
    times = gpu_time.replay_in_turns(replays)
    for name, (ms, own) in kinds.items():
        assert np.median(times[name]) == pytest.approx(ms * own, rel=0.01), name


def test_calls_of_a_graph():
    calls_of = gpu_time.calls_of
    assert calls_of(sets=3, floor_ms=0.1, eager_ms=0.5) == 10  # a millisecond of calls
    assert calls_of(sets=64, floor_ms=0.1, eager_ms=0.5) == 64  # every set once
    assert calls_of(sets=1, floor_ms=0.1, eager_ms=80.0) == 1  # a slow one alone


@on_gpu
def test_everything_is_measured(monkeypatch):
    """All algorithms and opponents; one that is wrong has no time."""
    measure = command.measure
    monkeypatch.setattr(gpu_time, "SLOW_MS", math.inf)  # other tests may use the GPU too

    def zeros(geometry, x, w, out, *, stream, workspace):
        out.copy_to_device(np.zeros(out.shape, out.dtype), stream=stream)

    made = partial(Passes, SimpleNamespace(forward=zeros))
    wrong = replace(ALGORITHMS["indexed"], passes=made)
    monkeypatch.setitem(ALGORITHMS, "wrong", wrong)
    variants = contestants.choose(("wrong", *contestants.NAMES))
    rows = measure.measure(Problem(SMALL), "forward", variants)
    by_name = {row["algorithm"]: row for row in rows}
    assert "wrong result" in by_name.pop("wrong")["note"]
    for row in rows:
        if row["algorithm"] == "wrong":
            assert "ms_p50" not in row
            continue
        assert row["note"] == (
            "calls queued, not in a graph" if row["algorithm"] == "cublas" else ""
        )
        assert 0 < row["ms_p20"] <= row["ms_p50"] <= row["ms_p80"]
        assert row["rel_error"] < 3e-3 and row["host_us"] > 0
        assert row["peak_bytes"] >= row["min_bytes"] > 0
        assert row["copy_gbs"] > 0 and row["sgemm_tflops"] > 0
        ours = row["algorithm"] in ALGORITHMS
        assert (row["kernel_sources"] != sources.NO_KERNELS) == ours
    assert by_name["staged"]["peak_bytes"] > by_name["indexed"]["peak_bytes"]


@on_gpu
@pytest.mark.parametrize("wanted", NETWORK_PASSES)
def test_networks_are_measured(wanted):
    """Ours and the twin, checked alone and as graphs.

    At the published batch, as they are timed: where TF32 turns the sign of a sum near 0, LeakyReLU's
    gradient is another, and the fewer the images the more each such place counts in the mean over them.
    """
    variants = networks.choose(("capsnet", "torch_net", "torch_net_graph"))
    problem = Problem(PUBLISHED["layer 1"])
    rows = networks.measure_network(problem, wanted, variants)
    assert [row["algorithm"] for row in rows] == [variant.algorithm for variant in variants]
    for row in rows:
        assert row["note"] == (
            "calls queued, not in a graph" if row["algorithm"] == "torch_net" else ""
        )
        assert 0 < row["ms_p20"] <= row["ms_p50"] <= row["ms_p80"]
        assert row["rel_error"] < 2e-2 and row["host_us"] > 0
        assert set(row) <= set(records.COLUMNS)


@on_gpu
def test_out_of_memory_is_a_note(monkeypatch):
    measure = command.measure

    class TooLarge(contestants.OurRun):
        def __init__(self, *arguments):
            raise MemoryError("1000 GB asked for")

    indexed = contestants.choose(("indexed",))[0]
    rows = measure.measure(Problem(SMALL), "forward", [replace(indexed, run=TooLarge), indexed])
    assert rows[0]["note"] == "out of memory: 1000 GB asked for" and "ms_p50" not in rows[0]
    assert rows[1]["ms_p50"] > 0


@on_gpu
def test_a_sweep_resumes(tmp_path, capsys):
    arguments = ["--vary", "D2=2,4", "--fix", "N=2,C=2,P=2,H=6", "--results", str(tmp_path)]
    arguments += ["--algorithms", "naive,staged,indexed,torch_fold", "--precisions", "ieee"]
    assert sweep.main(arguments) == 0
    path = next(tmp_path.glob("*/sweep.csv"))
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 3 * (3 + 3) and all(row["ms_p50"] for row in rows)
    before = path.read_bytes()
    assert sweep.main(arguments) == 0
    assert "6 of 6 groups" in capsys.readouterr().out and path.read_bytes() == before


@on_gpu
def test_stages_and_memory_are_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(stages, "WORKLOADS", {"small": SMALL})
    assert stages.main(["--results", str(tmp_path)]) == 0
    monkeypatch.setattr(memory, "BATCHES", (1, 64))
    monkeypatch.setitem(EM_ROUTING, "em", square(64, 8, 8, 14, 3, 1, 4, 4, 4))
    assert memory.main(["--results", str(tmp_path), "--passes", "forward"]) == 0
    timed = records.read(next(tmp_path.glob("*/stages.csv")))
    assert all(row["ms_p50"] for row in timed) and len({row["stage"] for row in timed}) == 12
    # Other processes take and free memory beside this one, so how much it was is not looked at.
    rows = records.read(next(tmp_path.glob("*/memory.csv")))
    assert rows and all(row["peak_bytes"] and not row["note"] for row in rows)


@on_gpu
def test_one_image_is_measured_beside_the_loops(tmp_path, monkeypatch):
    monkeypatch.setattr(table1, "PUBLISHED", {})
    arguments = ["--results", str(tmp_path), "--algorithms", "indexed", "--passes", "forward"]
    assert table1.main(arguments) == 0
    rows = records.read(next(tmp_path.glob("*/table1.csv")))
    assert [row["algorithm"] for row in rows] == ["reference", "indexed"]
    assert {row["workload"] for row in rows} == set(ONE_IMAGE)


def test_memory_was_what_the_geometry_says():
    """An array is rounded up to 2 MiB at most; kernels' code and small pools take some more."""
    for path in records.provenance.RESULTS.glob("*/memory.csv"):
        for row in records.read(path):
            if row["predicted_bytes"] and row["peak_bytes"]:
                off = int(row["peak_bytes"]) - int(row["predicted_bytes"])
                assert abs(off) <= 32 << 20, row
