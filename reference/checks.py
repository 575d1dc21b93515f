"""What the reference refuses: wrong ranks and sizes that do not fit together.

These are no part of the paper. Every message starts with the name of the argument.
"""


def check_rank(name, array, axes):
    """Check the number of axes.

    Parameters
    ----------
    name : str
        Name of the argument, for the error.
    array : ndarray
    axes : str
        The names of the axes it must have, such as ``"N, C, H, W"``.

    Raises
    ------
    ValueError
        If `array` has another number of axes.
    """
    rank = len(axes.split(","))
    if array.ndim != rank:
        raise ValueError(f"{name}: must have the {rank} axes ({axes}), not shape {array.shape}")


def check_equal(name, what, found, wanted):
    """Check one size, or one shape, against what the other arguments ask for.

    Parameters
    ----------
    name : str
        Name of the argument, for the error.
    what : str
        What is compared.
    found, wanted : int or tuple of int

    Raises
    ------
    ValueError
        If they differ.
    """
    if found != wanted:
        raise ValueError(f"{name}: {what} is {found}, must be {wanted}")


def check_dtype(name, array, wanted):
    """Check that an array has the dtype of the input.

    Parameters
    ----------
    name : str
        Name of the argument, for the error.
    array : ndarray
    wanted : dtype

    Raises
    ------
    TypeError
        If it has another.
    """
    if array.dtype != wanted:
        raise TypeError(f"{name}: dtype is {array.dtype}, must be {wanted} as that of x")


def check_capsules(x, w):
    """Check that a kernel of capsules fits an input of capsules.

    Parameters
    ----------
    x : ndarray, (N, C, H, W, G, D1, D2)
    w : ndarray, (P, C, KH, KW, G, D2, D3)

    Raises
    ------
    ValueError
        If a rank is not 7, or C, G or D2 differ.
    TypeError
        If the dtypes differ.
    """
    check_rank("x", x, "N, C, H, W, G, D1, D2")
    check_rank("w", w, "P, C, KH, KW, G, D2, D3")
    check_equal("w", "C (axis 1)", w.shape[1], x.shape[1])
    check_equal("w", "G (axis 4)", w.shape[4], x.shape[4])
    check_equal("w", "D2 (axis 5)", w.shape[5], x.shape[6])
    check_dtype("w", w, x.dtype)


def check_output_gradient(x, w, dy, positions):
    """Check that a gradient has the shape of the output.

    Parameters
    ----------
    x : ndarray, (N, C, H, W, G, D1, D2)
    w : ndarray, (P, C, KH, KW, G, D2, D3)
    dy : ndarray, (N, P, OH, OW, G, D1, D3)
    positions : (int, int)
        (OH, OW).

    Raises
    ------
    ValueError
        If it has another shape.
    TypeError
        If it has another dtype than `x`.
    """
    wanted = (x.shape[0], w.shape[0], *positions, x.shape[4], x.shape[5], w.shape[6])
    check_equal("dy", "shape", dy.shape, wanted)
    check_dtype("dy", dy, x.dtype)
