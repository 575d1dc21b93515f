"""Rung 5: producer warps keep the copy engine (TMA) busy, consumer warpgroups multiply."""
