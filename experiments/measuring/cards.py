"""The GPUs of this host as cards: which there are, which one this process uses, and whether its neighbours work.

nvidia-smi, which comes with the driver, is asked; where it is absent, so are its answers.
"""

import os
import subprocess
from functools import cache

from experiments.measuring.refusal import Refusal

_BUSY = 5  # percent of the time in which a kernel ran, from which on a card is busy; an idle one's display takes less


def _asked(*columns):
    """A list of cells for each card, or None where nvidia-smi does not answer."""
    command = ["nvidia-smi", f"--query-gpu={','.join(columns)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines()]


def visible():
    """Names of the GPUs that a process here can use, as ``CUDA_VISIBLE_DEVICES`` takes them."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return [name.strip() for name in given.split(",") if name.strip()]
    return [index for (index,) in _asked("index") or []]


def chosen(text):
    """The names of the GPUs that ``all`` or ``0,1`` asks for: numbers count those that are visible.

    Raises
    ------
    experiments.measuring.refusal.Refusal
        There is no such GPU, or one is named twice.
    """
    names = visible()
    if text == "all" and names:
        return names
    numbers = text.split(",")
    known = all(number.isdecimal() and int(number) < len(names) for number in numbers)
    if not known or len(set(numbers)) < len(numbers):
        takes = f"all, or numbers from 0 to {len(names) - 1}, each once" if names else "a GPU"
        raise Refusal("--gpus", repr(text), takes)
    return [names[int(number)] for number in numbers]


def pinned(gpu):
    """The environment of a process that sees one GPU alone, by its name as :func:`visible` has it."""
    return os.environ | {"CUDA_VISIBLE_DEVICES": gpu, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def turned(process):
    """The environment by which processes side by side share the GPUs: each sees them all, and begins with another.

    Parameters
    ----------
    process : int
        Its number.
    """
    names = visible()
    if len(names) < 2:
        return {}
    first = process % len(names)
    order = ",".join(names[first:] + names[:first])
    return {"CUDA_VISIBLE_DEVICES": order, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


@cache
def gpu_uuid():
    """UUID of the current GPU."""
    from numbacaps.device.target import cuda

    return str(cuda.get_current_device().uuid)


def busy_neighbours():
    """How many of the host's other GPUs are at work; None where it is not known."""
    cards = _asked("uuid", "utilization.gpu")
    if cards is None or not all(used.isdecimal() for _, used in cards):
        return None
    return sum(int(used) >= _BUSY for uuid, used in cards if uuid != gpu_uuid())
