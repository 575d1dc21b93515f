"""A process that trains a small network to its end, from the file that an earlier one has left if there is one.

``python -m tests.support.campaign.learner FOLDER SEED EPOCHS``: the loop, log and files of
:mod:`experiments.training`, on drawn images.
"""

import sys
from pathlib import Path

import numpy as np

from experiments.measuring import records
from experiments.training import training
from experiments.training.digits import Digits
from numbacaps.device.target import SIMULATED
from numbacaps.nn import CapsNet, Layer

_SIDE, _CLASSES, _BATCH = 5, 3, 5
_IMAGES = 15 if SIMULATED else 2000


def digits(seed):
    """Drawn images, whose brightest rows tell their class."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, _CLASSES, _IMAGES)
    images = rng.integers(0, 128, (_IMAGES, _SIDE, _SIDE))
    images[np.arange(_IMAGES), labels] += 100
    rows = np.arange(_BATCH)
    images = images.astype(np.uint8)
    return Digits(images, labels, images[rows], labels[rows], rows)


def network(seed):
    """The network with its first weights."""
    layers = (
        Layer(1, (1, 4), stride=2, capsule=(2, 2), squash=2),
        Layer(_CLASSES, (2, 2), window=2, squash=4),
    )
    return CapsNet(layers, (1, _SIDE, _SIDE, 1, 1), seed=seed)


def main(folder, seed, epochs):
    """Train; 0, or 130 after Ctrl-C."""
    run = training.Run("numbacaps", int(seed), digits(int(seed)), _BATCH, int(epochs), Path(folder))
    path = run.folder / "training.csv"
    try:
        with records.alone(path):
            log, net = training.Log(path, "any"), network(run.seed)
            if run.checkpoint.exists():
                net.load(run.checkpoint)
            log.begin(run, net.steps)
            training.train(net, run, log)
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
