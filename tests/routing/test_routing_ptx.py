"""Every kernel of routing through the real compiler, with no GPU: types, memory, instructions."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from numba import from_dtype, types
from numba.cuda import dispatcher

from numbacaps import Geometry, routing
from numbacaps.device.kernel_cache import _form
from numbacaps.routing.pack import make_clear
from numbacaps.routing.place import make_place
from tests.support.ptx import ptx
from tests.support.routing_kernels import (
    CASES,
    FORMS,
    LAYERS,
    OF_CLUSTERS,
    OF_SUMS,
    launched,
    launched_on_tensor_cores,
)

pytestmark = pytest.mark.tiers("ptx")
_SHARED_LIMIT = 48 * 1024


@pytest.fixture(autouse=True)
def gpu(monkeypatch):
    """For device functions that LLVM inlines: Numba compiles them for the GPU that there is."""
    found = SimpleNamespace(compute_capability=(9, 0))
    monkeypatch.setattr(dispatcher, "get_current_device", lambda: found)


def _check(kernels, dtype, cc):
    """Check each kernel's PTX; name to PTX."""
    texts = {}
    for name, (kernel, signature) in kernels.items():
        text = ptx(kernel, signature, cc=cc)
        local = sum(int(size) for size in re.findall(r"__local_depot\d+\[(\d+)\]", text))
        assert local == 0, f"{name}: arrays were spilled to local memory"
        assert not re.search(r"\b(atom|red)\.", text), f"{name}: a sum has no fixed order"
        if dtype != "float64":
            assert not re.search(r"\.f64\b", text), f"{name}: float64 crept in"
        shared = sum(int(size) for size in re.findall(r"\.shared .*\[(\d+)\]", text))
        assert shared <= _SHARED_LIMIT, name
        texts[name] = text
    return texts


# Compute capability 9.0 gets every layer, 8.0 one: a layer's kernels take 10 to 40 seconds.
_LAYERS_OF = {
    f"{layer}-{form}-cc{number}": (layer, form, cc)
    for number, cc in enumerate([(9, 0), (8, 0)])
    for layer, form in CASES
    if number == 0 or layer == "digitcaps"
}


@pytest.mark.slow(but=["em-conv1-em over all-cc0", "segcaps-dynamic of sums-cc0"])
@pytest.mark.parametrize("layer, form, cc", _LAYERS_OF.values(), ids=_LAYERS_OF)
def test_published_layers(layer, form, cc, monkeypatch):
    _check(launched(layer, form, "float32", monkeypatch), "float32", cc)


@pytest.mark.parametrize("form", ["dynamic", "em"])
@pytest.mark.parametrize("on", ["ordinary arithmetic", "tensor cores"])
def test_kernels_of_other_sizes_have_the_same_forms(on, form, monkeypatch):
    """So who sweeps capsules waits for Numba once: sizes and teams are numbers behind it."""
    of_sizes = []
    for P, D2, D3 in ((5, 2, 3), (16, 3, 5), (32, 4, 8)):
        monkeypatch.setitem(LAYERS, "sized", Geometry(8, 16, P, 9, 9, 3, 3, 1, 2, D2, D3))
        if on == "tensor cores":
            kernels = launched_on_tensor_cores("sized", form, monkeypatch)
        else:
            kernels = launched("sized", form, "float32", monkeypatch)
        found = {}
        for kernel, _ in kernels.values():
            form_of, _ = _form(kernel.py_func, kernel.targetoptions.get("launch_bounds") or ())
            found.setdefault(kernel.py_func.__name__, set()).add(form_of)
        of_sizes.append(found)
    first, *others = of_sizes
    assert first
    for found in others:  # which may have more kernels, or fewer
        for name in found.keys() & first.keys():
            assert found[name] <= first[name] or first[name] <= found[name], name


@pytest.mark.parametrize("form", ["dynamic", "em"])
def test_long_capsules(form, monkeypatch):
    """What a block shares of them between two passes does not grow with them."""
    monkeypatch.setitem(LAYERS, "long", Geometry(2, 3, 2, 1, 1, 1, 1, 1, 1, 3, 20_000))
    kernels = launched("long", form, "float64", monkeypatch)
    ends = {name: one for name, one in kernels.items() if re.search("finish|begin", name)}
    assert len(ends) == 3
    _check(ends, "float64", (9, 0))


@pytest.mark.slow
@pytest.mark.parametrize(
    "layer, form, dtype",
    [
        ("em-class", "dynamic", "float16"),
        ("em-class", "em", "float64"),
        ("deepcaps", "dynamic of sums", "float16"),
        ("deepcaps", "dynamic of sums", "float64"),
    ],
)
def test_dtypes(layer, form, dtype, monkeypatch):
    _check(launched(layer, form, dtype, monkeypatch), dtype, (9, 0))


@pytest.mark.slow
@pytest.mark.parametrize(
    "layer, form",
    [
        *[("em-conv1", form) for form in ("dynamic", "em", "em over all")],
        *[(layer, "dynamic of sums") for layer in OF_SUMS],
    ],
)
def test_stored_votes(layer, form, monkeypatch):
    kernels = launched(layer, form, "float32", monkeypatch, is_stored=True)
    _check(kernels, "float32", (9, 0))


@pytest.mark.parametrize("axes", [1, 5])
@pytest.mark.parametrize("of_part, of_whole", [("float32", "float32"), ("float32", "float16")])
def test_what_a_band_has_made_is_placed(of_part, of_whole, axes):
    """And added to what is there in float32."""
    arrays = (types.Array(from_dtype(np.dtype(one)), 1, "C") for one in (of_part, of_whole))
    sizes = types.UniTuple(types.int64, axes)
    signature = *arrays, types.int64, sizes, sizes, types.int64
    kernel = make_place(np.dtype(of_part), np.dtype(of_whole))
    text = _check({"place": (kernel, signature)}, of_whole, (9, 0))["place"]
    assert "add.rn.f32" in text or "add.f32" in text


@pytest.mark.parametrize("nbytes", [2, 4, 8])
def test_rows_of_padding_are_cleared(nbytes):
    """As words, whatever they are numbers of."""
    word = np.dtype(f"u{nbytes}")
    signature = types.Array(from_dtype(word), 1, "C"), types.int64
    text = _check({"clear": (make_clear(word), signature)}, "float32", (9, 0))["clear"]
    assert f"st.global.u{8 * nbytes}" in text or f"st.global.b{8 * nbytes}" in text


def test_the_gradient_of_stored_votes(monkeypatch):
    """The kernels that the quick cases of votes that are not stored leave out."""
    kernels = launched("em-conv1", "dynamic", "float32", monkeypatch, is_stored=True)
    names = "routing_votes_gradient_kernel", "routing_whole_gradient_kernel"
    found = {key: one for key, one in kernels.items() if key.split()[0] in names}
    assert len(found) == 2  # with logits, and without
    _check(found, "float32", (9, 0))


@pytest.mark.parametrize("form", ["dynamic", "dynamic over children"])
@pytest.mark.parametrize("is_stored", [False, True])
def test_clusters(is_stored, form, monkeypatch):
    """A block hands what it has gathered to others, and no barrier stands in two branches."""
    kernels = launched(OF_CLUSTERS, form, "float32", monkeypatch, is_stored)
    names = "routing_votes_kernel", "routing_cluster_kernel"
    found = {key: one for key, one in kernels.items() if key.split()[0] in names}
    assert len(found) == (
        3 if is_stored else 4
    )  # with logits and states, without states, without both
    for name, text in _check(found, "float32", (9, 0)).items():
        if "cluster" in name:
            assert text.count("barrier.cluster.arrive") == text.count("barrier.cluster.wait") == 2
            assert "mapa.shared::cluster" in text and "shared::cluster.shared::cta" in text
            assert text.count("griddepcontrol.wait") == 1


def test_a_cluster_that_takes_nearly_all_shared_memory(monkeypatch):
    """Its arrays are counted with what lies between them, and its barriers."""
    monkeypatch.setitem(LAYERS, "many parents", Geometry(1, 512, 96, 1, 1, 1, 1, 1, 1, 3, 3))
    kernels = launched("many parents", "dynamic over children", "float32", monkeypatch)
    found = {key: one for key, one in kernels.items() if key.startswith("routing_cluster_kernel")}
    assert len(found) == 3
    _check(found, "float32", (9, 0))


# Compute capability 9.0 gets every layer in three terms, and one in one term; 8.0 gets one layer.
_ON_TENSOR_CORES = {
    f"{layer}-{form}-{precision}-cc{number}": (layer, form, precision, cc)
    for number, cc in enumerate([(9, 0), (8, 0)])
    for layer, form, precision in [
        *[("digitcaps", form, "tf32x3") for form in ("dynamic", "em")],
        *[("em-conv1", form, "tf32x3") for form in ("dynamic", "em")],
        ("em-class", "em", "tf32x3"),
        ("em-class", "em detached", "tf32x3"),
        *[("em-conv1", form, "tf32") for form in ("dynamic", "em")],
    ]
    if number == 0 or layer == "digitcaps"
}


@pytest.mark.slow(but=["em-conv1-dynamic-tf32-cc0", "em-conv1-em-tf32-cc0"])
@pytest.mark.parametrize(
    "layer, form, precision, cc", _ON_TENSOR_CORES.values(), ids=_ON_TENSOR_CORES
)
def test_tensor_cores(layer, form, precision, cc, monkeypatch):
    """Votes are products of warps, and stay in registers."""
    kernels = launched_on_tensor_cores(layer, form, monkeypatch, precision)
    texts = _check(kernels, "float32", cc)
    of_warps = "_pass_kernel", "_gradient_kernel"
    passes = {name: text for name, text in texts.items() if any(one in name for one in of_warps)}
    # Dynamic: four passes, and the owners. EM: two passes, and of the gradient the first iteration's and another's.
    of_gradient = (2 if form == "em" else 1) * (precision == "tf32x3")
    assert len(passes) == (5 if form == "dynamic" else 2 + of_gradient)
    for name, text in passes.items():
        assert "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32" in text
        assert "cp.async.cg.shared.global" in text
        early = "griddepcontrol.wait" in text, "griddepcontrol.launch_dependents" in text
        assert early == (cc >= (9, 0) and "em_gradient" not in name,) * 2


def test_every_kernel_is_launched(monkeypatch):
    """By the cases above: a kernel that none of them launches would not be compiled here."""
    found = {
        name.split()[0]
        for form in FORMS
        for is_stored in (False, form == "em" or form == "dynamic")
        for name in launched("em-conv1", form, "float32", monkeypatch, is_stored)
    }
    found |= {name.split()[0] for name in launched(OF_CLUSTERS, "dynamic", "float32", monkeypatch)}
    for form in "dynamic", "em":
        of_warps = launched_on_tensor_cores("em-conv1", form, monkeypatch)
        found |= {name.split()[0] for name in of_warps}
    found.add(
        "routing_place_kernel"
    )  # what bands have made is placed between them, and compiled above
    files = Path(routing.__file__).parent.rglob("*.py")
    kernels = {
        node.name
        for file in files
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name.endswith("_kernel")
    }
    assert found == kernels


_OF_OTHERS = """
from experiments.ahead import pretend

pretend((9, 0), 132)
import numpy as np
import numbacaps
from numbacaps.device.target import cuda


class Array:
    def __init__(self, *shape):
        self._held = cuda.device_array(shape, np.float32)
        self.__cuda_array_interface__ = self._held.__cuda_array_interface__ | {"stream": None}


x, w, y, a = Array(2, 2, 3, 3, 2, 2), Array(3, 2, 2, 2, 2, 2), Array(2, 3, 2, 2, 2, 2), Array(2, 2, 3, 3)
shared = Array(3, 1, 2, 2, 2, 2)
for w, how in (w, {}), (w, {"routing": "em", "activations": a}), (shared, {"votes": "sum"}):
    found = numbacaps.capsule_routing(x, w, out=y, **how)
    assert y is (found[0] if "activations" in how else found)
    numbacaps.capsule_routing_backward(x, w, y, **how)
"""


@pytest.mark.slow
def test_arrays_of_other_libraries_reach_the_kernels(tmp_path):
    """Of such an array no more is asked than its interface."""
    root = Path(__file__).parents[2]
    where = {"PYTHONPATH": str(root), "NUMBACAPS_TARGET": "cuda", "NUMBA_CACHE_DIR": str(tmp_path)}
    how = {"env": {**os.environ, **where}, "capture_output": True, "text": True}
    done = subprocess.run([sys.executable, "-c", _OF_OTHERS], **how)
    assert done.returncode == 0, done.stderr
