"""Lesson 9: the time that no pass can be below."""

from experiments.lessons import recorded
from experiments.lessons.exercise import Case, Exercise, Mistake


def _cases():
    """Recorded rows know how close they are to either floor."""
    found = []
    for row in recorded.rows("table1", pass_="forward", algorithm="fused", precision="ieee"):
        if row["workload"] == "layer 1" or not row["workload"][-1].isdigit():
            continue
        numbers = row["gflop"], row["min_bytes"], row["copy_gbs"], row["sgemm_tflops"]
        wanted = max(row["byte_fraction"], row["flop_fraction"]) * row["ms_p50"]
        found.append(Case(numbers, wanted, f"floor_ms{numbers} of {row['workload']}"))
    stage = next(r for r in recorded.rows("stages", workload="em") if r["stage"] == "input_extend")
    numbers = 0.0, stage["min_bytes"], stage["copy_gbs"], stage["sgemm_tflops"]
    wanted = stage["byte_fraction"] * stage["ms_p50"]
    return [*found, Case(numbers, wanted, f"floor_ms{numbers} of a stage that copies")]


def _bytes(nbytes, copy_gbs):
    return nbytes / copy_gbs / 1e6


EXERCISE = Exercise(
    wants="takes 10^9 FLOP, bytes, 10^9 bytes a second and 10^12 FLOP a second; returns the milliseconds of the larger floor",
    cases=_cases,
    mistakes=(
        Mistake(
            lambda gflop, nbytes, gbs, tflops: _bytes(nbytes, gbs) + gflop / tflops,
            "copies and arithmetic go on at the same time: the larger one decides, not the sum",
        ),
        Mistake(
            lambda gflop, nbytes, gbs, tflops: min(_bytes(nbytes, gbs), gflop / tflops),
            "neither can be undercut, so the larger one decides",
        ),
        Mistake(
            lambda gflop, nbytes, gbs, tflops: max(_bytes(nbytes, gbs), gflop / tflops) / 1e3,
            "these are seconds; milliseconds are wanted",
        ),
        Mistake(
            lambda gflop, nbytes, gbs, tflops: _bytes(nbytes, gbs),
            "this is the floor of the bytes alone; arithmetic takes time, too",
        ),
        Mistake(
            lambda gflop, nbytes, gbs, tflops: gflop / tflops,
            "this is the floor of the arithmetic alone; bytes take time, too",
        ),
        Mistake(
            lambda gflop, nbytes, gbs, tflops: max(nbytes / gbs / 2**20, gflop / tflops),
            "a gigabyte is 10^9 bytes here, not 2^30",
        ),
    ),
    hint="mind the units: bytes / (GB/s) are nanoseconds, GFLOP / (TFLOP/s) are milliseconds",
)
