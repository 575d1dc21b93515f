"""Fused capsule convolution: one implicit matrix product, nothing laid out in memory.

A ladder to read from the bottom, each rung a diff of the one before:

1. :mod:`rung_1_direct`: a thread an element
2. :mod:`rung_2_shared_tiles`: a block brings tiles of both operands into shared memory
3. :mod:`rung_3_register_tiles`: a thread computes a small tile, loads run ahead; its ``split_k`` is the same for the
   kernel's gradient, whose sum runs over pixels
   :mod:`mma_sync`: the tensor cores by warps, on every GPU since compute capability 8.0; one kernel for all geometries
4. :mod:`rung_4_wgmma`: the tensor cores of compute capability 9.0, which read capsules as they lie
5. :mod:`rung_5_warp_specialized`: producer warps keep TMA busy, consumer warpgroups multiply; three
   products of TF32 for one of float32
6. :mod:`rung_6_swap_ab`: operands swapped, a small kernel stays in registers as it lies

Rungs 4 to 6 begin with a ``flat`` version: the idea alone, without tails and special stores. A rung's ``tile`` says
which tiles there are, its ``launcher`` makes a kernel ready and launches it.

:mod:`implicit_gemm` says where each operand's element lies, for all three passes, :mod:`addressing` where a row's pixel
lies; :mod:`pack` lays the kernel out for the tensor cores; :mod:`epilogue` is what rungs 3 to 5 can do with their sums
beside writing them: a network's LeakyReLU and squash, or their gradient. :mod:`choose` chooses the rung and the tile.
"""
