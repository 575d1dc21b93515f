"""Inference and training of one batch size: passes, the places of batches, and what is captured into graphs."""

from functools import cached_property, partial

from numbacaps.device.streams import Repeated
from numbacaps.nn.batches import Slot
from numbacaps.nn.data import RowBatch
from numbacaps.nn.resident.passes import backward_pass, forward_pass


class Inference:
    """The forward pass of one batch size."""

    def __init__(self, network, N):
        computing = network._computing
        self._slot = Slot((N, *network.input_shape), network.dtype, network._copying, computing)
        self.forward = forward_pass(network.layers, N, network.dtype, for_gradients=False)
        self._state, self._beside, self._packed = network.state, network._beside, None
        operands = self._slot.x, self._state, self._beside
        self._launch = Repeated(
            lambda: self.forward.launch(*operands), computing, self.forward.capturable
        )

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


class Training:
    """Steps of one batch size, captured for each place where a batch can lie."""

    def __init__(self, network, N):
        self._computing, self._beside = network._computing, network._beside
        self._state, self._adam = network.state, network.adam
        shape = N, *network.input_shape
        self._place = shape, network.dtype, network._copying, network._computing
        self.forward = forward_pass(network.layers, N, network.dtype)
        self._backward = backward_pass(self.forward)
        self._turn = 0

    @cached_property
    def _slots(self):
        """Two, which batches from the host take in turn."""
        return [Slot(*self._place) for _ in range(2)]

    @cached_property
    def _steps(self):
        """A step for each of them."""
        return [self._repeated(partial(self._launch_step, slot)) for slot in self._slots]

    def _repeated(self, work):
        return Repeated(work, self._computing, self.forward.capturable)

    def _launch_gradients(self, batch):
        self._beside.forget()
        self._backward.differentiate(batch.x, batch.labels, self._state, self._beside)

    def _launch_step(self, batch):
        self._launch_gradients(batch)
        self._state.move(self._adam, self._computing.numba)

    def _launch_row_step(self, batch):
        batch.gather()
        self._launch_step(batch)

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
        self._launch_gradients(slot)
        slot.release()

    def step_rows(self, data, rows, step):
        """Queue the gathering of a batch and its step."""
        if self not in data.batches:
            N = len(rows)
            batch = RowBatch(data, N, self._state.step, self._computing)
            data.batches[self] = batch, self._repeated(partial(self._launch_row_step, batch))
        batch, launch = data.batches[self]
        batch.write(rows, step)
        launch()
