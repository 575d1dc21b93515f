"""Routing problems of published networks, and who computes them: numbacaps' kernels, and PyTorch with stored votes.

A contestant is made for a workload, its tensors and a pass; it is a function without arguments that returns results, or
results and gradients, those in the order of :attr:`Workload.operands`.
"""

from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from experiments.measuring import opponents
from experiments.measuring.problem import WrongResult
from numbacaps import Geometry, routing_plan
from numbacaps.device.target import cuda
from numbacaps.routing.options import Options
from numbacaps.routing.runner import Runner, kept_states
from reference.compare import ROUTING, ROUTING_TIMES

PASSES = ("forward", "training")  # the second is forward and backward
_OF_IMAGES = ("x", "dy", "activations", "d_activations")  # operands whose first axis is images


@dataclass(frozen=True)
class Workload:
    """A routing problem.

    Attributes
    ----------
    geometry : numbacaps.Geometry
    options : numbacaps.routing.options.Options
    """

    geometry: Geometry
    options: Options = field(default_factory=Options)

    def tensors(self, images=None, device="cuda", dtype="float32"):
        """x, w, dy, and of EM routing activations, beta_u, beta_a and d_activations; by name."""
        torch, g = opponents.torch(), self.geometry
        N = min(g.N, images or g.N)
        rng = np.random.default_rng(0)
        made = {
            "x": rng.standard_normal((N, *g.input_shape[1:])),
            "w": rng.standard_normal(g.kernel_shape) / (g.D2 * g.P) ** 0.5,
            "dy": rng.standard_normal((N, *g.output_shape[1:])),
        }
        if self.options.is_em:
            made["activations"] = rng.uniform(0.1, 1, (N, *g.input_shape[1:4]))
            made["beta_u"], made["beta_a"] = rng.standard_normal((2, g.P))
            made["d_activations"] = rng.standard_normal((N, *g.output_shape[1:4]))
        made = {name: np.float32(array) for name, array in made.items()}
        return {
            name: torch.tensor(array, dtype=getattr(torch, dtype), device=device)
            for name, array in made.items()
        }

    @property
    def operands(self):
        """Names of what is differentiated."""
        return ("x", "w", *(("activations", "beta_u", "beta_a") if self.options.is_em else ()))

    def nbytes(self, wanted):
        """Bytes of operands and results of a pass."""
        g = self.geometry
        shapes = [g.input_shape, g.kernel_shape, g.output_shape]
        if self.options.is_em:
            shapes += [g.input_shape[:4], g.output_shape[:4]]
        return 4 * sum(map(prod, shapes)) * (1 if wanted == "forward" else 2)

    @property
    def votes_nbytes(self):
        """Bytes of the votes, which ours does not store unless they are summed over the window."""
        g = self.geometry
        return 4 * prod(g.summed_votes_shape if self.options.is_summed else g.votes_shape)

    @property
    def flop(self):
        """Operations of the votes of all iterations."""
        return self.geometry.flop * self.options.iterations


def _em_conv(N, C, P, size, window, stride=1):
    return Geometry(N, C, P, size, size, window, window, 1, 4, 4, 4, (stride, stride))


_EM = Options("em")
WORKLOADS = {
    f"digitcaps-{N}": Workload(Geometry(N, 1152, 10, 1, 1, 1, 1, 1, 1, 8, 16))
    for N in (1, 128, 512)
}
for _N in (8, 64, 128):
    WORKLOADS[f"em-conv1-{_N}"] = Workload(_em_conv(_N, 32, 32, 14, 3, 2), _EM)
    WORKLOADS[f"em-conv2-{_N}"] = Workload(_em_conv(_N, 32, 32, 6, 3), _EM)
    WORKLOADS[f"em-class-{_N}"] = Workload(_em_conv(_N, 32, 5, 4, 4), _EM)
WORKLOADS["apple-conv-128"] = Workload(_em_conv(128, 32, 32, 16, 3, 2))
WORKLOADS["segcaps-r3-1"] = Workload(
    Geometry(1, 16, 4, 128, 128, 5, 5, 1, 1, 32, 32, (1, 1), (2, 2)), Options(votes="sum")
)


# ---- contestants


def _by_torch(run):
    """A contestant of a function of (workload, tensors) that PyTorch differentiates."""

    def make(workload, tensors, wanted):
        torch = opponents.torch()
        _note_children(workload, tensors["x"].device)
        if wanted == "forward":

            def forward():
                with torch.no_grad():
                    return run(workload, tensors)

            return forward
        leaves = [tensors[name] for name in workload.operands]
        for leaf in leaves:
            leaf.requires_grad_()
        d_results = [tensors[name] for name in ("dy", "d_activations") if name in tensors]

        def training():
            results = run(workload, tensors)
            return (*results, *torch.autograd.grad(results, leaves, d_results))

        return training

    return make


def _form(workload):
    """The options of numbacaps.torch.capsule_routing."""
    g, o = workload.geometry, workload.options
    names = ("routing", "iterations", "softmax_over", "normalise", "lam", "epsilon", "votes")
    form = {name: getattr(o, name) for name in names}
    form |= {"stride": g.stride, "padding": g.padding, "dilation": g.dilation}
    return form | {"product": "gab,gbc->gac"}


def _given(workload, tensors):
    return {name: tensors[name] for name in workload.operands[2:]}


def fused(workload, tensors):
    """Ours as an operator of PyTorch."""
    from numbacaps.torch import capsule_routing

    found = capsule_routing(
        tensors["x"], tensors["w"], **_given(workload, tensors), **_form(workload)
    )
    return found if isinstance(found, tuple) else (found,)


_numbers = {}  # which capsule each child is, by workload and device: worked out before the first call


def _note_children(workload, device):
    """Have them for :func:`plain`."""
    from numbacaps.torch import plain_routing

    if workload.options.is_em and (workload, device) not in _numbers:
        _numbers[workload, device] = plain_routing.numbers_of(workload.geometry, device)


def plain(workload, tensors):
    """PyTorch with its votes stored, by einsum."""
    from numbacaps.torch import plain_routing

    x, w, o = tensors["x"], tensors["w"], workload.options
    g = replace(workload.geometry, N=x.shape[0])
    V = plain_routing.votes(x, w, g, o.is_summed)
    if not o.is_em:
        found = (plain_routing.dynamic(V, None, o),)
    else:
        a = plain_routing.children(tensors["activations"], _numbers[workload, x.device])
        found = plain_routing.em(V, a, tensors["beta_u"], tensors["beta_a"], o)
    shapes = g.output_shape, g.output_shape[:4]
    return tuple(one.transpose(1, 2).reshape(shape) for one, shape in zip(found, shapes))


def _compiled(workload, tensors, wanted):
    """The same, compiled by PyTorch as well as it can."""
    torch = opponents.torch()
    torch.compiler.reset()
    compiled = torch.compile(lambda tensors: plain(workload, tensors), mode="max-autotune")

    def run(workload, tensors):
        torch.compiler.cudagraph_mark_step_begin()
        return tuple(one.clone() for one in compiled(tensors))

    return _by_torch(run)(workload, tensors, wanted)


def captured(call):
    """A function that replays a call as a CUDA graph, and returns what the call gave."""
    cuda = opponents.torch().cuda
    stream, graph = cuda.Stream(), cuda.CUDAGraph()
    stream.wait_stream(cuda.current_stream())
    with cuda.stream(stream):
        call()  # compiled, and its workspace on this stream there: a stream that is captured allocates nothing
    cuda.synchronize()
    with cuda.graph(graph, stream=stream):
        found = call()

    def replay():
        graph.replay()
        return found

    return replay


def launched(workload, tensors, wanted):
    """Ours without a call's checks: what a CUDA graph captures. Returns (function, bytes of workspace).

    Votes that are summed over the window are computed by PyTorch's operator, and have no such function.
    """
    torch = opponents.torch()
    g, o = replace(workload.geometry, N=tensors["x"].shape[0]), workload.options
    numbers = kept_states(g, o, "auto", images=g.N) if wanted == "training" else 0
    runner = Runner(g, np.dtype(np.float32), o, keeps=numbers > 0)
    arrays, made, to = _on_device(tensors)
    flat = (g.N, g.P, g.L, g.E3), (g.N, g.P, g.L)
    x, w = arrays["x"], arrays["w"]
    names = _results(workload, "forward")
    operands = tuple(arrays[name] for name in workload.operands[2:]) or (None,)
    results = [to[name].reshape(*shape) for name, shape in zip(names, flat)]
    d_results = [arrays[name].reshape(*shape) for name, shape in zip(names, flat)]
    gradients = [to[name] for name in workload.operands[2:]] or [None]
    states = None
    if numbers:
        states = cuda.as_cuda_array(torch.empty((g.N, numbers), device=tensors["x"].device))

    def run():
        stream = cuda.external_stream(torch.cuda.current_stream().cuda_stream)
        runner.forward(x, w, operands, results, stream=stream, states=states)
        if wanted == "training":
            some = to["x"], to["w"], gradients
            runner.backward(x, w, operands, d_results, *some, stream, states)
        return [made[name] for name in _results(workload, wanted)]

    return run, lambda: runner.nbytes + 4 * g.N * numbers


def stored(workload, tensors, wanted):
    """Ours with its votes stored, backward computed and stored again; the rest as :func:`launched`."""
    torch, o = opponents.torch(), workload.options
    arrays, made, to = _on_device(tensors)
    shapes = tensors["x"].shape, tensors["w"].shape
    plan = routing_plan(*shapes, algorithm="stored", **_form(workload))
    names = workload.operands[2:]
    more, into = ({name: some[name] for name in names} for some in (arrays, to))
    result = {"out_activations": to["d_activations"]} if o.is_em else {}
    d_result = {"d_activations": arrays["d_activations"]} if o.is_em else {}
    x, w, dy = (arrays[name] for name in ("x", "w", "dy"))

    def run():
        how = more | {"stream": torch.cuda.current_stream().cuda_stream}
        plan(x, w, to["dy"], **result, **how)
        if wanted == "training":
            plan.backward(x, w, dy, to["x"], to["w"], into=into, **d_result, **how)
        return [made[name] for name in _results(workload, wanted)]

    return run, lambda: plan.nbytes


def _on_device(tensors):
    """Device arrays of tensors, tensors like them for results and gradients, and device arrays of those; by name."""
    torch = opponents.torch()
    detached = {name: tensor.detach() for name, tensor in tensors.items()}
    made = {name: torch.zeros_like(tensor) for name, tensor in detached.items()}
    arrays, to = (
        {name: cuda.as_cuda_array(tensor) for name, tensor in some.items()}
        for some in (detached, made)
    )
    return arrays, made, to


def _results(workload, wanted):
    """Names of results, each that of its gradient, and of gradients, each that of its operand."""
    results = ("dy", "d_activations") if workload.options.is_em else ("dy",)
    return (*results, *workload.operands) if wanted == "training" else results


CONTESTANTS = {
    "fused": _by_torch(fused),
    "graph": lambda workload, *how: (
        captured(_by_torch(fused)(workload, *how))
        if workload.options.is_summed
        else launched(workload, *how)[0]
    ),
    "stored": lambda *how: stored(*how)[0],
    "torch": _by_torch(plain),
    "torch_graph": lambda *how: captured(_by_torch(plain)(*how)),
    "compiled": _compiled,
}


def error(make, workload, wanted, images=8, device="cuda"):
    """Largest difference from PyTorch in float64, relative to the largest element of each array, of the first images.

    Forward, all images are routed, by the kernels that are timed. All images add to gradients, so there only the first are routed.

    Raises
    ------
    WrongResult
        It is more than :data:`reference.compare.ROUTING` and more than :data:`~reference.compare.ROUTING_TIMES` that of stored votes in
        float32, or no number. EM routing divides by variances, so that float32's own error grows: after 8 iterations plain
        PyTorch's gradients are off by 3e-3.
    """
    is_forward = wanted == "forward"
    given = workload.tensors(None if is_forward else images, device)
    first = {
        name: tensor[:images] if name in _OF_IMAGES else tensor for name, tensor in given.items()
    }
    found = make(workload, given, wanted)()
    if is_forward:
        found = [one[:images] for one in found]
    by_torch = _by_torch(plain)
    exact = by_torch(workload, {name: one.double() for name, one in first.items()}, wanted)()
    error, most = _difference(found, exact), ROUTING
    if not error <= most:
        rounded = {name: one.detach().clone() for name, one in first.items()}
        most = max(most, ROUTING_TIMES * _difference(by_torch(workload, rounded, wanted)(), exact))
    if not error <= most:
        raise WrongResult(f"wrong result: relative error {error:.1e}, at most {most:.1e}")
    return error


def _difference(found, exact):
    """The largest difference of results, each over its largest element."""
    return max(
        float((one.detach().double() - other.detach()).abs().max() / other.detach().abs().max())
        for one, other in zip(found, exact, strict=True)
    )
