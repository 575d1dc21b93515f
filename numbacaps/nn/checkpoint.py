"""A network as one .npz file: written whole or not at all, and refused whole or not at all."""

import json
import os
from pathlib import Path

import numpy as np

RUNS = ("weights", "first", "second")  # what a file holds of every layer


def write(path, description, steps, runs):
    """Write a file under a temporary name beside it, and rename it.

    Parameters
    ----------
    path : path
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
        The file cannot be written; one that was there is as it was.
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
    path = Path(path)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            np.savez(file, **arrays)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def read(path, description, shapes, dtype):
    """Read a file that :func:`write` wrote of a network of this description.

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
            with np.load(file, allow_pickle=False) as content:
                arrays = {name: content[name] for name in content.files}
            found = json.loads(str(arrays["description"]))
            steps = int(arrays["steps"])
            runs = {
                name: [arrays[f"{name}_{number}"] for number in range(len(found["layers"]))]
                for name in RUNS
            }
        except Exception as damage:  # whatever zip, NumPy or JSON make of damaged bytes
            raise ValueError(
                f"{path} is damaged, or no file of a network ({damage!r}); {kept}"
            ) from None
    if difference := _difference(found, description):
        raise ValueError(f"{path} holds another network: {difference}; {kept}")
    for name in RUNS:
        for number, (array, shape) in enumerate(zip(runs[name], shapes)):
            if array.shape != shape or array.dtype != dtype:
                raise ValueError(
                    f"{path} is damaged: {name} of layers[{number}] have shape {array.shape} and "
                    f"dtype {array.dtype}, not {shape} and {dtype}; {kept}"
                )
            if not np.isfinite(array).all():
                raise ValueError(
                    f"{path} is damaged: {name} of layers[{number}] are not all finite; {kept}"
                )
    if steps < 0:
        raise ValueError(f"{path} is damaged: it counts {steps} steps; {kept}")
    return steps, runs


def _difference(found, wanted, where="network"):
    """The first thing in which two descriptions differ, in words; None if they are alike."""
    if isinstance(wanted, dict) and isinstance(found, dict) and wanted.keys() == found.keys():
        pairs = [(f"{where}.{key}", found[key], wanted[key]) for key in wanted]
    elif where.endswith(".layers") and isinstance(found, list) and len(found) == len(wanted):
        pairs = [(f"layers[{i}]", *both) for i, both in enumerate(zip(found, wanted))]
    else:
        same = found == wanted
        return None if same else f"{where} is {found} there and {wanted} here"
    found_differences = (_difference(theirs, ours, name) for name, theirs, ours in pairs)
    return next(filter(None, found_differences), None)
