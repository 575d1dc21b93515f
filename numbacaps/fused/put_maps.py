"""Tensor maps (:mod:`numbacaps.fused.tensor_map`) put into a device array, where the copy engine reads them."""

from functools import cache

from numbacaps.fused.intrinsics import let_next_start, put_word
from numbacaps.fused.pack import WORDS
from numbacaps.target import cuda


@cache
def make_put_maps(first):
    """Kernel that puts two maps into an array of float32, ``first`` elements behind its beginning."""
    FIRST, ALL = first // 2, 2 * WORDS  # of 64 bits

    @cuda.jit(cache=True)
    def put_maps_kernel(
        maps,  # out
        words,  # in   those of the first map, then those of the other
    ):
        let_next_start()  # up to where it waits for the maps
        i = cuda.grid(1)
        for word in range(ALL):
            if i == word:
                put_word(maps, FIRST + word, words[word])

    return put_maps_kernel
