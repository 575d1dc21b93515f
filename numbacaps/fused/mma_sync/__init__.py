"""Tensor cores by warps (mma.sync), on every GPU since compute capability 8.0: one kernel for all geometries."""
