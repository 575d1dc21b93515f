"""Rung 5: producer warps keep TMA busy, consumer warpgroups multiply."""
