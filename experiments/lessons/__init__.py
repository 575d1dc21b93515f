"""Five lessons, to be read in order and run cell by cell: the algorithm, then what it costs.

1. `lesson_1_window_to_column`: a window of capsules becomes a column
2. `lesson_2_replicate`: columns and kernel are copied until every product has operands of its own
3. `lesson_3_multiply`: all small products in one strided batch
4. `lesson_4_reduce_and_back`: their sums, and the same way back for the gradients
5. `lesson_5_why_fused_wins`: the same sums as one matrix product, nothing laid out

``python -m experiments.lessons.lesson_1_window_to_column`` runs one; editors show the ``# %%``
cells as a notebook. Each ends in an exercise: a function to write, and ``check`` to judge it.
Solutions are in ``tests/test_lessons.py``.

The lessons count what threads do, which takes the simulator, so they choose it.
"""

import os

os.environ.setdefault("NUMBACAPS_TARGET", "sim")  # read when numbacaps is imported, below this
