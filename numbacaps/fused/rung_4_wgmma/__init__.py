"""Rung 4: capsules as the tensor cores' own core matrices. Read :mod:`.flat` first, then :mod:`.kernel`."""
