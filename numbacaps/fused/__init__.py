"""Fused capsule convolution: one implicit matrix product, nothing laid out in memory.

A ladder to read from the bottom, each rung a diff of the one before:

1. :mod:`direct`: a thread an element
2. :mod:`shared_tiles`: a block brings tiles of both operands into shared memory
3. :mod:`register_tiles`: a thread computes a small tile, loads run ahead; :mod:`reduction` is the
   same for the kernel's gradient, whose sum runs over pixels
4. :mod:`wgmma`: the tensor cores of compute capability 9.0, which read capsules as they lie;
   :mod:`pack` lays the kernel out for them; :mod:`mma_reduction` is :mod:`reduction` on tensor cores
5. :mod:`bulk_wgmma`: the copy engine fetches, told by a :mod:`tensor_map` what lies where; three products of
   TF32 for one of float32; :mod:`bulk_reduction` is the same for the kernel's gradient, whose parts
   :mod:`tile_sums` adds
6. :mod:`swapped_wgmma`: a small kernel is the first operand, and stays in registers as it lies

:mod:`epilogue` is what rungs 3 to 5 can do with their sums beside writing them: a network's LeakyReLU and squash,
or their gradient.

:mod:`implicit_gemm` says where each operand's element lies, for all three passes, :mod:`addressing` where a pixel of a row lies;
:mod:`tiles`,
:mod:`warpgroup_tiles`, :mod:`mma_tiles`, :mod:`bulk_tiles`, :mod:`bulk_reduction_tiles` and :mod:`swapped_tiles`
which tiles there are; :mod:`intrinsics` names the instructions that Numba has no words for, of which some of
:mod:`ptx` take a GPU; :mod:`compiled` launches. What runs, and why, is chosen in
:mod:`numbacaps.algorithms.fused`.
"""
