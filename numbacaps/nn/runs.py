"""Inference and training of one batch size: passes, the places of batches, and what is captured into graphs.

Nothing here refers to itself in a circle, so that the memory of a network, of a batch size or of data is given back
when the last one who holds it lets go.
"""

from dataclasses import dataclass
from functools import partial
from weakref import WeakKeyDictionary

from numbacaps.device.linking import linked_side_by_side
from numbacaps.device.streams import Beside, Repeated, Stream, synchronize
from numbacaps.made_once import made_once
from numbacaps.nn.batches import Slot
from numbacaps.nn.data import RowBatch
from numbacaps.nn.kernels.adam import Adam
from numbacaps.nn.protocol import Backward
from numbacaps.nn.resident.passes import backward_pass, forward_pass
from numbacaps.nn.state import State

KEPT = 8  # batch sizes


class BySize:
    """The inferences or the trainings of a network, for the last few batch sizes.

    Parameters
    ----------
    make : type
        :class:`Inference` or :class:`Training`.
    """

    def __init__(self, make):
        self._make, self._kept = make, {}

    def __len__(self):
        return len(self._kept)

    def of(self, network, N):
        """The one of a batch size. A new one may take the place of the one that was asked for longest ago."""
        if N in self._kept:
            self._kept[N] = self._kept.pop(N)  # the last one now
            return self._kept[N]
        if len(self._kept) >= KEPT:
            synchronize()  # nothing that is queued reads what goes
            del self._kept[next(iter(self._kept))]
        self._kept[N] = self._make(network, N)
        return self._kept[N]


class Inference:
    """The forward pass of one batch size."""

    def __init__(self, network, N):
        computing = network._computing
        self._slot = Slot((N, *network.input_shape), network.dtype, network._copying, computing)
        with linked_side_by_side():
            self.forward = forward_pass(network.layers, N, network.dtype, for_gradients=False)
        self._state, self._beside, self._packed = network.state, network._beside, None
        launch = partial(self.forward.launch, self._slot.x, self._state, self._beside)
        self._launch = Repeated(launch, computing, self.forward.capturable)

    def run(self, x, version):
        """Queue a batch; kernels are packed anew if weights of another version were packed last."""
        self._slot.fill(x)
        if self._packed != version:
            self._beside.forget()
            self.forward.pack(self._state, self._beside)
            self._beside.join()
            self._packed = version
        self._launch()
        self._slot.release()


@dataclass(frozen=True)
class _Step:
    """What a step on a batch launches, wherever the batch lies."""

    backward: Backward
    state: State
    adam: Adam
    computing: Stream
    beside: Beside

    def launch_gradients(self, batch):
        self.beside.forget()
        self.backward.differentiate(batch.x, batch.labels, self.state, self.beside)

    def launch(self, batch):
        self.launch_gradients(batch)
        self.state.move(self.adam, self.computing.numba)

    def launch_on_rows(self, batch):
        batch.gather()
        self.launch(batch)

    def repeated(self, launch, batch):
        """A launch on a batch that lies in one place, as one graph where it can be."""
        return Repeated(partial(launch, batch), self.computing, self.backward.forward.capturable)


class Training:
    """Steps of one batch size, captured for each place where a batch can lie."""

    def __init__(self, network, N):
        shape = N, *network.input_shape
        self._place = shape, network.dtype, network._copying, network._computing
        with linked_side_by_side():
            self.forward = forward_pass(network.layers, N, network.dtype)
            backward = backward_pass(self.forward)
        where = network._computing, network._beside
        self._step = _Step(backward, network.state, network.adam, *where)
        self._turn = 0
        self._row_steps = WeakKeyDictionary()  # (batch of its rows, step on it) by data

    @made_once
    def _slots(self):
        """Two, which batches from the host take in turn."""
        return [Slot(*self._place) for _ in range(2)]

    @made_once
    def _steps(self):
        """A step for each of them."""
        return [self._step.repeated(self._step.launch, slot) for slot in self._slots]

    def _fill(self, x, labels):
        """The number of the slot whose turn it is, filled."""
        turn, self._turn = self._turn, 1 - self._turn
        self._slots[turn].fill(x, labels)
        return turn

    def step(self, x, labels):
        """Queue a batch and its step."""
        turn = self._fill(x, labels)
        self._steps[turn]()
        self._slots[turn].release()

    def differentiate(self, x, labels):
        """Queue a batch and its gradients."""
        slot = self._slots[self._fill(x, labels)]
        self._step.launch_gradients(slot)
        slot.release()

    def step_rows(self, data, rows, step):
        """Queue the gathering of a batch and its step."""
        if data not in self._row_steps:
            batch = RowBatch(data, len(rows), self._step.state.step, self._step.computing)
            launch = self._step.repeated(self._step.launch_on_rows, batch)
            self._row_steps[data] = batch, launch
        batch, launch = self._row_steps[data]
        batch.write(rows, step)
        launch()
