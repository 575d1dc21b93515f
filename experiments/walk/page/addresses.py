"""What each thread touched, written short: runs of even steps, and one pattern for many threads.

A thread's elements in one memory are runs (start, step, count, times). Threads mostly do the same
at another place, so runs are kept once as a pattern that begins at 0, and each thread keeps which
pattern it follows and from where; neighbours that follow one pattern at even steps share a note.
"""

import numpy as np

from experiments.walk.watch import KINDS


def written_short(launch):
    """A launch for the page.

    Parameters
    ----------
    launch : experiments.walk.watch.Launch

    Returns
    -------
    dict
        ``kernel``, ``grid``, ``block``; and ``memories``: for each its name, size, whether it is
        ``shared``, and for each kind of access that it saw (``read``, ``write``, ``atomic``) the
        ``count``, ``transactions`` (see :meth:`Launch.transactions`; global memory alone), and
        ``threads``: flat (thread, accesses, threads alike) of shared memory; flat (thread, pattern,
        start, step, threads alike) and the ``patterns`` of global memory.
    """
    return {
        "kernel": launch.kernel.__name__,
        "grid": launch.grid,
        "block": launch.block,
        "memories": [_memory(launch, number) for number in range(len(launch.memories))],
    }


def _memory(launch, number):
    """One memory and what was done to it."""
    memory = launch.memories[number]
    told = {"name": memory.name, "shared": memory.shared, "size": memory.size}
    for kind, word in zip(KINDS, ("read", "write", "atomic")):
        rows = launch.of(number, kind)
        if len(rows):
            told[word] = {"count": len(rows)}
            told[word] |= _shared(launch, rows) if memory.shared else _global(launch, rows)
            if not memory.shared:
                told[word]["transactions"] = launch.transactions(number, kind)
    return told


def _by_thread(launch, rows):
    """(number of the thread in the grid, its elements in order) for every thread."""
    threads = rows[:, 0] * int(np.prod(launch.block)) + rows[:, 1]
    order = np.argsort(threads, kind="stable")
    numbers, first = np.unique(threads[order], return_index=True)
    return zip(numbers.tolist(), np.split(rows[order, 4], first[1:]))


def _shared(launch, rows):
    groups = []
    for thread, elements in _by_thread(launch, rows):
        if groups and groups[-2:] == [len(elements), thread - groups[-3]]:
            groups[-1] += 1
        else:
            groups += thread, len(elements), 1
    return {"threads": groups}


def _global(launch, rows):
    patterns, groups = {}, []
    for thread, elements in _by_thread(launch, rows):
        start = int(elements[0])
        pattern = patterns.setdefault(tuple(runs((elements - start).tolist())), len(patterns))
        if groups and _continues(groups[-5:], thread, pattern, start):
            groups[-2] = start - groups[-3] if groups[-1] == 1 else groups[-2]
            groups[-1] += 1
        else:
            groups += thread, pattern, start, 0, 1
    return {"patterns": list(patterns), "threads": groups}


def _continues(group, thread, pattern, start):
    """Whether a thread is the next of a group: same pattern, one step further."""
    first, known, begin, step, count = group
    even = count == 1 or start == begin + step * count
    return thread == first + count and pattern == known and even


def runs(elements):
    """Elements as flat (start, step, count, times): ``count`` of them ``step`` apart, repeated.

    Parameters
    ----------
    elements : list of int

    Returns
    -------
    list of int
    """
    found, i = [], 0
    while i < len(elements):
        step = elements[i + 1] - elements[i] if i + 1 < len(elements) else 0
        end = i + 1
        while end < len(elements) and elements[end] - elements[end - 1] == step:
            end += 1
        run = [elements[i], step, end - i]
        if found and found[-4:-1] == run:
            found[-1] += 1
        else:
            found += *run, 1
        i = end
    return found
