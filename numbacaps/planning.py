"""The public functions :func:`plan` and :func:`explain`: check shapes and options, then make a :class:`numbacaps.plan.Plan`."""

from collections.abc import Iterable, Sequence

from numbacaps.algorithms.registry import ALGORITHMS, resolve
from numbacaps.arrays import Array
from numbacaps.device.bfloat16 import dtype_of
from numbacaps.device.target import check_target
from numbacaps.device.workspace import check_limit
from numbacaps.forms import DTYPE_NAMES, is_taken
from numbacaps.fused.choose import GATHERING
from numbacaps.fused.choose_input import RUNGS
from numbacaps.fused.choose_split_k import SPLIT_K
from numbacaps.geometry import Pair, is_int
from numbacaps.limits import check_limits
from numbacaps.messages import did_you_mean, shown
from numbacaps.plan import Plan
from numbacaps.product import parse_product
from numbacaps.shapes import geometry_of, output_shape

_RUNGS = {"forward": GATHERING, "backward_input": RUNGS, "backward_kernel": SPLIT_K}


def plan(
    x_shape: Sequence[int] | Array,
    w_shape: Sequence[int] | Array,
    dtype: object = None,
    *,
    stride: Pair = 1,
    padding: Pair = 0,
    dilation: Pair = 1,
    product: str = "ab,bc->ac",
    algorithm: str = "auto",
    precision: str = "auto",
    workspace_limit: int | None = None,
    rungs: dict[str, str | tuple] | None = None,
) -> Plan:
    """Choose and compile the kernels of a capsule convolution, to call them many times without the cost of choosing.

    Parameters
    ----------
    x_shape : tuple of int, or array
        (N, C, H, W, *T1), N at least 1; of an array its shape is taken.
    w_shape : tuple of int, or array
        (P, C, KH, KW, *T2)
    dtype : str or numpy.dtype, optional
        float32 or float64; or float16 or bfloat16, which are added in float32. By default that of ``x_shape``, if it
        is an array, else float32.
    stride, padding, dilation, product, algorithm, precision, workspace_limit
        As :func:`numbacaps.capsule_conv2d`; ``product`` names each capsule's axes in the order in which
        the kernels read them, as ``"ab,bc->ac"`` and ``"gab,gbc->gac"`` do.
    rungs : dict, optional
        Kernels of ``"fused"`` to take whatever they cost, for timing one against another: for "forward",
        "backward_input" or "backward_kernel" the rung and tile that :meth:`Plan.explain` prints, as ``"wgmma"`` or
        ``("wgmma", (1, 2, 2, 64, 2, 3))``.

    Returns
    -------
    Plan

    Raises
    ------
    TypeError, ValueError, ImportError, RuntimeError
        As :func:`numbacaps.capsule_conv2d`; ValueError also for a product in another order, or a rung or tile that
        cannot compute the convolution.
    """
    if dtype is None:
        dtype = getattr(x_shape, "dtype", "float32")
    x_shape, w_shape, dtype = _shape("x_shape", x_shape), _shape("w_shape", w_shape), _dtype(dtype)
    product = parse_product(product)
    geometry = geometry_of(x_shape, w_shape, product, stride, padding, dilation)
    check_can_be_planned(geometry, product)
    workspace_limit = check_limit(workspace_limit)
    rungs = _check_rungs(rungs)
    name = resolve(algorithm)
    if not ALGORITHMS[name].on_host:
        check_target()
    check_limits(geometry, name, ("forward", "input", "kernel"))
    shapes = (x_shape, w_shape, output_shape(geometry, product, x_shape, w_shape))
    made = Plan(geometry, dtype, algorithm, precision, workspace_limit, shapes=shapes, rungs=rungs)
    made.make_ready()
    return made


def check_can_be_planned(geometry, product):
    """Refuse no images, and a product in another order than the kernels'."""
    if geometry.N == 0:
        raise ValueError("x_shape has N = 0; a plan takes 1 or more")
    orders = (product.x_order, product.w_order, product.y_order)
    if any(order != tuple(range(len(order))) for order in orders):
        raise ValueError(
            f"product is {product.spec!r}; a plan takes axes in the order in which kernels read them: "
            f"{product.g}{product.d1}{product.d2},{product.g}{product.d2}{product.d3}"
            f"->{product.g}{product.d1}{product.d3}"
        )


def _dtype(dtype):
    """A ``numpy.dtype`` that there is an algorithm for, from its name, PyTorch's too."""
    is_of_torch = type(dtype).__module__.partition(".")[0] == "torch"
    try:
        found = dtype_of(str(dtype).removeprefix("torch.") if is_of_torch else dtype)
    except (TypeError, ValueError):
        raise TypeError(f"dtype is {shown(dtype)}; it takes {DTYPE_NAMES}") from None
    if not is_taken(found):
        raise TypeError(f"dtype is {found}; it takes {DTYPE_NAMES}")
    return found


def _check_rungs(rungs):
    """``rungs`` as a tuple of (pass, rung, tile or None)."""
    if rungs is None:
        return ()
    if not isinstance(rungs, dict):
        raise TypeError(f"rungs is {shown(rungs)}; it takes a dict such as {{'forward': 'wgmma'}}")
    found = []
    for wanted, which in rungs.items():
        if wanted not in _RUNGS:
            raise ValueError(f"rungs names {shown(wanted)}; it takes {list(_RUNGS)}")
        rung, tile = (
            which if isinstance(which, (tuple, list)) and len(which) == 2 else (which, None)
        )
        if not isinstance(rung, str) or rung not in _RUNGS[wanted]:
            names = list(_RUNGS[wanted])
            raise ValueError(
                f"rungs[{wanted!r}] is {shown(rung)}; it takes one of {names}"
                + did_you_mean(rung, names)
            )
        if tile is not None and not _are_ints(tile):
            raise TypeError(f"rungs[{wanted!r}] has tile {shown(tile)}; it takes a tuple of int")
        found.append((wanted, rung, None if tile is None else tuple(tile)))
    return tuple(found)


def _are_ints(tile):
    return isinstance(tile, (tuple, list)) and all(isinstance(size, int) for size in tile)


def explain(
    x_shape: Sequence[int] | Array, w_shape: Sequence[int] | Array, dtype: object = None, **options
) -> str:
    """Which kernels, with which tiles, would compute a capsule convolution, and why.

    Parameters
    ----------
    x_shape, w_shape, dtype, options
        As :func:`plan`; arrays are taken for their shapes.

    Returns
    -------
    str
        For each kernel: what runs, how, why, and what forces it; then how long making them ready took.
    """
    return plan(x_shape, w_shape, dtype, **options).explain()


def _shape(name, shape):
    """A shape, or an array's, as a tuple of int."""
    given = getattr(shape, "shape", shape)
    sizes = tuple(given) if isinstance(given, Iterable) else (None,)
    if not all(is_int(size) and size >= 0 for size in sizes):
        raise TypeError(f"{name} is {shown(shape)}; it takes a tuple of sizes")
    return tuple(map(int, sizes))
