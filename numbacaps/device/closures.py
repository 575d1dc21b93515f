"""What a function is made of besides its code: what it takes from around it, through tuples and device functions."""

from inspect import isfunction


def around(function):
    """What a function takes from around it."""
    return [cell.cell_contents for cell in function.__closure__ or ()]


def parts(value):
    """A value as the parts that tell it from others, in order.

    Parameters
    ----------
    value
        A tuple has the parts of what it holds, a function itself and the parts of what it takes from around it, a device
        function its options and the parts of its function. All else is a part.

    Yields
    ------
    object
    """
    if isinstance(value, tuple):
        yield from (type(value), len(value))
        for one in value:
            yield from parts(one)
    elif hasattr(value, "py_func"):
        yield repr(value.targetoptions)
        yield from parts(value.py_func)
    elif isfunction(value):
        yield value
        yield from parts(tuple(around(value)))
    else:
        yield value
