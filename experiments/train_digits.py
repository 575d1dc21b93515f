"""Train the published network on 4,000 real digits and test it on 1,000 others.

Every epoch is a row of DIR/training.csv; the networks, what the first one makes of each test digit
(predictions.csv), and four figures lie beside it. --tiny trains a miniature on 8x8 digits instead,
on the simulator within a minute.

--by says who trains: numbacaps (numbacaps.nn), torch (its twin in PyTorch), torch-modules (the same network as
modules of numbacaps.torch); sabour-modules (PrimaryCaps of Sabour et al. 2017 as modules) and sabour-torch (its
twin of torch.nn). The modules train in several processes, too, which torchrun starts: each takes its share of
every batch, and the first one writes.

--network chooses a network with routing in place of the published one: capsnet (Sabour et al. 2017), matrix-capsules
(Hinton et al. 2018) or their smaller one, matrix-capsules-small, with the losses and schedules of these papers. --by
torch-modules routes without storing a vote, by numbacaps.torch, and torch is the twin in PyTorch that stores them.
"""

import argparse
import csv
import io
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import numpy as np

import reference.nn
from experiments.measuring import cards, launcher, provenance, records, shard
from experiments.measuring.refusal import Parser, Refusal, make_folder
from experiments.plots import training as plots
from experiments.training import digits, processes, training
from numbacaps import ALGORITHMS
from numbacaps.algorithms.registry import PRECISIONS, resolve
from numbacaps.device.target import SIMULATED
from numbacaps.files import written_whole
from numbacaps.nn import CapsNet, Layer

_EPILOG = """\
exit status: 0 done, 1 the loss turned NaN (the file holds the last good network), 2 bad input,
130 after Ctrl-C (the network is saved; --resume goes on from there)
"""
_NO_GPU = (
    "train_digits: there is no GPU here, and the simulator would take weeks; "
    "python -m experiments.train_digits --tiny trains a miniature on it"
)
_WAIT = 1.0  # seconds for a run that is about to end
PREDICTIONS = ("row", "label", "predicted")
MODULES = ("torch-modules", "sabour-modules", "sabour-torch")
BY = ("numbacaps", "torch", *MODULES)
PUBLISHED = "published"
ROUTED_BY = {"torch-modules": "modules", "torch": "torch"}  # and how a row's name ends


@dataclass(frozen=True)
class Task:
    """A network, its digits, and how long it learns.

    ``sabour`` are the sizes of Sabour's; ``routed`` are images of a batch and sizes of the networks with routing.
    """

    batch: int
    epochs: int
    seeds: tuple
    load: object
    build: object
    sabour: dict
    routed: dict


def _tiny_net(seed, algorithm, precision):
    how = {"algorithm": algorithm, "precision": precision}
    layers = (
        Layer(1, (1, 4), stride=2, capsule=(4, 1), squash=4, **how),
        Layer(10, (1, 2), squash=8, **how),
    )
    return CapsNet(layers, (1, 8, 8, 1, 1), seed=seed)


FULL = Task(
    batch=128,
    epochs=40,
    seeds=(0, 1, 2),
    load=digits.load,
    build=lambda seed, algorithm, precision: CapsNet.published(
        seed=seed, algorithm=algorithm, precision=precision
    ),
    sabour={},
    routed={
        "capsnet": (128, {}),
        "matrix-capsules": (64, {}),
        "matrix-capsules-small": (64, {"filters": 64, "capsules": (8, 16, 16)}),
    },
)
_TINY_MATRIX = {"side": 8, "window": 2, "stride": 1}
TINY = Task(
    batch=5,
    epochs=2,
    seeds=(0,),
    load=lambda: digits.miniature(digits.load(), train=2, test=1),
    build=_tiny_net,
    sabour={"side": 8, "filters": 4, "capsules": 2, "window": 3},
    routed={
        "capsnet": (5, {"side": 8, "filters": 16, "capsules": 4, "window": 3, "hidden": (16, 32)}),
        "matrix-capsules": (5, {**_TINY_MATRIX, "filters": 8, "capsules": (4, 4, 4)}),
        "matrix-capsules-small": (5, {**_TINY_MATRIX, "filters": 8, "capsules": (2, 4, 4)}),
    },
)
NETWORKS = (PUBLISHED, *FULL.routed)


def make_parser():
    """The command line's parser."""
    parser = Parser(
        prog="python -m experiments.train_digits",
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--tiny", action="store_true", help="a miniature network and 8x8 digits, a few steps")
    add("--epochs", metavar="N", type=_count, help=f"default {FULL.epochs}; tiny {TINY.epochs}")
    add("--seeds", metavar="A,B", type=_seeds, help="default 0,1,2; tiny 0")
    shard.add_to(parser)
    launcher.add_to(parser)
    add(
        "--network",
        choices=NETWORKS,
        default=PUBLISHED,
        help="the published one (default), or one with routing",
    )
    add(
        "--by",
        metavar="A,B",
        type=_by,
        help=f"of {', '.join(BY)} (default numbacaps); of a network with routing, {' or '.join(ROUTED_BY)} "
        "(default torch-modules)",
    )
    add("--algorithm", default="auto", help="of every layer (default auto)")
    add(
        "--precision",
        metavar="P",
        help=f"of every layer, {', '.join(PRECISIONS)} (default tf32x3, about as exact as ieee and "
        "faster, where algorithm and GPU have it, else ieee)",
    )
    add(
        "--resume",
        action="store_true",
        help="go on from the networks in the folder, which are dropped otherwise, all before the first is trained",
    )
    add(
        "--results",
        metavar="DIR",
        type=Path,
        help="default experiments/results/<gpu>/digits; tiny build/tiny-digits",
    )
    add(
        "--figures",
        metavar="DIR",
        type=Path,
        help="default experiments/figures; tiny the folder of the results",
    )
    return parser


def main(argv=None):
    """Train, log, draw.

    Parameters
    ----------
    argv : list of str, optional
        The command line's arguments; by default those of the process.

    Returns
    -------
    int
        0, or as the epilogue of --help says.
    """
    parser = make_parser()
    options = parser.parse_args(argv)
    if SIMULATED and not options.tiny:
        print(_NO_GPU, file=sys.stderr)
        return 2
    task = TINY if options.tiny else FULL
    _check_who(options, parser)
    try:
        if options.gpus:
            status = _on_gpus(task, options, argv)
            if status:
                return status
            options.resume = True  # of all runs; what is left is to report and to draw
        with processes.joined(on_gpu=not SIMULATED) as job:
            return _main(task, options, job)
    except (Refusal, records.ForeignFile, ImportError) as refusal:
        parser.error(str(refusal))


def _check_who(options, parser):
    """Who trains by default; an error of the parser where these cannot."""
    network, several = options.network, processes.launched()
    routed = network != PUBLISHED
    options.by = options.by or ("torch-modules" if routed else "numbacaps",)
    found = ",".join(options.by)
    if routed and not set(options.by) <= set(ROUTED_BY):
        parser.error(f"--by got {found}; --network {network} takes {', '.join(ROUTED_BY)}")
    if several > 1 and not routed and not set(options.by) <= set(MODULES):
        parser.error(f"--by got {found}; {several} processes take {', '.join(MODULES)}")
    for name, usual in (("algorithm", "auto"), ("precision", None)):
        given = getattr(options, name)
        if routed and given != usual:
            parser.error(f"--{name} got {given}; --network {network} takes none")
        if given != usual and "numbacaps" not in options.by:
            parser.error(f"--{name} got {given}; --by {found} takes none, numbacaps alone does")


def _on_gpus(task, options, argv):
    """Train the seeds in a process for each GPU that ``--gpus`` names; the exit status."""
    if processes.launched() > 1:
        raise Refusal("--gpus", options.gpus, "one process; torchrun has started more")
    folder, _ = _folders(options)
    count, seeds = len(cards.chosen(options.gpus)), options.seeds or task.seeds
    shares = [("--seeds", ",".join(map(str, seeds[i::count]))) for i in range(count) if seeds[i:]]
    if not options.resume:
        path = folder / "training.csv"
        with records.alone(path, seconds=_WAIT):
            log = training.Log(path, _gpu())
            training.drop(_runs(task, options, None, 0, 0, folder), log)
    told = SimpleNamespace(gpus=options.gpus, shard=options.shard, results=folder.parent)
    with TemporaryDirectory() as figures:
        argv = [*(sys.argv[1:] if argv is None else argv), "--figures", figures]
        how = "experiments.train_digits", shares, folder.name
        return launcher.launch("training", argv, told, training.merge, *how)


def _folders(options):
    """(folder of the results, folder of the figures), made."""
    usual = provenance.ROOT / "build" / "tiny-digits" if options.tiny else None
    folder = options.results or usual or provenance.RESULTS / _gpu() / "digits"
    figures = options.figures or usual and folder or provenance.ROOT / "experiments" / "figures"
    make_folder("--results", folder)
    make_folder("--figures", figures)
    return folder.resolve(), figures


def _gpu():
    """What rows and folders call what is trained on."""
    return "simulator" if SIMULATED else provenance.gpu_name()


def _main(task, options, job):
    """Train where the options say; the exit status."""
    batch = _batch(task, options.network)
    if batch < job.count:
        raise Refusal("--nproc-per-node", job.count, f"{batch} at most, the images of a batch")
    folder, figures = _folders(options)
    path = folder / "training.csv"
    with records.alone(path, seconds=_WAIT) if job.is_first else nullcontext():
        log = training.Log(path, _gpu()) if job.is_first else training.Unlogged()
        with records.named(folder):  # a network's file, or a figure
            return _train(task, options, job, log, folder, figures)


def _train(task, options, job, log, folder, figures):
    """Train every run, log, draw, as the only job that writes to the folder; the exit status."""
    run = None
    try:
        data, batch = task.load(), _batch(task, options.network)
        how = batch, options.epochs or task.epochs, folder, job, _test_loss(options.network)
        runs = _runs(task, options, data, *how)
        if job.is_first and not options.resume:
            training.drop(runs, log)
        for run in runs:
            model = _begin(run, task, options)
            log.begin(run, model.steps)
            if job.is_first and model.steps and not log.has(run) and model.steps >= run.steps:
                got = f"{run.checkpoint}, which is trained, while {log.path} has no row of it"
                raise Refusal("--resume", got, "both; without it the network is trained anew")
            training.train(model, run, log)
    except training.Diverged as end:
        print(f"train_digits: {end}; {_kept(run)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"interrupted; {_kept(run)}; --resume goes on from there", file=sys.stderr)
        return 130
    if job.is_first and runs:
        _report(log, runs)
        _draw(log, runs[0], model_of(runs[0], task, options, resume=True), figures, options.network)
    return 0


def _runs(task, options, data, *how):
    """The runs that the options ask for."""
    runs = [
        training.Run(_name(options.network, by), seed, data, *how)
        for seed in options.seeds or task.seeds
        for by in options.by
    ]
    return options.shard.part(runs, key=lambda run: (run.by, run.seed))


def _name(network, by):
    """Who trains, as rows and files say it."""
    return by if network == PUBLISHED else f"{network}-{ROUTED_BY[by]}"


def _batch(task, network):
    """Images of a batch."""
    return task.batch if network == PUBLISHED else task.routed[network][0]


def _test_loss(network):
    """What judges the scores of test images."""
    if network == PUBLISHED:
        return reference.nn.margin_loss
    from experiments.training import paper_net

    return paper_net.test_loss(network)


def _begin(run, task, options):
    """The model of a run, from its file if the run goes on."""
    model = model_of(run, task, options, run.job, resume=options.resume)
    if not run.job.agrees_on(model.steps):
        raise Refusal("--results", run.folder, "a folder that all processes see")
    return model


def model_of(run, task, options, job=processes.ALONE, resume=False):
    """The model of a run, from its file if that is to be read."""
    try:
        model = _built(run, task, options, job)
        if resume and run.checkpoint.exists():
            model.load(run.checkpoint)
    except (ValueError, RuntimeError, OSError) as refusal:
        make_parser().error(str(refusal))
    return model


def _built(run, task, options, job):
    """The model of a run with its first weights."""
    device = "cpu" if SIMULATED else "cuda"
    if options.network != PUBLISHED:
        from experiments.training import paper_net

        _, sizes = task.routed[options.network]
        twin = run.by == _name(options.network, "torch")
        how = {"twin": twin, "device": device, "job": job}
        return paper_net.make(options.network, run.seed, **how, **sizes)
    if run.by.startswith("sabour"):
        from experiments.training import module_net

        make = module_net.sabour if run.by == "sabour-modules" else module_net.sabour_twin
        return make(run.seed, device=device, job=job, **task.sabour)
    network = task.build(run.seed, options.algorithm, options.precision or _precision(options))
    if run.by == "torch":
        from experiments.training.torch_network import TorchNet

        return TorchNet(network, device)
    if run.by == "torch-modules":
        from experiments.training import module_net

        return module_net.published(network, device, job)
    return network


def _precision(options):
    """The fastest that is as exact as float32; the simulator, where nothing is fast, has the simplest."""
    has = ALGORITHMS[resolve(options.algorithm)].precisions(np.dtype(np.float32))
    return "tf32x3" if "tf32x3" in has and not SIMULATED else "ieee"


def _kept(run):
    if run is None or not run.checkpoint.exists():
        return "no network was saved before"
    with np.load(run.checkpoint) as content:
        return f"{run.checkpoint} holds the network after {int(content['steps'])} steps"


def _report(log, runs):
    """Say how well each way of training ended, over its seeds."""
    last = {records.key(row, training.RUN): row["test_accuracy"] for row in log.rows}
    for by in dict.fromkeys(run.by for run in runs):
        accuracies = [float(last[by, str(run.seed)]) for run in runs if run.by == by]
        mean = sum(accuracies) / len(accuracies)
        each = ", ".join(f"{accuracy:.2%}" for accuracy in accuracies)
        print(f"{by}: test accuracy {mean:.2%} in the mean of {len(accuracies)} seeds ({each})")
    print(f"{log.path} holds every epoch")


def _draw(log, run, model, folder, network):
    """Write what a run's model makes of the test digits, and the figures of its network."""
    predicted = training.classify(model, run.digits.test).argmax(axis=1)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(PREDICTIONS)
    writer.writerows(zip(run.digits.test_rows, run.digits.test_labels, predicted))
    is_published = network == PUBLISHED
    prefix = "" if is_published else f"{network}-"
    provenance.write_text(run.folder / f"{prefix}predictions.csv", text.getvalue())
    names = BY if is_published else [_name(network, by) for by in ROUTED_BY]
    rows = [row for row in log.rows if row["by"] in names]
    drawn = plots.draw_all(rows, run, predicted, model.kernels[0])
    files = {prefix + name: content for name, content in drawn.items()}
    for name, content in files.items():
        with written_whole(folder / name) as file:
            file.write(content)
    print(f"{len(files)} files in {folder}")


def _count(text):
    if not text.isdecimal() or not 0 < int(text) < 10**6:
        raise argparse.ArgumentTypeError(f"got {text!r}; it takes an integer from 1 to 999999")
    return int(text)


def _seeds(text):
    parts = text.split(",")
    seeds = tuple(int(part) for part in parts if part.isdecimal())
    if len(set(seeds)) < len(parts):
        raise argparse.ArgumentTypeError(f"got {text!r}; it takes integers, each once, like 0,1,2")
    return seeds


def _by(text):
    parts = tuple(text.split(","))
    if not set(parts) <= set(BY) or len(set(parts)) < len(parts):
        raise argparse.ArgumentTypeError(f"got {text!r}; it takes {', '.join(BY)}, each once")
    return parts


if __name__ == "__main__":
    sys.exit(main())
