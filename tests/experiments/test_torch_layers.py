"""Layers for PyTorch beside plain PyTorch: what is called and checked, how rows are kept and told. Nothing is timed here."""

import gc
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

pytestmark = pytest.mark.tiers("simulator")
torch = pytest.importorskip("torch", reason="the extra 'torch' is not installed")

import numbacaps
from experiments import figures, record, torch_layers, train_digits
from experiments.measuring import (
    clocks,
    device_memory,
    gpu_time,
    launcher,
    opponents,
    provenance,
    tables,
    torch_calls,
    torch_rows,
    torch_steps,
)
from experiments.measuring.problem import Problem, WrongResult
from experiments.measuring.torch_rows import (
    CALLERS,
    KEYS,
    MODULES,
    NETWORK,
    PASSES,
    TWINS,
)
from experiments.measuring.workloads import square
from experiments.plots import torch_layers as figure
from experiments.plots.rows import Lacking
from numbacaps.device.target import cuda

SMALL = Problem(square(2, 2, 3, 5, 3, 2, 2, 3, 4))
CAPS = {"images": 3, "device": "cpu", "filters": 6, "capsules": 4, "window": 3, "grid": 7}
NOW = {"gpu": "here", "driver": "1", "versions": "{}", "source_sha256": "now"}


# ---- calls


@pytest.mark.parametrize("what", PASSES)
@pytest.mark.parametrize("contestant", [name for name in CALLERS if name != torch_rows.PLAN])
def test_callers_are_the_convolution(contestant, what):
    caller = torch_calls.make(contestant, SMALL, "default", "cpu")
    assert len(getattr(caller, what)()) == (1 if what == "forward" else 3)
    assert torch_calls.check(caller, what, SMALL) < 1e-5


@pytest.mark.parametrize("what", PASSES)
def test_a_plan_is_called_with_its_arrays(what, monkeypatch):
    """On the simulator, whose arrays share the tensors' memory."""
    wrapped, made = type(cuda.to_device(np.zeros(1))), numbacaps.plan

    def plan(*shapes, precision, **moves):
        real = made(*shapes, **moves, precision="ieee", algorithm="indexed")

        def share(arrays):
            return [wrapped(tensor.numpy()) for tensor in arrays]

        class Plan:
            def __call__(self, *arrays):
                real(*share(arrays))
                return arrays[-1]

            def backward(self, *arrays):
                real.backward(*share(arrays))

        return Plan()

    monkeypatch.setattr(numbacaps, "plan", plan)
    caller = torch_calls.make(torch_rows.PLAN, SMALL, "default", "cpu")
    assert torch_calls.check(caller, what, SMALL) < 1e-5


def test_a_wrong_call_is_not_timed():
    caller = torch_calls.make("operator", SMALL, "default", "cpu")
    wrong = torch_calls.Caller(
        lambda: (1.01 * caller.forward()[0],), None, caller.deliver, caller.precision
    )
    with pytest.raises(WrongResult, match="relative error 1.0e-02"):
        torch_calls.check(wrong, "forward", SMALL)


# ---- steps


@pytest.fixture(scope="module")
def caps():
    return torch_steps.PrimaryCaps(**CAPS)


@pytest.mark.parametrize("contestant", (MODULES, *TWINS))
def test_primary_caps_gives_the_twin_s_gradients(contestant, caps):
    step = caps.make(contestant, torch_steps.precision_of(contestant, "default"))
    for _ in range(3):
        step.call()
    loss, gradients = step.results()
    assert [array.shape for array in gradients] == [(3, 6, 7, 7), (32, 6, 3, 3), (32,)]
    assert 0 < caps.check(loss, gradients, "ieee") < 1e-5
    for at in range(3):
        wrong = [array * (1.001 if at == i else 1) for i, array in enumerate(gradients)]
        with pytest.raises(WrongResult):
            caps.check(loss, wrong, "ieee")
    with pytest.raises(WrongResult):
        caps.check(1.001 * loss, gradients, "ieee")
    step.spoil()
    with pytest.raises(WrongResult):
        caps.check(*step.results(), "tf32")


def test_primary_caps_has_its_published_sizes():
    caps = torch_steps.PrimaryCaps(images=1, device="cpu")
    assert caps._features.shape == (1, 256, 20, 20) and caps._features.min() == 0
    assert caps._net.primary.weight.shape == (32, 256, 9, 9, 1, 8)


def test_channels_last_twins_lie_so(caps):
    step = caps.make("twin-channels_last", "ieee")
    inputs, weight, _ = step._leaves
    for tensor in (inputs, weight):
        assert tensor.is_contiguous(memory_format=torch.channels_last)
        assert not tensor.is_contiguous()


@pytest.mark.slow
def test_the_published_network_gives_the_twin_s_gradients():
    task = torch_steps.Published(3, "cpu")
    for contestant in (MODULES, *TWINS):
        step = task.make(contestant, torch_steps.precision_of(contestant, "default"))
        step.call()
        step.call()
        loss, gradients = step.results()
        assert len(gradients) == 5
        assert 0 < task.check(loss, gradients, "ieee") < 1e-5
        assert 0 < task.check(None, gradients, "tf32x3") < 1e-5  # as numbacaps.nn's


def _routed(network, images):
    """A small one, on the CPU."""
    return torch_steps.WORKLOADS[network](images, "cpu", **train_digits.TINY.routed[network][1])


@pytest.mark.parametrize("network", ["capsnet", "matrix-capsules"])
def test_networks_with_routing_give_the_twin_s_gradients(network):
    task = _routed(network, 5)
    for contestant in task.contestants:
        step = task.make(contestant, "ieee")
        step.call(), step.call()
        loss, gradients = step.results()
        assert 0 < task.check(loss, gradients, "ieee") < 5e-4
    for at in range(len(gradients)):
        wrong = [array * (1.01 if at == i else 1) for i, array in enumerate(gradients)]
        with pytest.raises(WrongResult):
            task.check(loss, wrong, "ieee")
    with pytest.raises(WrongResult):
        task.check(1.01 * loss, gradients, "ieee")


@pytest.mark.parametrize("network, window", [("capsnet", 3), ("matrix-capsules", 5)])
def test_convolutions_of_twins_with_routing_lie_as_named(network, window):
    leaves = _routed(network, 1).make("twin-channels_last", "ieee")._leaves
    convolved = [one for one in leaves if one.shape[2:] == (window, window)]
    assert convolved
    for one in convolved:
        assert one.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("contestant", (MODULES, *TWINS))
def test_a_compiled_step_is_the_same(contestant, caps):
    torch.compiler.reset()
    step = caps.make(contestant, "ieee")
    step.compile()
    step.call()
    assert caps.check(*step.results(), "ieee") < 1e-5


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("network", ["capsnet", "matrix-capsules"])
def test_a_compiled_step_of_routing_is_the_same(network):
    torch.compiler.reset()
    task = _routed(network, 5)
    step = task.make(MODULES, "ieee")
    step.compile()
    step.call()
    assert task.check(*step.results(), "ieee") < 5e-4


def test_numbacaps_nn_takes_its_own_step(monkeypatch):
    made = []

    class Run:
        def __init__(self, variant, wanted, task):
            made.append((variant.algorithm, variant.precision, wanted, len(task.x)))
            self.call = self.spoil = lambda: None

        def results(self):
            return ["gradients"]

        def capture(self, calls):
            return "replay", calls

    monkeypatch.setattr(torch_steps.networks, "OurNetwork", Run)
    step = torch_steps.Published(2, "cpu").make(NETWORK, "tf32x3")
    assert made == [("capsnet", "tf32x3", "net_step", 2)]
    assert step.results() == (None, ["gradients"]) and step.capture() == ("replay", 1)


def test_precisions():
    default = [torch_steps.precision_of(name, "default") for name in torch_rows.STEPPERS]
    assert default == ["auto", "ieee", "ieee", "tf32x3"]
    assert {torch_steps.precision_of(name, "tf32") for name in torch_rows.STEPPERS} == {"tf32"}


@pytest.fixture
def clock(monkeypatch):
    """A clock whose graph is the calls themselves, and PyTorch's counters of memory."""
    made = SimpleNamespace(torch=None, synchronize=lambda: None, replayed=[])

    def capture_torch(calls, kept):
        calls[0]()
        return SimpleNamespace(run=lambda: made.replayed.append(calls[0]()))

    made.capture_torch = capture_torch
    monkeypatch.setattr(gpu_time, "clock", lambda: made)
    monkeypatch.setattr(device_memory, "release", lambda: None)
    monkeypatch.setattr(torch_steps, "queueing_us", lambda call, wait, queued: 5.0 * queued)
    for name in ("synchronize", "reset_peak_memory_stats", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 1_000_000)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 4_000_000)
    return made


@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_a_step_is_checked_and_counted(mode, caps, clock):
    step = caps.make(MODULES, "auto")
    call, cells = torch_steps.prepare(
        step, mode, lambda *found: caps.check(*found, "auto"), 1_000_000
    )
    assert cells["peak_mb"] == 3 and cells["host_us"] == 15 and 0 < cells["error"] < 1e-5
    assert len(clock.replayed) == (mode == "graph")
    assert callable(call)


def test_a_graph_keeps_what_it_reads(clock, monkeypatch):
    class Operands:
        pass

    kept = Operands()
    alive = weakref.ref(kept)
    replay = gpu_time.Replay(lambda: None, needs=kept)
    step = SimpleNamespace(
        counts_memory=False,
        call=lambda: None,
        spoil=lambda: None,
        results=lambda: (None, []),
        capture=[replay].pop,
    )
    call, _ = torch_steps.prepare(step, "graph", lambda *found: 1e-7, 0)
    del kept, replay, step
    gc.collect()
    assert alive() is not None
    call()
    del call
    gc.collect()
    assert alive() is None


def test_a_graph_that_writes_nothing_is_found(caps, clock, monkeypatch):
    still = SimpleNamespace(run=lambda: None)
    monkeypatch.setattr(clock, "capture_torch", lambda calls, kept: still)
    step = caps.make(MODULES, "auto")
    with pytest.raises(WrongResult):
        torch_steps.prepare(step, "graph", lambda *found: caps.check(*found, "auto"), 0)


def test_the_memory_of_numbacaps_nn_is_not_pytorch_s(clock):
    step = SimpleNamespace(counts_memory=False, call=lambda: None, results=lambda: (None, []))
    _, cells = torch_steps.prepare(step, "eager", lambda *found: 1e-7, 0)
    assert cells["peak_mb"] is None


def test_steps_of_a_group_take_turns(monkeypatch, clock, caps):
    """One that fails is noted, the others are timed."""
    make = caps.make

    def some(contestant, precision):
        if contestant == TWINS[0]:
            raise RuntimeError("no such layout")
        return make(contestant, precision)

    monkeypatch.setattr(caps, "make", some)
    monkeypatch.setattr(torch_steps, "task", lambda name: caps)
    turns = []

    def in_turns(calls, least_ms):
        turns.append(list(calls))
        return {key: float(len(key[-1])) for key in calls}

    monkeypatch.setattr(torch_layers, "in_turns", in_turns)
    keys = [("step", "primary-caps", "eager", "default", name) for name in (MODULES, *TWINS)]
    rows = torch_layers.measure_steps(keys)
    assert [tuple(row[name] for name in KEYS) for row in rows] == keys
    assert turns == [[keys[0], keys[2]]]
    assert [row.get("ms") for row in rows] == [7, None, 18]
    assert rows[1]["note"] == "RuntimeError: no such layout" and "error" not in rows[1]


def test_calls_of_a_group(monkeypatch, clock):
    monkeypatch.setattr(torch_layers, "_problem", lambda layer: SMALL)
    turns = []

    def queueing_us(call, wait, repeats):
        turns.append(call)
        return 12.0 if len(turns) <= 3 else 14.0  # of the first turn, and of the others

    monkeypatch.setattr(torch_layers, "queueing_us", queueing_us)
    make = torch_calls.make
    monkeypatch.setattr(torch_calls, "make", lambda *how: make(*how, device="cpu"))
    keys = [("host", "paper-layer-5", "training", "default", name) for name in CALLERS]
    rows = torch_layers.measure_calls(keys)
    assert [tuple(row[name] for name in KEYS) for row in rows] == keys
    assert [row.get("host_us") for row in rows] == [14.0, None, 14.0, 14.0]
    assert len(set(turns[:3])) == 3 and turns == turns[:3] * torch_layers._TURNS
    assert rows[1]["note"]  # a plan takes no tensors of the host


# ---- turns


def test_calls_take_turns_for_as_long_as_is_asked(monkeypatch):
    asked = {"quick": [], "slow": []}
    ms = {"quick": 0.5, "slow": 50.0}

    def batch(name, calls):
        asked[name].append(calls)
        return ms[name]

    monkeypatch.setattr(clocks, "batch_ms", batch)
    assert clocks.in_turns({name: name for name in ms}, 20) == ms
    assert set(asked["quick"][3:]) == {40} and set(asked["slow"]) == {1}
    assert len(asked["quick"]) == len(asked["slow"]) == 33
    assert clocks.in_turns({}, 20) == {}


# ---- the command


@pytest.fixture
def machine(as_on_a_gpu, monkeypatch):
    """A machine that says it has a GPU; what is measured is noted."""
    measured = []

    def work(keys):
        measured.append(keys)
        return [dict(zip(KEYS, key)) | {"ms": 1.5, "host_us": 30.0} for key in keys]

    monkeypatch.setattr(torch_layers, "_WORK", {"host": work, "step": work})
    return measured


def _main(tmp_path, *arguments):
    return torch_layers.main([*arguments, "--results", str(tmp_path)])


def test_every_row_is_measured_once(machine, tmp_path, capsys):
    assert _main(tmp_path) == 0
    rows = torch_layers.listing(tmp_path / "here").rows
    calls, steps = 2 * 2 * 2 * 4, 2 * ((4 + 4 + 3 + 3) + 3 * 4 * 3)
    assert len(rows) == calls + steps == sum(map(len, machine))
    assert (tmp_path / "here" / "torch.csv").exists()
    said = capsys.readouterr().out
    assert "published" in said and "paper-layer-5" in said and f"{len(rows)} rows in" in said
    count = len(machine)
    assert _main(tmp_path) == 0 and len(machine) == count, "rows are kept"
    assert _main(tmp_path, "--fresh", "--measured", "host", "--precisions", "tf32") == 0
    assert len(machine) == count + 4
    assert not torch_layers.is_current(tmp_path / "here")  # of other sources


def test_shards_share_the_groups(machine, tmp_path):
    for shard in ("1/2", "2/2"):
        assert _main(tmp_path, "--shard", shard) == 0
    assert len(machine) == len({keys[0] for keys in machine}) == 8 + 32


def test_ctrl_c_keeps_finished_rows(machine, tmp_path, monkeypatch, capsys):
    def interrupted(keys):
        raise KeyboardInterrupt

    monkeypatch.setitem(torch_layers._WORK, "step", interrupted)
    assert _main(tmp_path) == 130
    assert len(torch_layers.listing(tmp_path / "here").rows) == 16  # calls of the first class
    assert "every finished row" in capsys.readouterr().err


def test_what_lacks_is_named(machine, tmp_path, monkeypatch, capsys):
    def absent():
        raise ImportError("the extra 'torch' is installed, but as a build without CUDA")

    monkeypatch.setattr(opponents, "torch_on_gpu", absent)
    with pytest.raises(SystemExit) as stop:
        _main(tmp_path)
    assert stop.value.code == 2 and "a build without CUDA" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_without_a_gpu_it_says_what_works(capsys):
    with pytest.raises(SystemExit) as stop:
        torch_layers.main([])
    assert stop.value.code == 2
    assert "torch_layers: there is no GPU here" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--modes", "lazy"], "got 'lazy'; it takes eager, graph, compiled, compiled-graph"),
        (["--workloads", "huge"], "got 'huge'; it takes published, primary-caps"),
        (["--measured", "memory"], "got 'memory'; it takes host, step"),
    ],
)
def test_bad_arguments(arguments, message, capsys):
    with pytest.raises(SystemExit) as stop:
        torch_layers.main(arguments)
    assert stop.value.code == 2 and message in capsys.readouterr().err


def test_each_gpu_s_process_runs_the_command(monkeypatch, tmp_path):
    """Whose name is not the CSV's."""
    started = []
    monkeypatch.setattr(launcher, "launch", lambda *how: started.append(how) or 0)
    assert _main(tmp_path, "--gpus", "0,1") == 0
    ((name, _, _, merge, module),) = started
    assert (name, module) == ("torch", "experiments.torch_layers")
    assert merge == torch_layers.merge


def test_the_record_knows_whose_file_it_is(monkeypatch, tmp_path):
    monkeypatch.setattr(record.provenance, "measured", lambda results: ["here"])
    torch_layers.listing(tmp_path / "here", NOW).add([dict.fromkeys(KEYS, "a")])
    assert "here/torch.csv; python -m experiments.torch_layers" in record.older(tmp_path)
    assert record.WHOLE["torch_layers"] is torch_layers


# ---- what is told of the rows


def _row(key, **cells):
    empty = dict.fromkeys((*torch_rows.VALUES, "gpu", "gpu_uuid"), "")
    return empty | dict(zip(KEYS, key)) | {name: str(cell) for name, cell in cells.items()}


def _rows():
    """Rows of a call and of two steps, of which one failed."""
    call = "host", "paper-layer-5", "forward", "tf32"
    us = {"operator": 30, "plan": 20, "conv2d-nchw": 12, "conv2d-channels_last": 10}
    graph, eager = (("step", "published", mode, "default") for mode in ("graph", "eager"))
    return [
        *(_row((*call, name), host_us=value) for name, value in us.items()),
        _row((*graph, MODULES), ms=0.25, peak_mb=30, error=1e-6),
        _row((*graph, TWINS[0]), ms=1.0, peak_mb=50),
        _row((*graph, TWINS[1]), ms=0.75, peak_mb=60),
        _row((*graph, NETWORK), ms=0.125),
        _row((*eager, MODULES), note="RuntimeError: lost"),
        _row((*eager, TWINS[0]), ms=2.0, peak_mb=50),
    ]


def test_ours_stands_beside_the_best_layout():
    eager, graph = torch_rows.steps(_rows())
    assert (graph.mode, graph.ratio, graph.twin["contestant"]) == ("graph", 3, TWINS[1])
    assert graph.network["ms"] == "0.125"
    assert eager.mode == "eager" and eager.ratio is None and eager.network is None
    (call,) = torch_rows.calls(_rows())
    assert (call.operator, call.plan, call.conv2d) == (30, 20, 10)


def test_what_is_printed():
    told = [line.split() for line in torch_rows.told(_rows())]
    assert "paper-layer-5 forward tf32 30.0 20.0 1.50 10.0 3.00".split() in told
    assert "published graph default 0.250 0.750 3.00 0.125 30.0 60.0".split() in told
    assert "published eager default - 2.000 - - - 50.0".split() in told
    assert "step published eager default modules: RuntimeError: lost".split() in told


def test_the_table():
    data = dict.fromkeys(("table1", "sweep", "stages", "memory", "fused", "rungs", "drawn_speed"))
    made = tables.tables({name: [] for name in data} | {"torch": _rows(), "routing": []})
    assert list(made) == ["torch"]
    assert (
        "| published | default | graph | 0.750 | 0.250 | 3.00 | 0.125 | 60.0 | 30.0 |"
        in (made["torch"])
    )
    assert "| published | default | eager | 2.00 |  |  |  | 50.0 |  |" in made["torch"]
    assert "| paper-layer-5 | tf32 | forward | 30.0 | 20.0 | 1.50 | 10.0 | 3.00 |" in made["torch"]


def test_the_figure_shows_every_bar():
    drawn = figure.draw(_rows())
    titles = [axes.get_title(loc="left") for axes in drawn.axes]
    assert titles == ["step of published, default", "call of paper-layer-5, tf32"]
    words = [text.get_text() for text in drawn.axes[0].texts]
    assert "0.250  (30)" in words and "0.750  (60)" in words and "× failed" in words
    names = [label.get_text() for label in drawn.axes[0].get_yticklabels()]
    assert names[:2] == ["eager, numbacaps.torch", "eager, plain PyTorch"]
    names = [label.get_text() for label in drawn.axes[1].get_yticklabels()]
    assert names[0] == "forward, numbacaps.torch"
    with pytest.raises(Lacking):
        figure.draw([])


def test_current_rows_are_drawn(tmp_path, capsys):
    results, out = tmp_path / "results", tmp_path / "out"
    where = ["--results", str(results), "--out", str(out)]
    torch_layers.listing(results / "here", NOW).add(_rows())
    assert figures.main(where) == 1  # of other sources
    assert "torch-layers skipped" in (said := capsys.readouterr().out)
    assert "python -m experiments.torch_layers makes it" in said
    machine = NOW | {"source_sha256": provenance.source_sha256()}
    torch_layers.listing(results / "here", machine).add(_rows())
    assert figures.main(where) == 0
    first = {path.name: path.read_bytes() for path in out.iterdir()}
    assert set(first) == {"torch-layers.png", "torch-layers.svg"}
    assert figures.main(where) == 0
    assert first == {path.name: path.read_bytes() for path in out.iterdir()}
    assert figures.main([*where, "--style", "paper"]) == 1  # there is none for print
    (results / "here" / "torch.csv").write_text("workload,ms\n")
    with pytest.raises(SystemExit):
        figures.main(where)
    assert "torch.csv has other columns" in capsys.readouterr().err


# ---- on a GPU


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.tiers("gpu")
@pytest.mark.slow
def test_layers_are_measured(tmp_path):
    few = ("--layers", "paper-layer-5", "--precisions", "tf32", "--modes", "eager,graph")
    assert _main(tmp_path, *few, "--workloads", "published,capsnet") == 0
    rows = torch_layers.listing(next(tmp_path.iterdir())).rows
    assert len(rows) == 2 * 4 + 2 * (4 + 3)
    assert not [row["note"] for row in rows if row["note"]]
    for row in rows:
        assert float(row["host_us"]) > 0 and float(row["error"]) > 0
        if row["measured"] == "step":
            assert float(row["ms"]) > 0
            assert (float(row["peak_mb"] or 0) > 0) == (row["contestant"] != NETWORK)
