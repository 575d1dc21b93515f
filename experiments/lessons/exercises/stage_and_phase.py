"""Lesson 8: where a thread stands in a ring."""

from experiments.lessons.exercise import Case, Exercise, Mistake
from numbacaps.device.ring import CONSUMER, Ring, make_advance


def _cases():
    """What the toolkit's own ``advance`` comes to, step by step."""
    found = []
    for stages in (1, 3, 4):
        advance = make_advance(Ring(stages, 0, 128, 128, 128, consumers=1))
        stage, phase = CONSUMER
        for step in range(3 * stages + 1):
            wanted = int(stage), int(phase)
            found.append(Case((step, stages), wanted, f"stage_and_phase({step}, {stages})"))
            stage, phase = advance(stage, phase)
    return found


EXERCISE = Exercise(
    wants="takes a step, from 0 on, and the number of stages; returns (stage, phase) of a consumer",
    cases=_cases,
    mistakes=(
        Mistake(
            lambda step, stages: (step % stages, step % 2),
            "the phase changes once a round, not at every step",
        ),
        Mistake(
            lambda step, stages: (step % stages, step // stages),
            "a phase is a bit: 0 or 1",
        ),
        Mistake(
            lambda step, stages: (step % stages, step // stages % 2 ^ 1),
            "this is the producer's phase; a consumer begins with 0",
        ),
        Mistake(
            lambda step, stages: (step // stages, step % stages),
            "the stage is what is left when whole rounds are taken away, the round comes from the division",
        ),
        Mistake(
            lambda step, stages: (step % stages, 0),
            "in the second round the same phase would be over already: the phase changes from round to round",
        ),
    ),
    hint="how many whole rounds lie behind the thread, and where in its round is it?",
)
