"""Every kernel of the toolkit, built for a geometry: what the ptx tier compiles."""

import importlib
import pkgutil
import re
from dataclasses import dataclass

import numpy as np
from numba import from_dtype
from numba.core import types

import numbacaps
from numbacaps.algorithms import indexed, naive
from numbacaps.device.bfloat16 import stored
from numbacaps.device.dtypes import sum_dtype
from numbacaps.device.instructions import CHUNK
from numbacaps.device.tensor_map import MAP_WORDS
from numbacaps.fused import implicit_gemm
from numbacaps.fused.activation import Activation
from numbacaps.fused.anew import SUMS
from numbacaps.fused.clear import make_clear
from numbacaps.fused.col2im import make_col2im, make_col2im_and_look
from numbacaps.fused.epilogue import fit
from numbacaps.fused.im2col import WORDS, make_im2col
from numbacaps.fused.mma_sync import add_splits as warp_sums
from numbacaps.fused.mma_sync.again import make_sum_again, make_sum_pixels_again
from numbacaps.fused.mma_sync.kernel import Spec, make_mma_sync
from numbacaps.fused.mma_sync.pack import make_pack_matrix
from numbacaps.fused.mma_sync.split_k import SplitKSpec, make_mma_sync_split_k
from numbacaps.fused.pack import NUMBERS, Packing, make_pack
from numbacaps.fused.pack_pixels import make_pack_pixels
from numbacaps.fused.rung_1_direct import make_direct
from numbacaps.fused.rung_2_shared_tiles import make_shared_tiles
from numbacaps.fused.rung_3_register_tiles import kernel as register_tiles
from numbacaps.fused.rung_3_register_tiles import split_k
from numbacaps.fused.rung_3_register_tiles import tile as tiles
from numbacaps.fused.rung_3_register_tiles.kernel import make_register_tiles
from numbacaps.fused.rung_3_register_tiles.split_k import make_add_splits, make_reduction
from numbacaps.fused.rung_4_wgmma import tile as warpgroup_tiles
from numbacaps.fused.rung_4_wgmma.kernel import make_wgmma
from numbacaps.fused.rung_4_wgmma.split_k import make_mma_reduction
from numbacaps.fused.rung_5_warp_specialized import split_k_tile as bulk_reduction_tiles
from numbacaps.fused.rung_5_warp_specialized import tile as bulk_tiles
from numbacaps.fused.rung_5_warp_specialized.add_tiles import make_add_tiles
from numbacaps.fused.rung_5_warp_specialized.flat import make_flat_wgmma
from numbacaps.fused.rung_5_warp_specialized.kernel import make_bulk_wgmma
from numbacaps.fused.rung_5_warp_specialized.spec import KernelSpec
from numbacaps.fused.rung_5_warp_specialized.split_k import make_bulk_reduction
from numbacaps.fused.rung_5_warp_specialized.split_k_spec import ReductionSpec
from numbacaps.fused.rung_6_swap_ab import tile as swapped_tiles
from numbacaps.fused.rung_6_swap_ab.flat import make_flat_swapped
from numbacaps.fused.rung_6_swap_ab.kernel import make_swapped_wgmma
from numbacaps.fused.rung_6_swap_ab.spec import SwapSpec
from numbacaps.stages.capsule_col2im import make_capsule_col2im
from numbacaps.stages.capsule_im2col import make_capsule_im2col
from numbacaps.stages.input_extend import make_input_extend
from numbacaps.stages.input_reduce import make_input_reduce
from numbacaps.stages.kernel_extend import make_kernel_extend
from numbacaps.stages.kernel_reduce import make_kernel_reduce
from numbacaps.stages.output_extend import make_output_extend
from numbacaps.stages.output_reduce import make_output_reduce
from numbacaps.stages.slab import lanes_of
from numbacaps.stages.stationary_batched_matmul import make_stationary_batched_matmul
from numbacaps.stages.strided_batched_matmul import choose_tile, make_strided_batched_matmul
from numbacaps.votes.backward_input import make_votes_backward_input
from numbacaps.votes.backward_kernel import make_votes_backward_kernel
from numbacaps.votes.forward import make_votes
from tests.support.ptx import ptx


@dataclass(frozen=True)
class Kernel:
    """A kernel and what it takes: a tuple of words, flat arrays, tables of offsets, 64-bit integers."""

    kernel: object
    arrays: int
    integers: int
    factory: object
    tables: int = 0
    words: int = 0


def matmul(dtype, M, N, K, transpose_a=False, transpose_b=False, b_shared=True):
    """The tiled kernel for (M x K) @ (K x N)."""
    a_strides = (1, M) if transpose_a else (K, 1)
    b_strides = (1, K) if transpose_b else (N, 1)
    tile = choose_tile(M, N, K, dtype.itemsize)
    kernel = make_strided_batched_matmul(M, N, K, a_strides, b_strides, b_shared, tile, dtype)
    return Kernel(kernel, 3, 10, make_strided_batched_matmul)


def stationary_matmul(dtype, M, N, K, transpose_b=False):
    """The kernel for (M x K) @ (K x N) whose B stays in registers."""
    b_strides = (1, K) if transpose_b else (N, 1)
    kernel = make_stationary_batched_matmul(M, N, K, b_strides, 16, dtype)
    return Kernel(kernel, 3, 9, make_stationary_batched_matmul)


def kernels(g, dtype):
    """Kernels by name for a geometry and a dtype (the gather apart: it takes a strided array)."""
    dtype = np.dtype(dtype)
    window = (g.KH, g.KW, g.E1, g.stride, g.padding, g.dilation, dtype)
    add_slab, add_lanes = make_kernel_reduce(g.P, g.L, g.Q * g.E2, lanes_of(g), dtype)
    found = {
        "capsule_im2col": Kernel(
            make_capsule_im2col(g.C, g.H, g.W, g.OW, *window), 2, 4, make_capsule_im2col
        ),
        "input_extend": Kernel(make_input_extend(g.P), 2, 2, make_input_extend),
        "kernel_extend": Kernel(make_kernel_extend(g.Q * g.E2), 2, 2, make_kernel_extend),
        "matmul": matmul(dtype, g.D1, g.D3, g.D2),
        "matmul with shared B": stationary_matmul(dtype, min(g.D1, 4), min(g.D3, 32), 16),
        "output_reduce": Kernel(
            make_output_reduce(g.P, g.L, g.Q, g.E3, dtype), 2, 4, make_output_reduce
        ),
        "output_extend": Kernel(
            make_output_extend(g.P, g.L, g.Q, g.E3, 8), 2, 4, make_output_extend
        ),
        "matmul for dK": matmul(dtype, g.D2, g.D3, g.D1, transpose_a=True, b_shared=False),
        "kernel_reduce slab": Kernel(add_slab, 2, 4, make_kernel_reduce),
        "kernel_reduce lanes": Kernel(add_lanes, 2, 0, make_kernel_reduce),
        "matmul for dI": matmul(dtype, g.D1, g.D2, g.D3, transpose_b=True),
        "input_reduce": Kernel(make_input_reduce(g.P, dtype), 2, 2, make_input_reduce),
        "capsule_col2im": Kernel(
            make_capsule_col2im(g.C, g.H, g.W, g.OW, *window), 2, 4, make_capsule_col2im
        ),
        "naive fill": Kernel(naive.make_fill(dtype), 1, 0, naive.make_fill),
    }
    found |= fused_kernels(g, dtype) | votes_kernels(g, dtype)
    for module in (indexed, naive):
        for name in ("forward", "backward_input", "backward_kernel"):
            factory = getattr(module, f"make_{name}")
            kernel = Kernel(factory(g, dtype), 3, 1, factory)
            found[f"{module.__name__.split('.')[-1]} {name}"] = kernel
    return found


def votes_kernels(g, dtype):
    """The votes and their gradients, of every tap and summed over the window."""
    makers = make_votes, make_votes_backward_input, make_votes_backward_kernel
    return {
        f"{make.__name__.removeprefix('make_')}{' summed' * summed}": Kernel(
            make(g, dtype, summed), 3, 1, make
        )
        for make in makers
        for summed in (False, True)
    }


def epilogue(product, group, tile, lanes, backward=False):
    """LeakyReLU and squash of some elements behind a product, or their gradient; none for None."""
    activation = group and Activation(0.1, group, backward=backward)
    found, why = fit(activation, product, tile.BN, lanes)
    assert (found.differentiates if backward else found.activates) or not group, why
    return found


def fused_kernels(g, dtype):
    """The fused kernels of ordinary arithmetic, of the forward pass unless the name says otherwise."""
    product = implicit_gemm.forward(g)
    M = product.M(g.N)
    which = (product.pixels, product.inside, product.N, product.K)
    tile, _ = tiles.choose_tile(M * g.G, product.N, product.K, dtype.itemsize)
    across, _ = tiles.choose_tile(product.K * g.G, product.N, M, dtype.itemsize)
    reduction = make_reduction(product.inside, across, dtype, sum_dtype(dtype))
    square = tiles.Tile(16, 16, 16, 1, 1)
    found = {
        "direct": Kernel(make_direct(*which, dtype), 3, 1, make_direct, 1),
        "shared_tiles": Kernel(
            make_shared_tiles(*which, square, dtype), 3, 1, make_shared_tiles, 1
        ),
        "register_tiles": register_kernel(product, tile, dtype),
        "reduction": Kernel(reduction, 3, 0, make_reduction, 1, split_k.NUMBERS),
        "add_splits": Kernel(make_add_splits(8, dtype), 2, 2, make_add_splits),
    }
    product = implicit_gemm.backward_input(g)[0]
    tile, _ = tiles.choose_tile(product.M(g.N) * g.G, product.N, product.K, dtype.itemsize)
    found["register_tiles backward_input"] = register_kernel(product, tile, dtype)
    return found


def register_kernel(product, tile, dtype, group=None, backward=False):
    """The kernel of ordinary arithmetic, and an activation, or its gradient, behind it."""
    behind = epilogue(product, group, tile, tile.lanes, backward)
    kernel = make_register_tiles(product.inside, tile, dtype, behind)
    return Kernel(kernel, 4, 0, make_register_tiles, 1, register_tiles.NUMBERS)


def warpgroup_kernels(product, tile, dtype, group=None):
    """The tensor cores' kernels of a product: its packing, then the product and its activation."""
    window = warpgroup_tiles.Window.of(product)
    pack = packing(product, tile.BN, tile.CHUNKS, dtype)
    behind = epilogue(product, group, tile, warpgroup_tiles.LANES)
    kernel = make_wgmma(product.pixels, window, product.shape, tile, dtype, behind)
    return pack, Kernel(kernel, 4, 1, make_wgmma, 1)


def packing(product, BN, CHUNKS, dtype):
    """The packing of the kernel of a product."""
    p = product
    depth = p.channels, p.D, warpgroup_tiles.Window.of(p).taps
    packed = Packing(*depth, p.n, p.kernel_steps, 1, 1, BN, CHUNKS, 1, dtype.itemsize)
    kernel = make_pack(packed.form, dtype, False)
    return Kernel(kernel, 2, 0, make_pack, words=NUMBERS)


def bulk_kernel(
    product,
    tile,
    terms,
    group=None,
    dtype=np.dtype(np.float32),
    backward=False,
    whole=None,
    looks="",
):
    """The tensor cores' kernel that TMA feeds, and its activation or that one's gradient; ``looks`` as of its spec."""
    p = bulk_tiles.counted(product, dtype)
    behind = epilogue(p, group, tile, warpgroup_tiles.LANES, backward)
    kernel = make_bulk_wgmma(KernelSpec.of(p, 1, dtype, terms, tile, whole, behind, looks))
    arrays, tables = (4, 1) if looks else (3, 0)
    return Kernel(kernel, arrays, 5, make_bulk_wgmma, tables, MAP_WORDS)


def swapped_kernel(product, tile):
    """The tensor cores' kernel whose own array stays in registers."""
    kernel = make_swapped_wgmma(SwapSpec.of(product, tile))
    return Kernel(kernel, 3, 1, make_swapped_wgmma, 0, MAP_WORDS)


def flat_kernels(product, BN):
    """The flat first versions of rungs 5 and 6, for a product that both take."""
    p, window = product, warpgroup_tiles.Window.of(product)
    tile = swapped_tiles.SwappedTile(p.pixels.rows, 1, 1, 1)
    wgmma = make_flat_wgmma(p.pixels, window, p.channels, p.D, p.n, BN)
    swapped = make_flat_swapped(SwapSpec.of(p, tile))
    return (
        Kernel(wgmma, 2, 0, make_flat_wgmma, 0, MAP_WORDS),
        Kernel(swapped, 2, 0, make_flat_swapped, 0, MAP_WORDS),
    )


def bulk_gradient_kernel(product, tile, images, terms, dtype=np.dtype(np.float32)):
    """The tensor cores' kernel for the kernel's gradient that TMA feeds."""
    p, t = product, bulk_reduction_tiles
    strips = t.choose_strips(tile, p, images, 1, terms)[0]
    kernel = make_bulk_reduction(ReductionSpec.of(p, 1, dtype, terms, tile, strips))
    return Kernel(kernel, 1, 0, make_bulk_reduction, 1, 2 * MAP_WORDS)


def tile_sums_kernel(product, tile, splits, dtype, looks=""):
    """The kernel that adds its splits; and how many sums a split has. ``looks`` as of its factory."""
    p, window = product, warpgroup_tiles.Window.of(product)
    strips = bulk_reduction_tiles.Strips(1, 1, 1, splits, 1)
    kernel = make_add_tiles(ReductionSpec.of(p, 1, dtype, 1, tile, strips), looks)
    blocks = bulk_reduction_tiles.blocks_of_a_split(tile, p, 1)
    return kernel, blocks * tile.sums(window.taps[1])


def mma_kernel(product, runs, tile, dtype):
    """The tensor cores' kernel for the kernel's gradient."""
    kernel = make_mma_reduction(product.inside, runs, tile, dtype)
    return Kernel(kernel, 3, 0, make_mma_reduction, 1, split_k.NUMBERS)


def _of_dtypes(kernel, dtypes, integers, cc):
    """PTX of a kernel that takes flat arrays of some dtypes, then 64-bit integers."""
    kinds = [types.Array(from_dtype(stored(np.dtype(dtype))), 1, "C") for dtype in dtypes]
    return ptx(kernel, (*kinds, *[types.int64] * integers), cc=cc)


def warp_ptx(dtype, terms, a_run, b_run, along_k, paired, tile, cc):
    """The warps' kernel of the products that gather one operand."""
    spec = Spec(dtype, dtype, terms, a_run, b_run, along_k, paired, tile)
    return _of_dtypes(make_mma_sync(spec), (dtype, dtype, dtype, np.int32), 6, cc)


def warp_split_k_ptx(dtype, terms, a_run, c_run, paired, tile, cc):
    """The warps' kernel of the kernel's gradient."""
    spec = SplitKSpec(dtype, dtype, terms, a_run, c_run, paired, tile)
    return _of_dtypes(make_mma_sync_split_k(spec), (dtype, dtype, dtype, np.int32), 5, cc)


def _im2col(word, cc):
    kinds = WORDS[word], WORDS[word], np.int32
    return _of_dtypes(make_im2col(word), kinds, 17, cc)


# What runs before the warps' kernels and behind them: PTX for a dtype and a compute capability.
WARP_HELPERS = {
    "pack_pixels": lambda dtype, cc: _of_dtypes(make_pack_pixels(dtype), (dtype, dtype), 16, cc),
    "im2col": lambda dtype, cc: _im2col(dtype.itemsize, cc),
    "im2col of pairs": lambda dtype, cc: _im2col(2 * dtype.itemsize, cc),
    "pack_matrix": lambda dtype, cc: _of_dtypes(
        make_pack_matrix(dtype), (dtype, dtype, np.int32), 4, cc
    ),
    "add_splits": lambda dtype, cc: _of_dtypes(
        warp_sums.make_add_splits(dtype), (np.float32, dtype), 3, cc
    ),
    "col2im": lambda dtype, cc: _of_dtypes(
        make_col2im(dtype), (np.float32, dtype, np.int64), 2, cc
    ),
    "clear": lambda dtype, cc: _of_dtypes(
        make_clear(dtype, CHUNK // dtype.itemsize), (dtype,), 1, cc
    ),
}
# What adds up sums of three terms and looks through them: PTX for a compute capability.
_F4 = np.float32
ADD_AND_LOOK = {
    wanted: lambda cc, wanted=wanted: _of_dtypes(
        warp_sums.make_add_and_look(wanted), (_F4, _F4, _F4, _F4, np.int64), 3, cc
    )
    for wanted in SUMS
} | {
    "columns": lambda cc: _of_dtypes(
        make_col2im_and_look(), (_F4, _F4, np.int64, _F4, _F4, np.int64), 2, cc
    )
}
# Compiled in test_mma_sync_ptx.
WARPS = {make_mma_sync, make_mma_sync_split_k, make_pack_pixels, make_pack_matrix, make_im2col}
WARPS |= {warp_sums.make_add_splits, make_col2im, make_clear}
WARPS |= {warp_sums.make_add_and_look, make_col2im_and_look}
WARPS |= {make_sum_again, make_sum_pixels_again}  # inside of the first two


def factories():
    """Every kernel factory that the package holds, by qualified name; factories of device functions keep nothing."""
    found = {}
    for module in pkgutil.walk_packages(numbacaps.__path__, "numbacaps."):
        if module.name.startswith(("numbacaps.torch", "numbacaps.jax")):
            continue  # they take PyTorch and JAX, and have no kernels
        module = importlib.import_module(module.name)
        for name, value in vars(module).items():
            kernels_are_kept = name.startswith("make_") and hasattr(value, "cache_info")
            if kernels_are_kept and value.__module__ == module.__name__:
                found[f"{module.__name__}.{name}"] = value
    return found


_WAIT, _LET = "griddepcontrol.wait;", "griddepcontrol.launch_dependents;"


def lets_the_next_start_late(text, sums=r"mma\.sync"):
    """Whether a kernel lets the next one start behind its own wait, and behind its sums, on every way through it.

    Before that, the next one's blocks would crowd on few multiprocessors. ``sums`` is the pattern of what sums.
    """
    lines = text.splitlines()
    lets = [at for at, line in enumerate(lines) if _LET in line]
    if any(_LET in lines[at] for at in _reached(lines, 0, until=_WAIT)):
        return False
    return not any(re.search(sums, lines[at]) for let in lets for at in _reached(lines, let))


def _reached(lines, first, until=None):
    """Numbers of the lines of PTX that can be reached from one on, without passing a line that has ``until``."""
    labels = {line.strip().rstrip(":"): at for at, line in enumerate(lines) if line.endswith(":")}
    found, to_come = set(), [first]
    while to_come:
        at = to_come.pop()
        while at < len(lines) and at not in found:
            found.add(at)
            line = lines[at]
            if until and until in line:
                break
            if target := re.search(r"\bbra(?:\.uni)?\s+(\S+);", line):
                to_come.append(labels[target[1]])
            if re.match(r"\s*(bra|ret)\b", line):  # not under a condition
                break
            at += 1
    return found


def multiplied(text):
    """Registers whose values the warpgroup products take as their first operand."""
    bits = dict(re.findall(r"mov\.b32\s+(%r\d+), (%f\d+);", text))
    operands = re.findall(r"wgmma\.mma_async[^{]*{[^}]*}, {([^}]*)}", text)
    return {bits.get(register, register) for four in operands for register in four.split(", ")}


def loaded(text):
    """Registers of float32 that loads from shared memory write."""
    written = re.findall(r"ld\.shared\.\S+\s+([^\[]*)\[", text)
    return {register for to in written for register in re.findall(r"%f\d+", to)}
