"""Speed over drawn geometries: what is drawn, measured and said; on a GPU, that it is."""

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

import numbacaps
from experiments import drawn_speed
from experiments.measuring import (
    ceilings,
    command,
    device_memory,
    gpu_time,
    measure,
    opponents,
    quick,
    ratios,
    records,
    sources,
)
from experiments.measuring.drawing import FLOP, MOST_BYTES, drawn
from experiments.measuring.problem import PASSES, Problem, WrongResult
from experiments.measuring.workloads import square
from experiments.plots import distribution
from experiments.plots.rows import Lacking

SMALL = square(2, 2, 3, 6, 3, 1, 2, 4, 3)
NOW = {"driver": "1", "versions": "{}", "source_sha256": "before", "method_sha256": "now"}
NOW |= {"gpu": "some", "kernel_sources": sources.NO_KERNELS}


# ---- what is drawn


def test_geometries_are_drawn_over_every_axis():
    found = [drawn(5, number) for number in range(400)]
    assert all(FLOP[0] <= g.flop <= FLOP[1] and g.min_bytes(4) <= MOST_BYTES for g in found)
    assert {g.N for g in found} == {1, 2, 8, 32, 64, 128, 256}
    assert {g.D2 for g in found} == set(range(1, 17))
    assert {g.stride[0] for g in found} == {1, 2, 3} and {g.dilation[0] for g in found} == {1, 2}
    assert {1, 2, 3, 5, 7, 9} <= {g.KH for g in found}
    assert any((g.KH, g.KW) == (g.H, g.W) and g.KH > 9 for g in found)
    assert any(g.W != g.H for g in found) and any(g.D1 == g.D2 == g.D3 for g in found)
    assert all(2 * g.padding[0] <= g.KH and 2 * g.padding[1] <= g.KW for g in found)


def test_a_number_is_one_geometry_and_a_seed_gives_others():
    assert drawn(5, 3) == drawn(5, 3)
    assert len({drawn(5, 3), drawn(5, 4), drawn(6, 3)}) == 3


# ---- what is said of the rows


def _row(number, algorithm, precision, ms, wanted="forward", seed=7, **cells):
    geometry = records.of_geometry(drawn(seed, number))
    dtype = precision if precision in ("float16", "bfloat16") else "float32"
    named = {"experiment": "drawn_speed", "workload": drawn_speed.workload(seed, number)}
    named |= {"pass": wanted, "algorithm": algorithm, "precision": precision, "dtype": dtype}
    layout = "capsule" if algorithm == "fused" else "nchw"
    how = {"layout": layout, "ms_p50": ms, "note": ""}
    return {column: "" for column in records.COLUMNS} | geometry | named | how | NOW | cells


def test_the_ratio_is_of_the_fastest_two():
    rows = [
        _row(0, "fused", "ieee", "4"),
        _row(0, "fused", "tf32x3", "2"),
        _row(0, "fused", "tf32", "0.1"),
        _row(0, "torch_fold", "ieee", "8"),
        _row(0, "torch_fold", "ieee", "3", layout="channels_last"),
        _row(0, "torch_fold", "tf32", "1"),
        _row(1, "fused", "ieee", "", note="wrong result: far off"),
        _row(1, "torch_fold", "ieee", "1"),
        _row(2, "fused", "ieee", "5"),
    ]
    (found,), (failed,) = ratios.ratios(rows, "default", "forward")
    assert found.value == 1.5 and found.ours["precision"] == "tf32x3"
    assert found.theirs["layout"] == "channels_last"
    assert failed["note"] == "wrong result: far off"
    assert ratios.ratios(rows, "tf32", "forward")[0][0].value == 10
    assert ratios.ratios(rows, "default", "backward_input") == ([], [])


def test_percentiles():
    assert ratios.summary([1.0, 2.0, 4.0]) == pytest.approx((1.1, 1.5, 2.0, 2.0))


def _options(**others):
    return SimpleNamespace(passes=("forward",), precisions=("default",), workload=None, **others)


def test_the_report_tells_the_distribution_and_the_worst(monkeypatch):
    monkeypatch.setattr(
        quick, "explain", lambda geometry, row: f"head\nforward: rung {row.precision} {geometry.N}"
    )
    rows = [_row(i, "fused", "tf32x3", str(10.0**i)) for i in range(7)]
    rows += [_row(i, "torch_fold", "ieee", "10") for i in range(7)]
    rows.append(_row(7, "torch_fold", "ieee", "1"))
    rows.append(_row(7, "fused", "ieee", "", note="out of memory: no room"))
    said = "\n".join(drawn_speed.report(rows, _options()))
    assert "default, forward" in said and "    0.01" in said  # the median
    assert "1 without a time of ours: out of memory" in said
    worst = [line for line in said.splitlines() if ": default, forward, seed 7, " in line]
    assert [line.split(",")[3].split(":")[0].strip() for line in worst] == ["6", "5", "4", "3", "2"]
    assert f"  forward: rung tf32x3 {drawn(7, 6).N}" in said and "head" not in said
    assert f"N={drawn(7, 6).N} C={drawn(7, 6).C}" in said


def test_what_cannot_be_explained_is_said():
    row = _row(0, "fused", "none such", "1")
    assert "not explained: ValueError" in drawn_speed._explained(row)[0]


def test_the_package_explains_a_row():
    row = _row(0, "fused", "ieee", "1")
    head, *parts = drawn_speed._explained(row)
    assert head.startswith("  forward: ")
    assert parts and all(part.startswith("    ") for part in parts)


def test_older_rows_of_other_seeds_are_dropped(tmp_path):
    """With the library's beside them, which compare with nothing any more."""
    path = tmp_path / "drawn_speed.csv"
    rows = [_row(0, "fused", "ieee", 1, seed=seed) for seed in (1, 2, 3)]
    rows[0]["kernel_sources"] = rows[2]["kernel_sources"] = "gone"
    rows += [_row(0, "torch_fold", "ieee", 1, seed=seed) for seed in (1, 2, 3)]
    records.write(path, rows)
    table = records.Table(path, NOW)
    drawn_speed.without_older(table, 3)
    assert [row["workload"] for row in table.rows] == ["seed 2, 0", "seed 3, 0"] * 2


def test_the_figure_has_a_curve_for_each_class():
    rows = [_row(i, "fused", word, 1.0) for i in range(3) for word in ("auto", "tf32")]
    rows += [_row(i, "torch_fold", word, 1.0 + i) for i in range(3) for word in ("ieee", "tf32")]
    (panel,) = distribution.draw(rows).axes
    labels = [text.get_text() for text in panel.get_legend().get_texts()]
    assert labels == ["default  1.10 / 2.00", "tf32  1.10 / 2.00"]
    with pytest.raises(Lacking):
        distribution.draw([_row(0, "fused", "ieee", 1.0)])


# ---- what is measured


def test_variants_of_a_class():
    names = [str(one) for one in quick.choose(("default", "bfloat16"))]
    assert names[-3:] == [
        "fused capsule bfloat16",
        "torch_fold nchw bfloat16",
        "torch_fold channels_last bfloat16",
    ]
    ours = [name for name in names if name.startswith("fused") and "bfloat16" not in name]
    assert ours in (
        ["fused capsule auto"],
        ["fused capsule ieee", "fused capsule tf32x3"],
    )


def test_auto_stands_alone_where_the_package_has_it(monkeypatch):
    monkeypatch.setattr(quick, "_takes", lambda variant: True)
    assert [str(one) for one in quick.choose(("default",))][0] == "fused capsule auto"
    assert len(quick.choose(("default",))) == 3
    monkeypatch.setattr(quick, "_takes", lambda variant: False)
    with pytest.raises(LookupError, match="tf32"):
        quick.choose(("tf32",))


@pytest.mark.parametrize("wanted", PASSES)
def test_the_oracle_is_the_reference_s(wanted, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(gpu_time, "clock", lambda: SimpleNamespace(synchronize=lambda: None))
    geometry = square(2, 3, 2, 7, 3, 2, 2, 3, 4)
    problem = Problem(geometry)
    tensors = [torch.from_numpy(array) for array in problem.operands]
    right = quick.expected(geometry, wanted, tensors)
    assert right.dtype == torch.float64
    np.testing.assert_allclose(right.numpy(), problem.expected(wanted), rtol=1e-9, atol=1e-9)
    assert quick.check(right.float(), right, problem.limit(wanted, "ieee")) < 1e-6
    for wrong in (1.001 * right, right * np.nan, right[:1]):
        with pytest.raises(WrongResult):
            quick.check(wrong, right, problem.limit(wanted, "auto"))


@pytest.fixture
def turns(monkeypatch):
    """Lists of who took turns; nothing is timed, and what prepares a variant is the test's."""
    found = []

    def replays(these, effort):
        found.append([str(one) for one in these])
        return {one: np.array([2.0]) for one in these}

    monkeypatch.setattr(device_memory, "release", lambda: None)
    monkeypatch.setattr(gpu_time, "replay_in_turns", replays)
    monkeypatch.setattr(ceilings, "ceilings", lambda: {"copy_gbs": 1.0, "sgemm_tflops": 1.0})
    monkeypatch.setattr(measure, "common_cells", lambda problem, wanted: NOW)
    for name in ("operands", "expected"):
        monkeypatch.setattr(quick, name, lambda *others: None)
    return found


_READY = measure.Ready(1e-7, 5.0, None, "1 set", SimpleNamespace(), "here")


def test_a_class_takes_turns_and_what_fails_is_noted(turns, monkeypatch):
    def prepare(variant, *others):
        if variant.layout == "channels_last":
            raise RuntimeError("no such kernel")
        return _READY

    monkeypatch.setattr(quick, "_prepare", prepare)
    variants, ticks = quick.choose(("tf32", "bfloat16")), []
    rows = quick.measure_pass(Problem(SMALL), "forward", variants, ticks.append, gpu_time.FULL)
    assert turns == [
        ["torch_fold nchw tf32", "fused capsule tf32"],
        ["torch_fold nchw bfloat16", "fused capsule bfloat16"],
    ]
    assert len(ticks) == len(rows) == 6
    for variant, row in zip(variants, rows):
        assert row["precision"] == variant.precision and row["layout"] == variant.layout
        failed = variant.layout == "channels_last"
        assert row["note"] == ("RuntimeError: no such kernel" if failed else "")
        assert ("ms_p50" in row) != failed
        assert row["min_bytes"] == SMALL.min_bytes(2 if variant.dtype == "bfloat16" else 4)


@pytest.mark.parametrize("fits", [True, False])
def test_what_finds_no_memory_beside_the_others_is_timed_alone(fits, turns, monkeypatch):
    tried = []

    def prepare(variant, *others):
        tried.append(str(variant))
        if variant.algorithm == ratios.OURS and not (fits and len(tried) > 3):
            raise RuntimeError("CUDA out of memory")
        return _READY

    monkeypatch.setattr(quick, "_prepare", prepare)
    variants, ticks = quick.choose(("tf32",)), []
    rows = quick.measure_pass(Problem(SMALL), "forward", variants, ticks.append, gpu_time.FULL)
    library, ours = (
        ["torch_fold nchw tf32", "torch_fold channels_last tf32"],
        ["fused capsule tf32"],
    )
    assert tried == [*library, *ours, *ours] and len(ticks) == 3
    assert turns == ([library, ours] if fits else [library])
    notes = {row["algorithm"]: row["note"] for row in rows}
    assert notes[ratios.FOLD] == ""
    assert notes[ratios.OURS] == (measure.ALONE if fits else "out of memory: CUDA out of memory")


class _Clock:
    """A clock whose GPU is this process, at once done."""

    numba, torch, waits = "our stream", None, 0

    def synchronize(self):
        self.waits += 1

    @contextmanager
    def elapsed(self, host_us=0.0):
        elapsed = []
        yield elapsed
        elapsed.append(1.0)

    def capture(self, calls):
        return gpu_time.Replay(lambda: [call() for call in calls], len(calls), calls)

    def capture_torch(self, calls, kept):
        results = [call() for call in calls][-kept:]

        def run():
            results[-1].copy_(calls[-1]())

        return gpu_time.Replay(run, len(calls), (calls, *results))


@pytest.fixture
def here(monkeypatch):
    """PyTorch on this machine's processor, and a plan that the fold stands in for."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "stream", nullcontext)
    monkeypatch.setattr(gpu_time, "clock", _Clock)
    monkeypatch.setattr(measure, "sets_of", lambda size, most: 2)
    monkeypatch.setattr(measure, "cache_cell", lambda sets, size: "")
    monkeypatch.setattr(ceilings, "ceilings", lambda: {"copy_gbs": 1.0, "sgemm_tflops": 1.0})
    monkeypatch.setattr(quick, "launched", lambda: nullcontext(set()))
    made = []

    class Plan:
        def __init__(self, x_shape, w_shape, **how):
            made.append(how)

        def _write(self, wanted, out, *arrays):
            fold = quick._fold("nchw")
            folded = fold.prepare(SMALL, *arrays)
            out.copy_(fold.deliver[wanted](SMALL, getattr(fold, wanted)(SMALL, *folded)))

        def __call__(self, x, w, out, *, stream):
            assert stream == "our stream"
            self._write("forward", out, x, w, torch.zeros_like(out))

        def backward(self, x, w, dy, dx=None, dw=None, *, stream):
            for wanted, out in (("backward_input", dx), ("backward_kernel", dw)):
                if out is not None:
                    self._write(wanted, out, x, w, dy)

    monkeypatch.setattr(numbacaps, "plan", Plan)
    return made


@pytest.mark.parametrize("wanted", PASSES)
def test_both_are_checked_and_captured(wanted, here):
    problem = Problem(SMALL)
    tensors = [opponents.torch().from_numpy(array) for array in problem.operands]
    right = quick.expected(SMALL, wanted, tensors)
    effort = gpu_time.Effort(graph_ms=0.3, calls=8)
    for variant in quick.choose(("tf32", "float16", "bfloat16")):
        ready = quick._prepare(variant, problem, wanted, tensors, right, effort)
        exact = variant.dtype == "float32"
        assert (ready.error < 1e-6) == exact and ready.error < 2e-2
        assert ready.replay.calls == 8 and ready.kernel_sources == sources.NO_KERNELS
    assert [(how["dtype"], how["precision"]) for how in here] == [
        ("float32", "tf32"),
        ("float16", "ieee"),
        ("bfloat16", "ieee"),
    ]
    assert here[0]["stride"] == SMALL.stride and here[0]["product"] == "gab,gbc->gac"


@pytest.mark.parametrize("algorithm", [ratios.OURS, ratios.FOLD])
def test_what_is_wrong_is_not_timed(algorithm, here, monkeypatch):
    problem = Problem(SMALL)
    tensors = [opponents.torch().from_numpy(array) for array in problem.operands]
    right = 1.1 * quick.expected(SMALL, "forward", tensors)
    variant = next(one for one in quick.choose(("tf32",)) if one.algorithm == algorithm)
    with pytest.raises(WrongResult):
        quick._prepare(variant, problem, "forward", tensors, right, gpu_time.FULL)


def test_a_shorter_effort_takes_fewer_repeats_and_calls():
    effort = gpu_time.Effort(10, timed_ms=8, repeats=(5, 9), turns=2, graph_ms=0.3, calls=64)
    assert gpu_time.calls_of(1, 1e-6, 0.01, effort) == 64
    assert gpu_time.calls_of(1, 0.1, 0.2, effort) == 3


# ---- the command


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seed", "x"], "--seed: got 'x'; it takes a number of 0 or more"),
        (["--count", "0"], "--count: got '0'; it takes a number of 1 or more"),
        (["--passes", "up"], "got 'up'; it takes forward, "),
        (["--precisions", "ieee"], "got 'ieee'; it takes default, tf32, float16, bfloat16"),
        (["--settle", "-1"], "--settle"),
        (["--processes", "none"], "--processes: got 'none'"),
    ],
)
def test_bad_arguments(arguments, message, capsys):
    with pytest.raises(SystemExit) as stop:
        drawn_speed.main(arguments)
    assert stop.value.code == 2 and message in capsys.readouterr().err


@pytest.fixture
def machine(monkeypatch):
    """A machine that says it has a GPU, and measures nothing."""
    monkeypatch.setattr(command, "refuse_without_gpu", lambda name: None)
    monkeypatch.setattr(opponents, "torch_on_gpu", lambda: None)
    monkeypatch.setattr(command.provenance, "gpu_name", lambda: "here")
    monkeypatch.setattr(records, "of_machine", lambda: NOW)
    monkeypatch.setattr(command.contestants, "absent", list)
    monkeypatch.setattr(device_memory, "release", lambda: None)
    monkeypatch.setattr(quick, "explain", lambda geometry, row: "forward: some rung")


def _measured(problem, wanted, variants, tick, effort):
    for variant in variants:
        tick(variant)
    ms = {"fused": 2.0, "torch_fold": 3.0}
    return [NOW | one.cells | {"ms_p50": ms[one.algorithm]} for one in variants]


def test_a_run_resumes_and_its_seed_is_in_the_rows(machine, tmp_path, monkeypatch, capsys):
    compiled = []

    def warmup(geometries, progress, **how):
        compiled.append((len(geometries), how["dtypes"]))
        progress(1, 1)
        return SimpleNamespace(failed={"a": "b: c"})

    monkeypatch.setattr(drawn_speed.numbacaps, "warmup", warmup)
    monkeypatch.setattr(quick, "measure_pass", _measured)
    arguments = ["--seed", "11", "--count", "3", "--passes", "forward", "--results", str(tmp_path)]
    assert drawn_speed.main(arguments) == 0
    said = capsys.readouterr()
    assert (
        "default, forward" in said.out and "1.50" in said.out and "forward: some rung" in said.out
    )
    assert "1 of float32 were not compiled ahead: b: c" in said.err
    assert compiled == [(3, ("float32",)), (3, ("float16",)), (3, ("bfloat16",))]
    rows = records.read(tmp_path / "here" / "drawn_speed.csv")
    assert {row["workload"] for row in rows} == {f"seed 11, {i}" for i in range(3)}
    assert drawn_speed.main([*arguments, "--count", "4"]) == 0
    assert compiled[3] == (1, ("float32",)) and "3 of 4 groups" in capsys.readouterr().out


def test_a_run_of_one_class_keeps_the_others(machine, tmp_path, monkeypatch):
    monkeypatch.setattr(drawn_speed, "_compile", lambda groups, processes: None)
    monkeypatch.setattr(quick, "measure_pass", _measured)
    few = ["--seed", "1", "--count", "1", "--passes", "forward", "--results", str(tmp_path)]
    for name in ("tf32", "float16"):
        assert drawn_speed.main([*few, "--precisions", name]) == 0
    rows = records.read(tmp_path / "here" / "drawn_speed.csv")
    assert {row["precision"] for row in rows} == {"tf32", "float16"} and len(rows) == 2 * 3


def test_ctrl_c_keeps_finished_groups(machine, tmp_path, monkeypatch):
    def interrupted(problem, wanted, variants, tick, effort):
        if wanted == "backward_input":
            raise KeyboardInterrupt
        return _measured(problem, wanted, variants, tick, effort)

    monkeypatch.setattr(drawn_speed, "_compile", lambda groups, processes: None)
    monkeypatch.setattr(quick, "measure_pass", interrupted)
    with pytest.raises(SystemExit) as stop:
        drawn_speed.main(["--seed", "1", "--count", "1", "--results", str(tmp_path)])
    assert stop.value.code == 130
    rows = records.read(tmp_path / "here" / "drawn_speed.csv")
    assert {row["pass"] for row in rows} == {"forward"}


def test_a_seed_is_drawn_and_told(machine, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(drawn_speed, "_compile", lambda groups, processes: None)
    monkeypatch.setattr(quick, "measure_pass", _measured)
    arguments = ["--count", "1", "--passes", "forward", "--results", str(tmp_path)]
    assert drawn_speed.main(arguments) == drawn_speed.main(arguments) == 0
    seeds = [line for line in capsys.readouterr().out.splitlines() if line.startswith("seed ")]
    assert len(set(seeds)) == 2


@pytest.mark.tiers("gpu")
def test_drawn_geometries_are_measured(tmp_path, capsys):
    arguments = ["--seed", "0", "--count", "1", "--results", str(tmp_path), "--processes", "2"]
    assert drawn_speed.main(arguments) == 0
    rows = records.read(next(tmp_path.glob("*/drawn_speed.csv")))
    assert all(row["ms_p50"] and row["rel_error"] and not row["note"] for row in rows)
    assert {row["pass"] for row in rows} == set(PASSES)
    assert "default, forward" in capsys.readouterr().out
