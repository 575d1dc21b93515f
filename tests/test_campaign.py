"""The campaign in miniature: each part finds what is wrong, and the record goes on where it was."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from experiments.measuring import provenance
from experiments.measuring.shard import WHOLE
from numbacaps.device.target import cuda
from numbacaps.nn import CapsNet
from numbacaps.plan import Plan
from tests import record_campaign
from tests.support import campaign
from tests.support.campaign import convolutions, large, memory, networks, threads, training
from tests.support.campaign.layouts import LAYOUTS, laid_out, on_host, repeated
from tests.support.campaign.part import Part

pytestmark = pytest.mark.slow


@pytest.fixture
def part(monkeypatch):
    """A part of numbers, of which 3 is wrong; a function that changes it."""
    checked = []

    def check(seed, number):
        checked.append((seed, number))
        if number == 3:
            raise AssertionError("three is wrong")
        return ["even" if number % 2 == 0 else "odd"]

    def change(**how):
        made = Part("numbers", "number", check, amount=6, few=6)
        monkeypatch.setitem(campaign.PARTS, "networks", replace(made, **how))
        return checked

    return change


def _run(tmp_path, *arguments):
    return record_campaign.main(
        ["--results", str(tmp_path), "--parts", "networks", *map(str, arguments)]
    )


def _found(tmp_path):
    (path,) = tmp_path.glob(f"*/{record_campaign.FILE}")
    return json.loads(path.read_text())


# ---- the record


def test_a_record_has_what_repeats_each_failure(part, tmp_path, capsys):
    checked = part()
    assert _run(tmp_path, "--seed", 7) == 1
    assert checked == [(7, number) for number in range(6)]
    found = _found(tmp_path)
    assert found["seed"] == 7 and found["source_sha256"] == provenance.source_sha256()
    assert found["parts"]["networks"]["checked"] == 6
    assert found["parts"]["networks"]["of_each_kind"] == {"even": 3, "odd": 2}
    assert found["parts"]["networks"]["failed"] == [{"number": 3, "why": "three is wrong"}]
    said = capsys.readouterr().out
    assert "python -m tests.record_campaign --seed 7 --only networks:3: three is wrong" in said
    assert record_campaign.main(["--seed", "7", "--only", "networks:3"]) == 1
    assert "networks:3: three is wrong" in capsys.readouterr().err
    assert record_campaign.main(["--seed", "7", "--only", "networks:4"]) == 0


def test_it_goes_on_where_it_was(part, tmp_path):
    checked = part()
    assert _run(tmp_path, "--networks", 2) == 0
    assert _run(tmp_path, "--networks", 3) == 0
    assert [number for _, number in checked] == [0, 1, 2]
    assert _run(tmp_path, "--networks", 3, "--fresh") == 0
    assert [number for _, number in checked[3:]] == [0, 1, 2]
    assert _run(tmp_path, "--networks", 3, "--seed", 1) == 0
    assert checked[6:] == [(1, 0), (1, 1), (1, 2)]


def test_other_sources_begin_anew(part, tmp_path, monkeypatch):
    checked = part()
    assert _run(tmp_path, "--networks", 2) == 0
    monkeypatch.setattr(provenance, "source_sha256", lambda: "others")
    assert _run(tmp_path, "--networks", 2) == 0
    assert [number for _, number in checked] == [0, 1, 0, 1]


def test_ctrl_c_keeps_what_was_checked(part, tmp_path, capsys):
    def check(seed, number):
        if number == 2:
            raise KeyboardInterrupt
        return []

    part(check=check)
    assert _run(tmp_path) == 130
    assert _found(tmp_path)["parts"]["networks"]["next"] == 2
    assert "the next call goes on" in capsys.readouterr().err


def test_sigterm_is_as_ctrl_c(part, tmp_path):
    def check(seed, number):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(10)

    part(check=check)
    assert _run(tmp_path) == 130
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


@pytest.mark.parametrize(("error", "checked"), [(RuntimeError, 1), (ValueError, 6)])
def test_behind_an_error_of_the_device_nothing_is_checked(error, checked, part, tmp_path):
    """Behind one of Python's everything is."""

    def check(seed, number):
        if number == 0:
            raise error("as of a device")
        return []

    part(check=check)
    assert _run(tmp_path) == 1
    found = _found(tmp_path)["parts"]["networks"]
    assert found["checked"] == checked and "as of a device" in found["failed"][0]["why"]
    assert _run(tmp_path) == 1 and _found(tmp_path)["parts"]["networks"]["checked"] == 6


def test_a_timed_part_has_minutes(part, tmp_path):
    def check(seed, number):
        time.sleep(0.05)
        return []

    part(check=check, timed=True)
    assert _run(tmp_path, "--networks", 0.005) == 0
    found = _found(tmp_path)["parts"]["networks"]
    assert 1 <= found["checked"] <= 6 and found["seconds"] >= 0.3


# ---- processes side by side


def test_shares_are_all_of_the_cases():
    part = Part("numbers", "number", None, amount=7, few=7)
    shares = [part.numbers(7.0, share) for share in WHOLE.split(3)]
    assert [n for first, last in shares for n in range(first, last)] == list(range(7))
    timed = [replace(part, timed=True).numbers(60.0, share) for share in WHOLE.split(3)]
    assert timed == [(0, None), (1_000_000, None), (2_000_000, None)]


def test_a_share_checks_its_own_cases(part, tmp_path):
    checked = part()
    assert _run(tmp_path, "--shard", "1/3") == 0 and checked == [(0, 0), (0, 1)]
    assert _run(tmp_path / "other", "--shard", "2/3") == 1
    assert checked[2:] == [(0, 2), (0, 3)]
    checked = part(timed=True)
    assert _run(tmp_path / "timed", "--shard", "3/4", "--networks", 1e-9) == 0
    assert checked[4] == (0, 2_000_000)


@pytest.fixture
def in_process(monkeypatch):
    """Processes that are calls here, one after the other; what each was told, with its GPU."""
    told = []

    def run(name, gpus, shares, commands):
        told.append(list(zip(gpus, shares)))
        workers = []
        for module, *arguments in commands:
            assert module == "tests.record_campaign"
            status = record_campaign.main(arguments)
            process = SimpleNamespace(returncode=status)
            workers.append(SimpleNamespace(process=process, epitaph=lambda: "it died"))
        return workers, False

    monkeypatch.setattr(record_campaign.launcher, "run", run)
    return told


def test_what_processes_found_is_added_up(part, in_process, tmp_path):
    checked = part(shared=True)
    assert _run(tmp_path, "--side-by-side", 3) == 1
    assert sorted(checked) == [(0, number) for number in range(6)]
    assert in_process == [[("0", f"networks {share}") for share in ("1/3", "2/3", "3/3")]]
    (path,) = tmp_path.glob(f"simulator/{record_campaign.FILE}")
    found = json.loads(path.read_text())["parts"]["networks"]
    assert (found["checked"], found["processes"], found["wanted"]) == (6, 3, 6)
    assert found["of_each_kind"] == {"even": 3, "odd": 2}
    assert found["failed"] == [{"number": 3, "why": "three is wrong"}]
    assert _run(tmp_path, "--side-by-side", 3) == 1 and len(checked) == 6  # each goes on
    assert _run(tmp_path, "--side-by-side", 3, "--fresh") == 1 and len(checked) == 12


def test_another_shard_takes_a_record_of_its_own(part, tmp_path, capsys):
    """In one record the cases of the first shard would count as checked."""
    checked = part(shared=True)
    assert _run(tmp_path, "--shard", "3/3") == 0
    before = list(checked)
    with pytest.raises(SystemExit):
        _run(tmp_path, "--shard", "1/3")
    assert "holds shard 3/3, not 1/3; --fresh begins anew" in capsys.readouterr().err
    assert checked == before
    assert _run(tmp_path, "--shard", "1/3", "--fresh") == 0 and len(checked) > len(before)


@pytest.mark.parametrize("content", ["", "[]"])
def test_a_damaged_record_is_refused_in_a_line(content, part, tmp_path, capsys):
    part()
    folder = tmp_path / "simulator"
    folder.mkdir()
    (folder / record_campaign.FILE).write_text(content)
    with pytest.raises(SystemExit):
        _run(tmp_path)
    assert f"{record_campaign.FILE} is damaged" in capsys.readouterr().err
    assert (folder / record_campaign.FILE).read_text() == content


def test_no_case_counts_twice(part, in_process, tmp_path):
    """However many processes share them, and however many cases are wanted later."""
    part(shared=True)

    def checked():
        content = json.loads((tmp_path / "simulator" / record_campaign.FILE).read_text())
        found = content["parts"]["networks"]
        assert [one["number"] for one in found["failed"]] == [3]
        return found["checked"]

    for processes, amount in ((2, 6), (3, 6), (3, 10), (3, 6)):
        _run(tmp_path, "--side-by-side", processes, "--networks", amount)
        assert checked() == amount


def test_a_part_that_must_be_alone_has_its_gpu(part, in_process, monkeypatch, tmp_path):
    part(shared=True)
    monkeypatch.setitem(
        campaign.PARTS, "memory", Part("", "turn", lambda *case: [], 1, 1, alone=True)
    )
    chosen = "--parts", "networks,memory", "--side-by-side", "3"
    _run(tmp_path, *chosen)
    assert [[gpu for gpu, _ in together] for together in in_process] == [["0"] * 3, ["0"]]
    in_process.clear()
    monkeypatch.setattr(record_campaign, "_gpus", lambda: ["0", "1", "2"])
    _run(tmp_path / "several", *chosen)
    assert [[gpu for gpu, _ in together] for together in in_process] == [["0", "1", "0", "2"]]


def test_a_process_that_died_is_told(part, tmp_path, monkeypatch, capsys):
    part(shared=True)
    dead = SimpleNamespace(process=SimpleNamespace(returncode=-9), epitaph=lambda: "killed by 9")
    monkeypatch.setattr(record_campaign.launcher, "run", lambda *_: ([dead], False))
    assert _run(tmp_path, "--side-by-side", 1) == 1
    assert "killed by 9" in capsys.readouterr().err


def test_processes_side_by_side_take_their_own_shards(part, tmp_path, capsys):
    part(shared=True)
    with pytest.raises(SystemExit):
        _run(tmp_path, "--side-by-side", 2, "--shard", "1/2")
    assert "--shard and --side-by-side were both given" in capsys.readouterr().err


def test_processes_share_the_drawn_cases(tmp_path):
    amounts = "--convolutions", "3", "--networks", "2", "--parts", "convolutions,networks"
    assert record_campaign.main(["--results", str(tmp_path), *amounts, "--side-by-side", "2"]) == 0
    parts = json.loads((tmp_path / "simulator" / record_campaign.FILE).read_text())["parts"]
    assert [parts[name]["checked"] for name in ("convolutions", "networks")] == [3, 2]


def test_bad_input(capsys):
    for arguments, said in (
        (["--only", "nothing:3"], "--only: got 'nothing:3'; it takes a part and a number"),
        (["--only", "networks:x"], "it takes a part and a number, as networks:17"),
        (["--networks", "-1"], "--networks: got '-1'; it takes a number of 0 or more"),
        (["--seed", "1.5"], "--seed: got '1.5'; it takes an integer of 0 or more"),
        (["--parts", "all"], "--parts: got 'all'; it takes convolutions, networks,"),
    ):
        with pytest.raises(SystemExit) as stop:
            record_campaign.main(arguments)
        assert stop.value.code == 2 and said in capsys.readouterr().err


def test_it_is_not_run_where_nobody_asked_for_the_simulator(monkeypatch, tmp_path, capsys):
    """There "auto" is NumPy: each case would fail, and the record would be taken up by the next run."""
    monkeypatch.setattr(record_campaign, "FELL_BACK", True)
    with pytest.raises(SystemExit) as stop:
        record_campaign.main(["--results", str(tmp_path)])
    assert stop.value.code == 2 and "no GPU was found" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


# ---- convolutions


@pytest.mark.parametrize("number", range(0, 100, 9))
def test_a_convolution(number):
    assert convolutions.check(0, number)


def test_drawn_calls_are_of_every_kind():
    few = [convolutions.draw(0, number) for number in range(12 * len(convolutions.kinds()))]
    assert few[5] == convolutions.draw(0, 5) != convolutions.draw(1, 5)
    chosen = {(one.algorithm, one.dtype, one.precision) for one in few}
    assert chosen == set(convolutions.kinds())
    assert {one.way for one in few} == {"call", "plan", "packed plan"}
    assert {one.stream for one in few} == {"default", "own", "address"}
    assert {layout for one in few for layout in one.layouts} == set(LAYOUTS)
    assert len({one.geometry for one in few}) > len(few) // 6
    assert any(one.has_out for one in few) and len({one.product for one in few}) > 50
    longest = max(len(capsule) for one in few for capsule in one.capsules)
    assert longest >= 3


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("on_device", [True, False])
def test_a_layout_has_the_same_elements(layout, dtype, on_device, rng):
    array = rng.standard_normal((3, 2, 4, 3, 2)).astype(convolutions.dtype_of(dtype))
    array = repeated(array) if layout == "repeated" else array
    found = laid_out(array, layout, on_device)
    assert found.shape == array.shape and found.dtype == array.dtype
    assert np.array_equal(on_host(found), array.astype(np.float32))
    if not on_device:
        differs = found.strides != array.strides
        assert differs is (layout in ("every second", "backwards", "repeated"))


@pytest.mark.parametrize("which", ["y", "dx", "dw"])
def test_a_wrong_element_of_a_convolution_is_found(which, monkeypatch):
    number = _of_kind(("fused", "float32", "ieee"))
    call, right = convolutions.draw(0, number), convolutions.Call.launch

    def wrong(*arguments):
        results = [on_host(result).copy() for result in right(*arguments)]
        results[("y", "dx", "dw").index(which)].flat[0] += 1e-2
        return results

    monkeypatch.setattr(convolutions.Call, "launch", wrong)
    with pytest.raises(AssertionError, match=rf"{which} of Call\(geometry=.*above the tolerance"):
        convolutions.check(0, number)
    assert call.product in repr(call)


def _of_kind(kind):
    """The number of a call of public functions of that kind."""
    every = convolutions.kinds()
    numbers = range(every.index(kind), 100 * len(every), len(every))
    return next(number for number in numbers if convolutions.draw(0, number).way == "call")


@pytest.mark.parametrize("shift", [0, 1])
def test_large_images_are_compared_row_by_row(shift, rng):
    """With the reference's own result at a size that fits."""
    part = rng.integers(-4, 5, (8, 3, 1, 2)).astype(np.float32)
    w = rng.integers(-2, 3, (3, 2, 2)).astype(np.float32)
    x = np.tile(part, (4, 1, 1, 1))
    y = sum(np.roll(x, 1 - at, 0) @ w[at] for at in range(3))
    y[8 + shift] += shift
    compare = [4, part, w, part.size * 2]
    if shift:
        with pytest.raises(AssertionError, match="6 elements of y are wrong in the rows from 8 on"):
            large.compare("y", cuda.to_device(y), *compare)
    else:
        large.compare("y", cuda.to_device(y), *compare)


@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize("dtype, KH", [("float16", 3), ("float32", 1)])
def test_what_is_looked_at_of_a_large_image(dtype, KH, more, rng, monkeypatch):
    """At a size that fits, both sides of it and no part twice."""
    for name, value in (("_PERIOD", 4), ("_WIDTH", 3), ("_BEYOND", 4 * 3 * 2 * 3)):
        monkeypatch.setattr(large, name, value)
    monkeypatch.setattr(large._looked_at, "__defaults__", (large._BEYOND,))
    monkeypatch.setattr(large.compare, "__defaults__", (large._BEYOND,))
    large.check_image(rng, dtype, 2, KH, more)
    assert large._looked_at(5 + more, np.empty(4 * 3 * 2)) == (1, 2, 3 + more)


@pytest.mark.tiers("ptx")
def test_cases_are_compiled_where_there_is_no_gpu(tmp_path):
    """As processes do that pretend one: calls and a network."""
    script = "from tests import record_campaign as r\n"
    for name in ("convolutions", "networks"):
        script += f"r._begin({name!r}, 0, 4, (9, 0), 132)\nr._compile_one(0)\nr._compile_one(1)\n"
    where = {"PYTHONPATH": str(provenance.ROOT), "NUMBA_CACHE_DIR": str(tmp_path)}
    environment = os.environ | where | {"NUMBACAPS_TARGET": "cuda"}
    how = {"env": environment, "capture_output": True, "text": True, "timeout": 500}
    done = subprocess.run([sys.executable, "-c", script], check=False, **how)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.rglob("*.nbc"))


# ---- networks


@pytest.mark.parametrize("number", range(0, 24, 3))
def test_a_network(number):
    assert networks.check(0, number)


def test_drawn_networks_differ():
    drawn = [networks.draw(0, number) for number in range(40)]
    assert {str(net.dtype) for net, _ in drawn} == {"float32", "float64"}
    assert {len(net.layers) for net, _ in drawn} == {1, 2, 3}
    assert len({str(net) for net, _ in drawn}) == 40
    layers = [placed.layer for net, _ in drawn for placed in net.layers]
    for name in ("stride", "padding", "dilation", "slope", "squash", "algorithm"):
        assert len({getattr(layer, name) for layer in layers}) > 1, name


def test_a_wrong_gradient_is_found(monkeypatch):
    right = CapsNet.loss_and_gradients

    def wrong(net, x, labels):
        loss, gradients = right(net, x, labels)
        gradients[-1].flat[0] += np.abs(gradients[-1]).max()
        return loss, gradients

    monkeypatch.setattr(CapsNet, "loss_and_gradients", wrong)
    with pytest.raises(AssertionError, match="layer 0 of <CapsNet .*above the tolerance"):
        networks.check(0, next(i for i in range(20) if len(networks.draw(0, i)[0].layers) == 1))


# ---- training


def test_training_that_is_broken_off_ends_alike():
    kinds = [kind for number in range(2) for kind in training.check(0, number)]
    assert kinds.count("run to its end") == 2


def test_files_are_compared_with_an_undisturbed_run_s(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        log = training.training.Log(tmp_path / name / "training.csv", "gpu")
        np.savez(tmp_path / name / "numbacaps-seed0.npz", weights_0=np.ones(3))
    training.compare(tmp_path / "a", tmp_path / "b", 0)
    np.savez(tmp_path / "a" / "numbacaps-seed0.npz", weights_0=np.array([1, 1, 1 + 1e-15]))
    with pytest.raises(AssertionError, match="weights_0 differs from an undisturbed run's"):
        training.compare(tmp_path / "a", tmp_path / "b", 0)
    np.savez(tmp_path / "a" / "numbacaps-seed0.npz", weights_0=np.ones(3))
    (tmp_path / "a" / "other").write_text("")
    with pytest.raises(AssertionError, match=r"files were left: \['other'\]"):
        training.compare(tmp_path / "a", tmp_path / "b", 0)
    assert log.rows == []


# ---- threads


def test_an_interrupted_round_ends_its_threads(monkeypatch):
    """Else they would launch kernels on memory that goes with Python."""
    ended, of_first = [], np.random.default_rng((0, 0, 0)).random()

    def work(seed, rng, said, is_over):
        while not is_over():
            time.sleep(0.01)
        if rng.random() == of_first:  # the thread that is waited for
            time.sleep(0.3)
        ended.append(1)

    threads.check(0, 0)  # what one thread has is known
    monkeypatch.setattr(threads, "_work", work)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs ignore it
    try:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            threads.check(0, 0)
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(ended) == threads._THREADS


def test_threads_have_what_one_has():
    said = threads.check(0, 0)
    assert len(said) >= 6


def test_other_bits_in_a_thread_are_found(monkeypatch):
    threads.check(0, 0)  # what one thread has is known
    right = Plan.forward_operands

    def wrong(plan, x, w, out, *rest):
        right(plan, x, w, out, *rest)
        array = out.array.reshape(out.array.size)
        array[0] += 1

    monkeypatch.setattr(Plan, "forward_operands", wrong)
    with pytest.raises(AssertionError, match="other bits than alone"):
        threads.check(0, 0)


# ---- memory


def test_pieces_of_a_turn_are_the_turn(monkeypatch):
    """What is compiled ahead is what a turn takes."""
    for name, value in (("_GEOMETRIES", 12), ("_NETWORKS", 2), ("_PIECES", 4)):
        monkeypatch.setattr(memory, name, value)
    taken = []
    monkeypatch.setattr(memory, "_convolve", lambda rng: taken.append(rng.random()))
    monkeypatch.setattr(memory, "_network", lambda rng: (rng.random(), 1))
    monkeypatch.setattr(memory, "compile_step", lambda net, N: taken.append(net))
    for piece in range(4, 8):
        memory.compile_piece(7, piece)
    pieces, taken[:] = taken[:], []
    memory._turn(7, 1, memory.compile_step, range(4))
    assert pieces == taken and len(taken) == 14


def test_memory_is_flat():
    assert len(memory.check(0, 0)) == 2


@pytest.mark.parametrize("where", [0, 1])
def test_what_is_left_behind_is_found(where, monkeypatch):
    grown = iter([(0, 0), tuple((at == where) << 30 for at in range(2))])
    monkeypatch.setattr(memory, "_turn", lambda seed, number, use: None)
    monkeypatch.setattr(memory, "used", lambda: next(grown))
    place = ("device", "host")[where]
    with pytest.raises(AssertionError, match=f"networks left 1073741824 bytes on the {place}"):
        memory.check(0, 0)


def test_what_this_process_holds_is_known():
    before = memory.used()[1]
    kept = np.ones(32 << 20)  # 256 MiB: more than a heap keeps of what was freed before
    assert memory.used()[1] - before > 128 << 20 and kept.size
