"""Training steps of one network on several GPUs: the modules of numbacaps.torch beside their plain twin, by PyTorch's DDP.

``python -m experiments.scaling`` writes ``experiments/results/<gpu>/scaling.csv``: torchrun starts 1, 2, 4 and so on
processes, a GPU each, which take eager steps of the published network together, over NCCL. A "shared" batch has 1,024
images for any number of GPUs (strong scaling); "each" gives every GPU 128 (weak scaling). The loss and the gradients of
the whole batch are compared with float64 first.

``CUDA_VISIBLE_DEVICES`` chooses the GPUs. A process alone takes its step without DDP.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from experiments.measuring import cards, opponents, provenance
from experiments.measuring.listed import Listed
from experiments.measuring.refusal import Refusal
from experiments.measuring.scaling_rows import (
    BATCHES,
    CONTESTANTS,
    KEYS,
    NAME,
    VALUES,
    images_of,
    told,
)
from experiments.measuring.torch_rows import PRECISIONS

_LISTED = Listed(NAME, KEYS, VALUES, beside=("contestant", "gpus", "images"))
listing, merge, is_current = _LISTED.listing, _LISTED.merge, _LISTED.is_current


def make_parser():
    """The command line's parser."""
    choices = {
        "batches": (tuple(BATCHES), "whose batch"),
        "precisions": (PRECISIONS, "classes"),
        "contestants": (CONTESTANTS, "who takes steps"),
    }
    return _LISTED.parser(__doc__, choices)


def counts(gpus):
    """1, 2, 4 and so on, up to all GPUs."""
    return [1 << i for i in range(gpus.bit_length())]


def command(keys, path, options=()):
    """What starts the processes whose rows are ``keys``, which differ in the contestant alone."""
    _, precision, _, gpus, images = keys[0]
    return [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *(f"--nproc-per-node={gpus}", "-m", "experiments.measuring.scaled", str(path)),
        *("--images", str(images), "--precision", precision),
        *("--contestants", ",".join(key[2] for key in keys), *options),
    ]


def measure(keys, options=()):
    """The rows of contestants that take turns in the same processes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "found.json"
        done = subprocess.run(
            command(keys, path, options), cwd=provenance.ROOT, stderr=subprocess.PIPE, text=True
        )
        if done.returncode:
            note = f"exit status {done.returncode}: {_cause(done.stderr)}"
            found = {key[2]: {"note": note} for key in keys}
        else:
            found = json.loads(path.read_text("utf-8"))
    return [dict(zip(KEYS, key)) | found[key[2]] for key in keys]


def _cause(said):
    """The first error in what processes said, before torchrun's own; the end of it where there is none."""
    errors = (line for line in said.splitlines() if "rror:" in line)
    return next(errors, " ".join(said.split()[-40:]))


def jobs(options):
    """(keys, work) of every group of rows; ImportError where PyTorch, or its build for GPUs, is not here."""
    opponents.torch_on_gpu()
    groups = [
        [(batch, precision, name, gpus, images_of(batch, gpus)) for name in options.contestants]
        for gpus in counts(len(cards.visible()))
        for batch in options.batches
        for precision in options.precisions
    ]
    return [(keys, lambda keys=keys: measure(keys)) for keys in groups]


def main(arguments=None):
    parser = make_parser()
    options = parser.parse_args(arguments)
    if options.gpus:
        parser.error(
            str(
                Refusal(
                    "--gpus", options.gpus, "nothing: a step takes the GPUs of CUDA_VISIBLE_DEVICES"
                )
            )
        )
    return _LISTED.main(parser, arguments, jobs, told)


if __name__ == "__main__":
    sys.exit(main())
