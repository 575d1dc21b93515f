"""Tensor cores by warps (mma.sync), on every GPU since compute capability 8.0: one kernel for all geometries.

In reading order: :mod:`table` says where everything lies, as numbers that kernels read; :mod:`factors` and :mod:`sums` are
what a warp multiplies and what it holds; :mod:`kernel`, :mod:`tile`, :mod:`choose_tile` and
:mod:`launcher` are the forward pass and the input's gradient, :mod:`split_k`, :mod:`split_k_tile`, :mod:`choose_split_k_tile` and
:mod:`split_k_launcher` the kernel's gradient, :mod:`add_splits` the sum of both's parts. :mod:`pack` has the kernels that lay operands out for the widest copies, :mod:`packing` launches them.
"""
