"""Lesson 9: how full the GPU is over all waves of blocks."""

from experiments.lessons.exercise import Case, Exercise, Mistake
from numbacaps.device.gpu import H100
from numbacaps.device.launch import ceil_div


def _cases():
    """Blocks are handed out one by one, and the places counted."""
    found, GPU = [], H100.multiprocessors
    for blocks, resident in ((GPU, 1), (GPU + 1, 1), (1000, 2), (40, 1), (5 * GPU, 3)):
        left, offered = blocks, 0
        while left > 0:
            offered += GPU * resident
            left -= GPU * resident
        said = f"places_taken({blocks}, {GPU}, {resident})"
        found.append(Case((blocks, GPU, resident), blocks / offered, said))
    return found


EXERCISE = Exercise(
    wants="takes the numbers of blocks, of multiprocessors and of blocks that a multiprocessor has room for; returns a share",
    cases=_cases,
    mistakes=(
        Mistake(
            lambda blocks, mps, resident: blocks / (ceil_div(blocks, mps) * mps),
            "a multiprocessor has room for `resident` blocks at once",
        ),
        Mistake(
            lambda blocks, mps, resident: blocks / (mps * resident),
            "this is the number of waves; the share is of all places that all waves offer",
        ),
        Mistake(
            lambda blocks, mps, resident: min(1, blocks / (mps * resident)),
            "the last wave counts too: it is as long as the others, and mostly emptier",
        ),
        Mistake(
            lambda blocks, mps, resident: (
                blocks / (max(1, blocks // (mps * resident)) * mps * resident)
            ),
            "waves are rounded up: the last blocks have one of their own",
        ),
        Mistake(
            lambda blocks, mps, resident: (
                ceil_div(blocks, mps * resident) * mps * resident / blocks
            ),
            "upside down: what is taken over what is offered",
        ),
    ),
    hint="how many waves are there, and how many places has each?",
)
