"""Compile kernels ahead, in processes side by side: :func:`warmup`, and ``python -m numbacaps.warmup``.

What is compiled is what a plan asks for, so this follows whatever a plan compiles. The kernels are kept on
disk (:mod:`numbacaps.device.kernel_cache`), where later processes find them.
"""

import os
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from numbacaps.api import capsule_conv2d
from numbacaps.device.bfloat16 import dtype_of
from numbacaps.device.target import SIMULATED, check_target
from numbacaps.fused.precision import PRECISIONS, precisions
from numbacaps.geometry import Geometry, is_int
from numbacaps.messages import did_you_mean, is_iterable, shown
from numbacaps.planning import plan
from numbacaps.routing.api import explain_routing
from numbacaps.routing.plan import routing_plan
from numbacaps.warmup.presets import IMAGE, LAYERED, PRESETS, Routed

_NETWORK = "network"  # the preset that is more than its layers
_DTYPES = ("float16", "bfloat16", "float32", "float64")
_OF_NETWORKS = ("float32", "float64")  # the dtypes that they take
_DEFAULT, _SAME = "auto", "tf32x3"  # which routing computes by the same kernels
_OF_PLANS = ("logits", "couplings")  # options of routing that no explanation takes
_PUBLISHED, _LAYERED = "published", "layer by layer"  # networks
_BATCH = 128  # images of a network


class Warmup(NamedTuple):
    """How a warm-up went.

    Attributes
    ----------
    seconds : float
    made : int
        Layers, each at a dtype and a precision, and whole networks that are ready.
    failed : dict of str to str
        What could not be compiled, and why.
    """

    seconds: float
    made: int
    failed: dict


def warmup(
    convolutions: str | Iterable = tuple(PRESETS),
    *,
    dtypes: Iterable[str] = ("float32",),
    precisions: Iterable[str] | None = None,
    processes: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Warmup:
    """Compile all kernels that layers take on this GPU, every pass of them, and keep them on disk.

    Parameters
    ----------
    convolutions : str or iterable
        Each is the name of a preset, ``"network"`` (the published network, as it trains and as it infers, and one that goes layer by layer), ``"workloads"``
        (convolutions of EM routing's sizes and wider ones), ``"capsules"`` (other capsules, windows and strides, for most
        kernels that any convolution takes) or ``"routing"`` (dynamic and EM routing, for most that any routed layer takes); a
        :class:`numbacaps.Geometry`; a pair of shapes (N, C, H, W, D1, D2) and (P, C, KH, KW, D2, D3), of a convolution; or
        both and a dict, of a layer with routing: options of :func:`numbacaps.routing_plan` but dtype and precision.
    dtypes : iterable of str
        float16, bfloat16, float32 or float64.
    precisions : iterable of str, optional
        As :func:`numbacaps.capsule_conv2d` takes them; by default all that the GPU has for a dtype. Of routing those
        that it takes, or else its default.
    processes : int, optional
        That compile side by side; by default one a core.
    progress : callable, optional
        ``progress(done, of)`` is called behind each.

    Returns
    -------
    Warmup

    Raises
    ------
    TypeError, ValueError, ImportError
        An argument is not as above, or a dtype takes a package that is not here.
    RuntimeError
        There is no GPU: the simulator compiles nothing.
    """
    for name, words in (("dtypes", dtypes), ("precisions", precisions)):
        is_left_out = words is None and name == "precisions"
        is_some = is_iterable(words) and not isinstance(words, (str, type))
        if not (is_some or is_left_out):
            raise TypeError(f"{name} is {shown(words)}; it takes a sequence of words")
    if not (isinstance(convolutions, (str, Geometry)) or is_iterable(convolutions)):
        raise TypeError(
            f"convolutions is {shown(convolutions)}; it takes a preset's name, a Geometry, or a sequence of these"
        )
    jobs = _jobs(convolutions, dtypes, precisions)
    processes = os.cpu_count() if processes is None else processes
    if not is_int(processes):
        raise TypeError(f"processes is {shown(processes)}; it takes an int")
    if processes < 1:
        raise ValueError(f"processes is {processes}; it takes 1 or more")
    if SIMULATED:
        raise RuntimeError("kernels run on the simulator here, which compiles nothing")
    check_target()
    start, failed = time.perf_counter(), _side_by_side(jobs, processes, progress)
    return Warmup(time.perf_counter() - start, len(jobs) - len(failed), failed)


def _jobs(convolutions, dtypes, precisions):
    """(function, arguments) of everything to compile, each once."""
    if isinstance(convolutions, (str, Geometry)):
        convolutions = (convolutions,)
    words = [(dtype, word) for dtype in dtypes for word in _precisions(dtype, precisions)]
    jobs = []
    for one in convolutions:
        for layer in _layers(one):
            work = _make_routing_ready if isinstance(layer, Routed) else _make_ready
            jobs += [(work, (layer, *word)) for word in _words_of(layer, words)]
        if isinstance(one, str) and one == _NETWORK:
            whole = [word for word in words if word[0] in _OF_NETWORKS]
            runs = [
                (_network, (*word, what, which))
                for word in whole
                for what in ("step", "forward")
                for which in (_PUBLISHED, _LAYERED)
            ]
            jobs = runs + jobs  # what takes longest comes first
    return list(dict.fromkeys(jobs))


def _precisions(dtype, wanted):
    """Those of the wanted precisions that a dtype has here, by default of all; "ieee" for "auto" where both are one."""
    if dtype not in _DTYPES:
        raise ValueError(
            f"dtypes names {shown(dtype)}; it takes some of {list(_DTYPES)}"
            + did_you_mean(dtype, _DTYPES)
        )
    none, one = (np.zeros((N, 1, 1, 1, 1, 1), dtype_of(dtype)) for N in (0, 1))
    is_ieee = precisions(one.dtype) == ("ieee",)  # whatever the word
    found, refusal = [], ""
    for word in PRECISIONS if wanted is None else wanted:
        try:
            capsule_conv2d(none, one, precision=word)  # checks its arguments, and computes nothing
            found.append("ieee" if is_ieee else word)
        except (TypeError, ValueError) as error:
            refusal = error
    if not found:
        raise ValueError(f"precisions is {shown(wanted)}, of which {dtype} has none: {refusal}")
    return found


def _words_of(layer, words):
    """Those of the pairs of dtype and precision that a layer takes, each kernel once."""
    if isinstance(layer, Geometry):
        return words
    found = []
    for dtype in dict.fromkeys(dtype for dtype, _ in words):
        wanted = [word for of, word in words if of == dtype and _routes(layer, dtype, word)]
        if _DEFAULT in wanted and _SAME in wanted:
            wanted.remove(_SAME)
        found += [(dtype, word) for word in wanted or [_DEFAULT]]
    return found


def _routes(layer, dtype, precision):
    """Whether a layer with routing takes a precision."""
    try:
        _explain(layer, dtype=dtype, precision=precision)
    except ValueError:
        return False
    return True


def _explain(layer, **how):
    options = {name: value for name, value in layer.options if name not in _OF_PLANS}
    return explain_routing(layer.x_shape, layer.w_shape, **options, **how)


def _layers(one):
    """The layers that one entry of ``convolutions`` stands for."""
    if isinstance(one, Geometry):
        return [one]
    if isinstance(one, str):
        if one not in PRESETS:
            raise ValueError(
                f"convolutions names {one!r}; it takes one of {list(PRESETS)}"
                + did_you_mean(one, PRESETS)
            )
        return PRESETS[one].values()
    if isinstance(one, (tuple, list)) and len(one) == 3 and isinstance(one[2], dict):
        of_x, of_w, options = one
        for name in ("dtype", "precision"):
            if name in options:
                raise ValueError(
                    f"convolutions holds {name!r} of a layer; {name}s are of all layers"
                )
        for name in _OF_PLANS:
            if not isinstance(options.get(name, False), (bool, np.bool_)):
                raise TypeError(f"{name} is {shown(options[name])}; it takes True or False")
        named = ((name, tuple(v) if isinstance(v, list) else v) for name, v in options.items())
        layer = Routed(of_x, of_w, tuple(named))
        _explain(layer)  # checks it
        return [layer._replace(x_shape=tuple(of_x), w_shape=tuple(of_w))]
    try:
        (N, C, H, W, D1, D2), (P, same, KH, KW, again, D3) = one
        fits = (same, again) == (C, D2)
    except (TypeError, ValueError):
        fits = False
    if not fits:
        raise ValueError(
            f"convolutions holds {shown(one)}; it takes a preset's name, a Geometry, or shapes "
            "(N, C, H, W, D1, D2) and (P, C, KH, KW, D2, D3), of routing with a dict of options"
        )
    return [Geometry(N, C, P, H, W, KH, KW, 1, D1, D2, D3)]


def _side_by_side(jobs, processes, progress):
    """Do jobs in processes of their own; what failed, and why."""
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from multiprocessing import get_context

    failed = {}
    with ProcessPoolExecutor(min(processes, len(jobs) or 1), get_context("spawn")) as pool:
        futures = {pool.submit(work, *how): how for work, how in jobs}
        try:
            for done, future in enumerate(as_completed(futures), start=1):
                if error := future.exception():
                    failed[" ".join(map(str, futures[future]))] = f"{type(error).__name__}: {error}"
                if progress is not None:
                    progress(done, len(jobs))
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
            raise
    return failed


def _make_routing_ready(layer, dtype, precision):
    """Have a plan compile every pass of a layer with routing."""
    routing_plan(layer.x_shape, layer.w_shape, dtype, precision=precision, **dict(layer.options))


def _make_ready(geometry, dtype, precision):
    """Have a plan compile every pass of a convolution."""
    moves = {"stride": geometry.stride, "padding": geometry.padding, "dilation": geometry.dilation}
    shapes = geometry.input_shape, geometry.kernel_shape
    plan(*shapes, dtype, product="gab,gbc->gac", precision=precision, **moves)


def _network(dtype, precision, what, which):
    """Have a network compile what a step, or an inference, takes: the published one, or one that goes layer by layer."""
    from numbacaps.nn import CapsNet, Layer

    if which == _PUBLISHED:
        net = CapsNet.published(dtype=dtype, precision=precision)
    else:
        layers = [Layer(**layer, precision=precision) for layer in LAYERED]
        net = CapsNet(layers, IMAGE, dtype=dtype)
    images = np.zeros((_BATCH, *net.input_shape), net.dtype)
    if what == "step":
        net.step(images, np.zeros(_BATCH, np.int64))
        net.history()  # waits for it
    else:
        net.forward(images)
