"""A capsule network on the toolkit's kernels: to run, to train, to save."""

from collections.abc import Sequence
from dataclasses import asdict

import numpy as np

from numbacaps.device.keeping import wait_when_dropped
from numbacaps.device.streams import Beside, Stream, synchronize
from numbacaps.geometry import is_int
from numbacaps.nn import checkpoint
from numbacaps.nn.checks import (
    check_adam,
    check_dtype,
    check_range,
    check_seed,
    refuse_masked,
)
from numbacaps.nn.data import Data
from numbacaps.nn.kernels.adam import Adam
from numbacaps.nn.layer import Layer, chain
from numbacaps.nn.runs import BySize, Inference, Training
from numbacaps.nn.state import PLACES, State


class CapsNet:
    """Layers of capsule convolutions whose last output is one capsule for each class.

    Work is queued: :meth:`step` returns before it is done. An inference pass and a training step
    run kernel by kernel the first time for each batch size, and are one CUDA graph launch from then
    on, where graphs are there and every layer's algorithm can be captured. What a batch size takes is kept for the
    last few of them.

    What is interrupted, by Ctrl-C for example, has been done or has not: the next call waits for what was queued, and
    counts the steps that the device has taken.

    Parameters
    ----------
    layers : sequence of Layer
    input_shape : tuple
        (C, H, W, *T1) of an image.
    seed : int
        0 to 2^64 - 1, of the initial weights (:mod:`numbacaps.nn.kernels.he_normal`).
    dtype : dtype_like
        float32 or float64, of everything.
    adam : Adam
        The optimiser's settings; the published ones by default.

    Raises
    ------
    TypeError, ValueError
        An argument is of another type or out of range; layers do not chain, with both shapes; a
        squash group does not divide its capsule; the last layer has more than one position.
    ImportError, RuntimeError
        A layer's algorithm takes a package or a GPU that is not here.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        input_shape: Sequence[int],
        *,
        seed: int = 0,
        dtype="float32",
        adam: Adam = Adam(),
    ):
        self.dtype = check_dtype(dtype)
        self.adam = check_adam(adam, self.dtype)
        self.layers = chain(layers, input_shape, self.dtype)
        self.input_shape = tuple(map(int, input_shape))
        last = self.layers[-1]
        if last.geometry.L != 1:
            raise ValueError(
                f"layers[{len(self.layers) - 1}] has an output of {last.geometry.OH} x "
                f"{last.geometry.OW} positions, shape {last.output_shape}; the last layer takes "
                "one: a class is one capsule"
            )
        self._kind = self.input_shape, str(self.dtype), self.classes  # what data must have too
        self.state = State(self.layers, self.dtype, check_seed(seed))
        self._steps, self._began, self._settled = 0, 0, True
        self._computing, self._copying = Stream(), Stream()
        self._beside = Beside(self._computing.numba)
        self._inferences, self._trainings = BySize(Inference), BySize(Training)
        streams = self._computing, self._copying, self._beside
        waits = [one.synchronize for one in streams]
        wait_when_dropped(self, waits, (self.state, self._inferences, self._trainings))

    @classmethod
    def published(
        cls,
        *,
        seed: int = 0,
        dtype="float32",
        algorithm: str = "auto",
        precision: str = "auto",
        adam: Adam = Adam(),
    ) -> "CapsNet":
        """The network of the paper's Table 1: five layers, images (1, 28, 28, 1, 1), 10 classes.

        ``algorithm`` and ``precision`` are those of every :class:`Layer`.
        """
        how = {"algorithm": algorithm, "precision": precision}
        layers = (
            Layer(1, (1, 32), stride=2, capsule=(4, 8), squash=8, **how),
            Layer(4, (8, 16), squash=8, **how),
            Layer(8, (16, 8), stride=2, squash=8, **how),
            Layer(4, (8, 16), squash=8, **how),
            Layer(10, (16, 8), squash=32, **how),
        )
        return cls(layers, (1, 28, 28, 1, 1), seed=seed, dtype=dtype, adam=adam)

    def __repr__(self):
        shapes = [self.input_shape, *(placed.output_shape for placed in self.layers)]
        chain = " -> ".join("x".join(map(str, shape)) for shape in shapes)
        return f"<CapsNet {chain}, {self.dtype}, {self.steps} steps>"

    def __reduce_ex__(self, protocol):  # what copy, deepcopy and pickle ask
        raise TypeError(
            "a CapsNet is not copied or pickled: it lives on the device; save() one, and load() the file in another"
        )

    @property
    def steps(self) -> int:
        """Steps taken, those before a :meth:`load` among them."""
        self._settle()
        return self._steps

    @property
    def classes(self) -> int:
        """Number of classes."""
        return self.layers[-1].layer.channels

    @property
    def kernels(self) -> list[np.ndarray]:
        """A copy of every layer's kernel, a list of ndarray (P, C, KH, KW, *T2)."""
        self._computing.synchronize()
        return self.state.read(self.state.weights)

    def forward(self, x) -> tuple[np.ndarray, np.ndarray]:
        """Class capsules and their lengths.

        Parameters
        ----------
        x : ndarray (N, C, H, W, *T1), of the network's dtype

        Returns
        -------
        capsules : ndarray (N, classes, *T3)
        lengths : ndarray (N, classes)
            The longest says the class.

        Raises
        ------
        TypeError, ValueError
            ``x`` has another dtype or shape.
        """
        self._check_images(x)
        with _Unsettled(self):
            inference = self._inference(len(x))
            inference.run(x, (self.state.writes, self._steps))
        stream = self._computing.numba
        capsules = inference.forward.outputs[-1].copy_to_host(stream=stream)
        lengths = inference.forward.lengths.copy_to_host(stream=stream)
        self._computing.synchronize()
        shape = (len(x), self.classes, *self.layers[-1].output_shape[3:])
        return capsules.reshape(shape), lengths

    def explain(self, N: int, gradients: bool = False) -> str:
        """Which kernels compute the layers for a batch of N images, and why; where activations are.

        Parameters
        ----------
        N : int
        gradients : bool
            Where gradients are wanted; the backward pass is one kernel where the forward pass is. Otherwise of
            inference.

        Returns
        -------
        str
            A line where a single kernel computes all layers; otherwise one for each, and why.

        Raises
        ------
        TypeError, ValueError
            ``N`` is no int, or less than 1; ``gradients`` is no bool.
        """
        if not isinstance(N, (int, np.integer)) or isinstance(N, bool):
            raise TypeError(f"N is {N!r}; it takes an int")
        if N < 1:
            raise ValueError(f"N is {N}; it takes at least 1")
        if not isinstance(gradients, (bool, np.bool_)):
            raise TypeError(f"gradients is {gradients!r}; it takes True or False")
        which = self._training if gradients else self._inference
        return which(int(N)).forward.explain()

    def loss_and_gradients(self, x, labels) -> tuple[float, list[np.ndarray]]:
        """The margin loss of a batch, and its gradient of every kernel; no weight moves.

        Parameters
        ----------
        x : ndarray (N, C, H, W, *T1), of the network's dtype
        labels : ndarray (N,) of int
            0 to classes - 1.

        Returns
        -------
        loss : float
        gradients : list of ndarray (P, C, KH, KW, *T2)

        Raises
        ------
        TypeError, ValueError
            ``x`` or ``labels`` have another dtype or shape, or a label is out of range.
        """
        labels = self._check_batch(x, labels)
        with _Unsettled(self):
            self._training(len(x)).differentiate(x, labels)
        self._computing.synchronize()
        loss = self.state.losses.copy_to_host()[self.steps % PLACES]
        return float(loss), self.state.read(self.state.gradients)

    def step(self, x, labels) -> None:
        """Queue a step of training: both passes, then Adam. :meth:`history` tells how it went.

        Parameters
        ----------
        x, labels
            As :meth:`loss_and_gradients`; free for other use on return.

        Raises
        ------
        TypeError, ValueError
            As :meth:`loss_and_gradients`.
        """
        labels = self._check_batch(x, labels)
        with _Unsettled(self):
            self._training(len(x)).step(x, labels)
            self._steps += 1

    def place(self, x, labels) -> Data:
        """Copy images and their labels to the device, for :meth:`step_rows`.

        Parameters
        ----------
        x, labels
            As :meth:`loss_and_gradients`.

        Returns
        -------
        Data
            Networks of other layers take it too, if images and classes are the same.

        Raises
        ------
        TypeError, ValueError
            As :meth:`loss_and_gradients`.
        """
        return Data(x, self._check_batch(x, labels), self._kind)

    def step_rows(self, data: Data, rows) -> None:
        """Queue a step, as :meth:`step`, on images that lie on the device.

        Of the batch only the row numbers are sent, so this takes the host the least time.

        Parameters
        ----------
        data : Data
            As :meth:`place` made it.
        rows : array_like (N,) of int
            0 to len(data) - 1, in any order; free for other use on return.

        Raises
        ------
        TypeError, ValueError
            ``data`` is of another kind of network, or ``rows`` have another dtype or shape, or are
            out of range.
        """
        rows = self._check_rows(data, rows)
        with _Unsettled(self):
            self._training(len(rows)).step_rows(data, rows, self._steps)
            self._steps += 1

    def history(self, first: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Loss and hits of every step from ``first`` on; waits for the last one.

        Parameters
        ----------
        first : int, optional
            Counted from 0; by default the oldest that the device keeps, which holds the last few
            thousand since a :meth:`load`.

        Returns
        -------
        losses : ndarray (steps - first,)
            Each of its batch before the weights moved.
        hits : ndarray (steps - first,) of int
            Images of the batch that were classified rightly.

        Raises
        ------
        TypeError
            ``first`` is no int.
        ValueError
            ``first`` is not among the steps that the device keeps.
        """
        if first is not None and not is_int(first):
            raise TypeError(f"first is {first!r}; it takes an int or None")
        oldest = max(self._began, self.steps - PLACES + 1)
        first = oldest if first is None else first
        if not oldest <= first <= self.steps:
            raise ValueError(f"first is {first}; it takes {oldest} to {self.steps}")
        self._computing.synchronize()
        places = np.arange(first, self.steps) % PLACES
        return self.state.losses.copy_to_host()[places], self.state.hits.copy_to_host()[places]

    def save(self, path) -> None:
        """Write weights, moments and the number of steps to an ``.npz`` file, whole or not at all.

        Raises
        ------
        ValueError
            A number is not finite; a file that was there is as it was.
        OSError
            The file cannot be written, or ``path`` is a folder, a FIFO or a device.

        Notes
        -----
        A symbolic link is followed, and a file that was there keeps its mode.
        """
        steps = self.steps
        self._computing.synchronize()
        checkpoint.write(path, self.description, steps, self._runs())

    def load(self, path) -> None:
        """Take over what :meth:`save` wrote of a network of the same layers.

        Raises
        ------
        ValueError
            The file is damaged or holds another network; this one keeps its weights.
        OSError
            The file cannot be opened.
        """
        shapes = [layer.kernel_shape for layer in self.layers]
        steps, runs = checkpoint.read(path, self.description, shapes, self.dtype)
        before = self.steps, self._began
        self._computing.synchronize()
        runs_before = self._runs()
        try:
            self._write(steps, steps, runs)
        except BaseException:  # Ctrl-C too
            self._write(*before, runs_before)
            raise

    @property
    def description(self) -> dict:
        """What decides the network's function and its weights' meaning, fit for JSON."""
        return {
            "input_shape": list(self.input_shape),
            "dtype": str(self.dtype),
            "layers": [layer.description for layer in self.layers],
            "adam": asdict(self.adam),
        }

    def _settle(self):
        """After work that broke off: wait for what was queued, and count the steps that the device has counted."""
        if not self._settled:
            synchronize()  # streams beside the computing one too
            self._steps = int(self.state.step.copy_to_host()[0])
            self._settled = True

    def _runs(self):
        """Weights and moments as users see them, by :data:`numbacaps.nn.checkpoint.RUNS`."""
        return {name: self.state.read(getattr(self.state, name)) for name in checkpoint.RUNS}

    def _write(self, steps, began, runs):
        """Take over weights and moments, and so many steps."""
        with _Unsettled(self):
            self.state.step.copy_to_device(np.array([steps], np.int64))
            for name, arrays in runs.items():
                self.state.write(getattr(self.state, name), arrays)
            self._steps, self._began = steps, began

    def _inference(self, N):
        return self._inferences.of(self, N)

    def _training(self, N):
        return self._trainings.of(self, N)

    def _check_images(self, x):
        refuse_masked("x", x)
        if not isinstance(x, np.ndarray):
            raise TypeError(f"x is a {type(x).__name__}; it takes a NumPy array")
        if x.dtype != self.dtype:
            raise TypeError(f"x has dtype {x.dtype}; it takes {self.dtype}")
        if x.shape[1:] != self.input_shape or not len(x):
            sizes = ", ".join(map(str, ("N", *self.input_shape)))
            raise ValueError(f"x has shape {x.shape}; it takes ({sizes}) with N of 1 or more")

    def _check_batch(self, x, labels):
        """The labels as int64, after checking them and the images."""
        self._check_images(x)
        refuse_masked("labels", labels)
        labels = np.asarray(labels)
        if labels.dtype.kind not in "iu":
            raise TypeError(f"labels have dtype {labels.dtype}; they take ints")
        if labels.shape != (len(x),):
            raise ValueError(f"labels have shape {labels.shape}; they take ({len(x)},), as x has")
        check_range("labels", labels, self.classes)
        return labels

    def _check_rows(self, data, rows):
        """The row numbers as an array, after checking them and the data."""
        if not isinstance(data, Data):
            raise TypeError(f"data is a {type(data).__name__}; it takes what place() returns")
        if data.kind != self._kind:
            raise ValueError(
                "data has images (C, H, W, *T1), dtype and classes "
                f"{data.kind}; the network takes {self._kind}"
            )
        refuse_masked("rows", rows)
        rows = np.asarray(rows)
        if rows.dtype.kind not in "iu":
            raise TypeError(f"rows have dtype {rows.dtype}; they take ints")
        if rows.ndim != 1 or not rows.size:
            raise ValueError(f"rows have shape {rows.shape}; they take (N,) with N of 1 or more")
        check_range("rows", rows, len(data))
        return rows


class _Unsettled:
    """A network's work, which may break off anywhere; what comes next settles that."""

    def __init__(self, network):
        self._network = network

    def __enter__(self):
        self._network._settle()
        self._network._settled = False

    def __exit__(self, error, *_):
        if error is None:
            self._network._settled = True
