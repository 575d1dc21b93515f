"""A network as one .npz file: written whole or not at all, and refused whole or not at all."""

import json
from math import prod

import numpy as np
from numpy.lib.npyio import NpzFile

from numbacaps.files import written_whole
from numbacaps.product import spelled_alike

RUNS = ("weights", "first", "second")  # what a file holds of every layer
MOST_STEPS = 2**62  # int64 holds more, to count on
_HEADER = 1 << 16  # most bytes of an array's description in a file
_DESCRIPTION = 1 << 20  # most bytes of a network's; a layer takes 1 or 2 thousand


def write(path, description, steps, runs):
    """Write a file under a temporary name of its own beside it, and rename it.

    Parameters
    ----------
    path : path
        A symbolic link is followed, and a file that is there hands its mode on.
    description : dict
        Of the network, fit for JSON.
    steps : int
    runs : dict of str to list of ndarray
        Of each of :data:`RUNS`, an array a layer.

    Raises
    ------
    ValueError
        A number is not finite: what comes after could not be undone.
    OSError
        The file cannot be written, or ``path`` is there and is no regular file; what was there is as it was.
    """
    arrays = {"description": np.array(json.dumps(description)), "steps": np.array(steps)}
    for name in RUNS:
        for number, array in enumerate(runs[name]):
            if not np.isfinite(array).all():
                raise ValueError(
                    f"{name} of layers[{number}] are not all finite after {steps} steps; {path} "
                    "was left as it was"
                )
            arrays[f"{name}_{number}"] = array
    with written_whole(path) as file:
        np.savez(file, **arrays)


def read(path, description, shapes, dtype):
    """Read a file that :func:`write` wrote of a network of this description.

    Only what such a file holds is read, and of that no more than the network's arrays take.

    Parameters
    ----------
    path : path
    description : dict
    shapes : list of tuple
        Of every layer's kernel.
    dtype : numpy.dtype

    Returns
    -------
    steps : int
    runs : dict of str to list of ndarray

    Raises
    ------
    ValueError
        The file is damaged, or holds another network; the message names it and what differs.
    OSError
        It cannot be opened.
    """
    kept = "the network keeps its weights"
    with open(path, "rb") as file:
        try:
            with NpzFile(file, allow_pickle=False) as content:
                found = json.loads(str(_member(content, "description", _DESCRIPTION)))
                difference = _difference(found, description)
                if not difference:
                    steps = _member(content, "steps", 8)
                    runs = {
                        name: [
                            _member(content, f"{name}_{number}", prod(shape) * dtype.itemsize)
                            for number, shape in enumerate(shapes)
                        ]
                        for name in RUNS
                    }
        except Exception as damage:  # whatever zip, NumPy or JSON make of damaged bytes
            raise ValueError(
                f"{path} is damaged, or no file of a network ({damage!r}); {kept}"
            ) from None
    if difference:
        raise ValueError(f"{path} holds another network: {difference}; {kept}")
    if wrong := _wrong_steps(steps) or _wrong_runs(runs, shapes, dtype):
        raise ValueError(f"{path} is damaged: {wrong}; {kept}")
    return int(steps), runs


def _member(content, name, most):
    """An array of a file, of at most so many bytes."""
    size = content.zip.getinfo(f"{name}.npy").file_size
    if size > most + _HEADER:
        raise ValueError(f"{name} has {size} bytes; it takes {most + _HEADER} at most")
    found = content[name]
    if not isinstance(found, np.ndarray):  # a member that is no .npy is its bytes
        raise ValueError(f"{name} is no array")
    return found


def _wrong_steps(steps):
    """What is wrong with a number of steps, in words; None if nothing is."""
    if steps.shape != () or steps.dtype.kind not in "iu" or not 0 <= int(steps) <= MOST_STEPS:
        return f"it counts {steps} steps ({steps.dtype}); it takes an int of 0 to {MOST_STEPS}"
    return None


def _wrong_runs(runs, shapes, dtype):
    """What is wrong with weights and moments, in words; None if nothing is."""
    for name in RUNS:
        for number, (array, shape) in enumerate(zip(runs[name], shapes)):
            which = f"{name} of layers[{number}]"
            if array.shape != shape or array.dtype != dtype:
                found = f"shape {array.shape} and dtype {array.dtype}"
                return f"{which} have {found}, not {shape} and {dtype}"
            if not np.isfinite(array).all():
                return f"{which} are not all finite"
            if name == "second" and (array < 0).any():
                return f"{which} are not all 0 or more"
    return None


def _difference(found, wanted, where="network"):
    """The first thing in which two descriptions differ, in words; None if they are alike."""
    if isinstance(wanted, dict) and isinstance(found, dict) and wanted.keys() == found.keys():
        pairs = [(f"{where}.{key}", found[key], wanted[key]) for key in wanted]
    elif where.endswith(".layers") and isinstance(found, list) and len(found) == len(wanted):
        pairs = [(f"layers[{i}]", *both) for i, both in enumerate(zip(found, wanted))]
    else:
        same = found == wanted or (
            where.endswith(".product") and spelled_alike(found) == spelled_alike(wanted)
        )
        return None if same else f"{where} is {found} there and {wanted} here"
    found_differences = (_difference(theirs, ours, name) for name, theirs, ours in pairs)
    return next(filter(None, found_differences), None)
