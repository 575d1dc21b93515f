"""What a fresh process is told to do for the experiment first_call, and how long its results took.

``python -m experiments.measuring.first '{"what": ...}'`` prints a JSON object of seconds. Arrays are on the device, and
the device is ready, when the clock of a call starts; a result is there when the device has been waited for.
"""

import json
import sys
import time
from functools import partial

PASSES = ("forward", "backward_input", "backward_kernel")
_BATCH = 128


def seconds(call):
    """How long a call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def imported():
    """``import numbacaps`` in a process that has imported nothing."""

    def work():
        import numbacaps  # noqa: F401

    return {"import": seconds(work)}


def passes(geometry, names, dtype, precision):
    """The first result of each of some passes of a convolution, one behind the other.

    Parameters
    ----------
    geometry : dict
        Arguments of :class:`numbacaps.Geometry`.
    names : list of str
        Of :data:`PASSES`.
    dtype, precision : str
    """
    import numpy as np

    import numbacaps
    from numbacaps.device.bfloat16 import dtype_of, to_device
    from numbacaps.device.target import cuda

    g = numbacaps.Geometry(**geometry)
    rng = np.random.default_rng(0)
    x, w, dy = (
        to_device(rng.standard_normal(shape, np.float32).astype(dtype_of(dtype)))
        for shape in (g.input_shape, g.kernel_shape, g.output_shape)
    )
    cuda.synchronize()
    moves = {"stride": g.stride, "padding": g.padding, "dilation": g.dilation}
    how = moves | {"product": "gab,gbc->gac", "precision": precision}
    backward = partial(numbacaps.capsule_conv2d_backward, x, w, dy, **how)
    calls = {
        "forward": partial(numbacaps.capsule_conv2d, x, w, **how),
        "backward_input": partial(backward, needs=("input",)),
        "backward_kernel": partial(backward, needs=("kernel",)),
    }
    return {name: seconds(lambda name=name: (calls[name](), cuda.synchronize())) for name in names}


def routing(geometry, form):
    """The first parents of a layer with routing, and its first gradients behind them, at the default precision.

    Parameters
    ----------
    geometry : dict
        Arguments of :class:`numbacaps.Geometry`.
    form : str
        "dynamic" or "em".
    """
    import numpy as np

    import numbacaps
    from numbacaps.device.target import cuda

    g = numbacaps.Geometry(**geometry)
    rng = np.random.default_rng(0)
    shapes = (shape[:4] + shape[5:] for shape in (g.input_shape, g.kernel_shape, g.output_shape))
    x, w, dy = (cuda.to_device(rng.standard_normal(shape, np.float32)) for shape in shapes)
    cuda.synchronize()
    how = {"routing": form, "stride": g.stride, "padding": g.padding, "dilation": g.dilation}
    calls = {
        "forward": partial(numbacaps.capsule_routing, x, w, **how),
        "gradients": partial(numbacaps.capsule_routing_backward, x, w, dy, **how),
    }
    return {
        name: seconds(lambda call=call: (call(), cuda.synchronize()))
        for name, call in calls.items()
    }


def warmup(dtype, precision):
    """``numbacaps.warmup()`` at one dtype and precision."""
    import numbacaps

    done = numbacaps.warmup(dtypes=(dtype,), precisions=(precision,))
    if done.failed:
        raise RuntimeError(f"not compiled: {done.failed}")
    return {"warmup": done.seconds}


def network(precision, order, batch=_BATCH):
    """The first step and the first inference of the published network, in that order or the other; then another one's.

    Parameters
    ----------
    precision : str
    order : list of str
        "step" and "inference".
    batch : int
    """
    import numpy as np

    from numbacaps.nn import CapsNet, Layer

    labels = np.arange(batch) % 10

    def step(net):
        net.step(np.ones((batch, *net.input_shape), np.float32), labels)
        net.history()  # waits for it

    def inference(net):
        net.forward(np.ones((batch, *net.input_shape), np.float32))

    def another():
        how = {"precision": precision}
        layers = (
            Layer(2, (1, 24), stride=2, capsule=(4, 6), squash=6, **how),
            Layer(6, (6, 12), squash=6, **how),
            Layer(6, (12, 8), stride=2, squash=8, **how),
            Layer(6, (8, 12), squash=6, **how),
            Layer(10, (12, 8), squash=32, **how),
        )
        return CapsNet(layers, (1, 28, 28, 1, 1))

    work = {"step": step, "inference": inference}
    made = {"network": CapsNet.published(precision=precision), "another network": another()}
    return {
        f"{name}, {what}": seconds(lambda net=net, what=what: work[what](net))
        for name, net in made.items()
        for what in order
    }


def main(arguments):
    case = json.loads(arguments[0])
    works = {"import": imported, "passes": passes, "routing": routing}
    work = (works | {"warmup": warmup, "network": network})[case.pop("what")]
    print(json.dumps(work(**case)))


if __name__ == "__main__":
    main(sys.argv[1:])
