"""Ten lessons, to be read in order and run cell by cell: the algorithm, what it costs, and what makes it fast.

1. `lesson_1_window_to_column`: a window of capsules becomes a column
2. `lesson_2_replicate`: columns and kernel are copied until every product has operands of its own
3. `lesson_3_multiply`: all small products in one strided batch
4. `lesson_4_reduce_and_back`: their sums, and the same way back for the gradients
5. `lesson_5_why_fused_wins`: the same sums as one matrix product, nothing laid out
6. `lesson_6_gradients_without_atomics`: gathers, and sums cut into parts that are added in a fixed order
7. `lesson_7_tensor_cores`: fragments, TF32, and three terms in the place of one
8. `lesson_8_pipeline_of_copies`: a producer, consumers, and the barriers between them
9. `lesson_9_what_decides_speed`: two floors, a roofline, how full the GPU is, and the host
10. `lesson_10_routing`: children vote, parents agree, and no vote is stored

``python -m experiments.lessons 1`` prints the prose of one, runs its cells and prints what they find. ``--notebooks
FOLDER`` writes them as notebooks. Editors show the ``# %%`` cells as a notebook. Each lesson ends in exercises: functions
to write, and ``check`` to judge them. ``experiments/lessons/README.md`` is the plan of a course.

The lessons count what threads do, which takes the simulator, so they choose it.
"""

import os

os.environ.setdefault("NUMBACAPS_TARGET", "sim")  # read when numbacaps is imported, below this
