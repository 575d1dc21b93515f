"""Lesson 6: which rows of a long sum a split adds."""

from experiments.lessons.exercise import Case, Exercise, Mistake
from numbacaps.device.launch import ceil_div
from numbacaps.fused.rung_3_register_tiles.tile import choose_splits


def _cases():
    """What the toolkit's split-K kernel would be given; its parts are those of the launcher."""
    found = []
    for M, BK in ((24, 4), (36, 4), (41, 8), (100, 8), (61, 2)):
        splits, rows = choose_splits(1, M, BK)
        for split in range(splits):
            first = split * rows
            said = f"part({split}, {splits}, {M}, {BK})"
            wanted = first, min(M, first + rows)
            found.append(Case((split, splits, M, BK), wanted, said))
    return found


def _part(split, rows, M):
    return split * rows, min(M, (split + 1) * rows)


def _whole(splits, M, BK):
    return ceil_div(ceil_div(M, splits), BK) * BK


EXERCISE = Exercise(
    wants="takes the number of a split, how many there are, M and BK; returns (first, last), rows of the sum",
    cases=_cases,
    mistakes=(
        Mistake(
            lambda split, splits, M, BK: _part(split, M // splits, M),
            "M // splits rounds down, so the last rows are in no split: a lost tail",
        ),
        Mistake(
            lambda split, splits, M, BK: _part(split, M // splits // BK * BK, M),
            "rounding down leaves rows that are in no split: a lost tail",
        ),
        Mistake(
            lambda split, splits, M, BK: _part(split, ceil_div(M, splits), M),
            "a part's rows are also rounded up to a multiple of BK",
        ),
        Mistake(
            lambda split, splits, M, BK: (
                split * _whole(splits, M, BK),
                (split + 1) * _whole(splits, M, BK),
            ),
            "the last part would read rows behind M",
        ),
        Mistake(
            lambda split, splits, M, BK: (
                _part(split, _whole(splits, M, BK), M)[0],
                _part(split, _whole(splits, M, BK), M)[1] - 1,
            ),
            "last is the row behind the part's last one, as in range(first, last)",
        ),
    ),
    hint="how many rows has a part? Then first = split * rows",
)
