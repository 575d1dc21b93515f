"""Algorithms 3 and 4: the convolution from the stages, one after another.

Everything the paper lays out is laid out: I_flat, I', K' and O' lie in device memory. The work is
cut into slabs (images, then output rows) that fit the workspace; with our own
multiplication the results do not depend on the cut, to the bit. ``matmul`` is what multiplies.
"""

from math import prod

from numbacaps.stages import (
    batched_matmul,
    capsule_col2im,
    capsule_im2col,
    input_extend,
    input_reduce,
    kernel_extend,
    kernel_reduce,
    kernel_reduce_lanes,
    multiply,
    multiply_for_input_gradient,
    multiply_for_kernel_gradient,
    output_extend,
    output_reduce,
    slabs,
)


def forward_workspace(slab):
    """Name and shape of every intermediate of Algorithm 3."""
    return votes_workspace(slab) | {"products": slab.products_shape}


def votes_workspace(slab):
    """Name and shape of every intermediate of Algorithm 3, steps 1 to 4."""
    return {
        "columns": slab.columns_shape,
        "extended_input": slab.extended_input_shape,
        "extended_kernel": slab.extended_kernel_shape,
    }


def backward_workspace(slab, needs):
    """Name and shape of every intermediate of Algorithm 4 for ``needs``, of "input", "kernel"."""
    shapes = {
        "columns": slab.columns_shape,
        "extended_input": slab.extended_input_shape,
        "extended_dy": slab.products_shape,
    }
    if "kernel" in needs:
        shapes |= {"kernel_products": slab.kernel_products_shape, "lanes": slab.lanes_shape}
    if "input" in needs:
        shapes |= {"extended_kernel": slab.extended_kernel_shape}
    return shapes


def elements(shapes):
    """Elements of a workspace."""
    return sum(map(prod, shapes.values()))


def _slabs(geometry, shapes_of, dtype, workspace):
    """The slabs that fit the workspace, each with its arrays."""
    limit = workspace.limit
    try:
        cut = slabs(geometry, lambda slab: elements(shapes_of(slab)), limit // dtype.itemsize)
    except MemoryError as short:
        raise MemoryError(
            f"a pipeline of stages needs a workspace of {short.args[1] * dtype.itemsize} bytes for "
            f"one output row of one image; workspace_limit is {limit}"
        ) from None
    for slab in cut:
        yield slab, workspace.arrays(shapes_of(slab), dtype)


def forward(geometry, x, w, out, *, stream, workspace, matmul=batched_matmul):
    """Algorithm 3."""
    rows = None
    for slab, work in _slabs(geometry, forward_workspace, x.dtype, workspace):
        _lay_out(slab, x, w, work, rows, stream)
        rows = slab.rows
        operands = work["extended_input"], work["extended_kernel"], work["products"]
        multiply(slab, *operands, matmul=matmul, stream=stream)
        output_reduce(slab, work["products"], out, stream=stream)


def votes(geometry, x, w, out, *, stream, workspace, matmul=batched_matmul):
    """Algorithm 3, steps 1 to 4: every product, none summed."""
    rows = None
    for slab, work in _slabs(geometry, votes_workspace, x.dtype, workspace):
        _lay_out(slab, x, w, work, rows, stream)
        rows = slab.rows
        operands = work["extended_input"], work["extended_kernel"], out
        multiply(slab, *operands, matmul=matmul, stream=stream)


def _lay_out(slab, x, w, work, rows, stream):
    """Steps 1 to 3. K' is the same for every slab of as many rows, so it is made once for them."""
    capsule_im2col(slab, x, work["columns"], stream=stream)
    input_extend(slab, work["columns"], work["extended_input"], stream=stream)
    if slab.rows != rows:
        kernel_extend(slab, w, work["extended_kernel"], stream=stream)


def backward(geometry, x, w, dy, dx, dw, *, stream, workspace, matmul=batched_matmul):
    """Algorithm 4; ``dx`` or ``dw`` is None where that gradient is not wanted."""
    needs = [name for name, array in (("input", dx), ("kernel", dw)) if array is not None]

    def shapes_of(slab):
        return backward_workspace(slab, needs)

    rows, lanes = None, None
    for slab, work in _slabs(geometry, shapes_of, dy.dtype, workspace):
        columns, extended_input = work["columns"], work["extended_input"]
        extended_dy = work["extended_dy"]
        output_extend(slab, dy, extended_dy, stream=stream)
        if dw is not None:
            lanes = work["lanes"]
            capsule_im2col(slab, x, columns, stream=stream)
            input_extend(slab, columns, extended_input, stream=stream)
            operands = extended_input, extended_dy, work["kernel_products"]
            multiply_for_kernel_gradient(slab, *operands, matmul=matmul, stream=stream)
            kernel_reduce(slab, work["kernel_products"], lanes, stream=stream)
        if dx is not None:
            # I_flat and I' have served: their places hold their gradients.
            if slab.rows != rows:
                kernel_extend(slab, w, work["extended_kernel"], stream=stream)
            rows = slab.rows
            operands = extended_dy, work["extended_kernel"], extended_input
            multiply_for_input_gradient(slab, *operands, matmul=matmul, stream=stream)
            input_reduce(slab, extended_input, columns, stream=stream)
            capsule_col2im(slab, columns, dx, stream=stream)
    if dw is not None:
        kernel_reduce_lanes(geometry, lanes, dw, stream=stream)
