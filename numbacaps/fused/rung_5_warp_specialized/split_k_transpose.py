"""The warps between producer and consumers: they rewrite each row of dy as core matrices, k along their rows.

Of float32 an element is moved at a time. Of 2 bytes an element, squares of two k's by two columns are: both k's are
read, 4 apart, and the halves of their pairs exchanged.
"""

from math import gcd

import numpy as np

from numbacaps.device.fragments import nearer_tf32
from numbacaps.device.instructions import (
    cut_tf32,
    fence_proxy_async,
    local_array,
    permuted_bytes,
    short,
)
from numbacaps.device.ring import (
    CONSUMER,
    PRODUCER,
    make_advance,
    make_commit,
    make_release,
    make_wait,
    make_wait_empty,
)
from numbacaps.device.specialization import specialized
from numbacaps.device.target import at, cuda
from numbacaps.fused.rung_5_warp_specialized.split_k_tile import TRANSPOSE_WARPS

# Of two words' halves: the low ones, or the high ones; and so where the second word comes first.
LOW_HALVES, HIGH_HALVES, LATE_LOW, LATE_HIGH = 0x5410, 0x7632, 0x1054, 0x3276


def make_transpose(spec):
    """Device function ``transpose(shared, begin, start, rows, warp, lane)`` of the warps behind the consumers."""
    of_dy, tile = spec.boxes[1], spec.tile
    d1, of_out = spec.pixels.D1, spec.transposed_ring
    WARPS, PW = map(specialized, (spec.consumer_warps, tile.PW))
    PIXEL = specialized(spec.parts * spec.k_groups * spec.matrix_words)
    ALL_K, K_SQUARES = map(specialized, (of_dy.images * d1, 4 * tile.PAIR))
    D1, D1_BITS, D3_PAIRS = map(
        specialized, (d1, d1.bit_length() - 1, spec.pixels.other[3] // tile.PAIR)
    )
    B_IMAGE, B_COLUMN = map(specialized, (of_dy.image_step, of_dy.column_step))
    DY_DATA, DY_PITCH = map(specialized, (spec.dy_ring.data // 4, spec.dy_ring.pitch // 4))
    OUT_DATA, OUT_PITCH = map(specialized, (of_out.data // 4, of_out.pitch // 4))
    wait_dy, release_dy, next_dy = (
        make(spec.dy_ring) for make in (make_wait, make_release, make_advance)
    )
    wait_empty, commit, next_out = (
        make(spec.transposed_ring) for make in (make_wait_empty, make_commit, make_advance)
    )
    own_elements, move_k = make_own_elements(spec), make_move_k(spec)
    place_of_k = make_place_of_k(spec)

    @cuda.jit(device=True, forceinline=True)
    def transpose(shared, begin, start, rows, warp, lane):
        own = own_elements(lane)
        dy, dy_phase = CONSUMER
        out, out_phase = PRODUCER
        origin = short((start - begin) // 4)
        for _ in range(short(rows)):
            wait_empty(shared, start, out, out_phase)
            wait_dy(shared, start, dy, dy_phase)
            for pixel in range(warp - WARPS, PW, TRANSPOSE_WARPS):
                for k in range(0, ALL_K, K_SQUARES):
                    read = origin + DY_DATA + dy * DY_PITCH
                    read += (k >> D1_BITS) * B_IMAGE + (k & (D1 - 1)) * D3_PAIRS
                    read += pixel * B_COLUMN + own[0]
                    write = origin + OUT_DATA + out * OUT_PITCH
                    write += pixel * PIXEL + own[1] + place_of_k(k)
                    move_k(shared, read, write, own)
            fence_proxy_async()  # the tensor cores may see them
            cuda.syncwarp()
            release_dy(shared, start, dy, lane)
            commit(shared, start, out, lane)
            dy, dy_phase = next_dy(dy, dy_phase)
            out, out_phase = next_out(out, out_phase)

    return transpose


def make_own_elements(spec):
    """Device function ``own_elements(lane)``: where a lane's elements lie in a box, where they go, how far apart the two
    k's of a pair are, and of its two words where they go and which halves they are of.

    Half of the lanes read the two k's the other way round: all at once would meet in banks.
    """
    of_dy, PAIR, d1 = spec.boxes[1], spec.tile.PAIR, spec.pixels.D1
    d3_pairs = spec.pixels.other[3] // PAIR
    D1, D3_PAIRS = map(specialized, (d1, d3_pairs))
    B_IMAGE, B_CHANNEL = map(specialized, (of_dy.image_step, of_dy.channel_step))
    B_APART = specialized(4 // d1 * of_dy.image_step + 4 % d1 * d3_pairs)

    @cuda.jit(device=True, forceinline=True)
    def own_elements(lane):
        k, n, late = lane % 4, lane // 4, lane // 16
        source = k // D1 * B_IMAGE + k % D1 * D3_PAIRS
        source += n // D3_PAIRS * B_CHANNEL + n % D3_PAIRS
        source = short(source + (late * B_APART if PAIR > 1 else 0))
        target = short(n * (4 * PAIR) + k)
        apart = short(B_APART - 2 * B_APART * late)
        first, second = short(late * 4), short(4 - late * 4)
        first_halves = LATE_HIGH if late else LOW_HALVES
        second_halves = LATE_LOW if late else HIGH_HALVES
        return source, target, apart, first, second, first_halves, second_halves

    return own_elements


def make_move_k(spec):
    """Device function ``move_k(shared, read, write, own)``: of some k's a warp's elements of all columns."""
    of_dy, PAIR, SPLIT = spec.boxes[1], spec.tile.PAIR, spec.split
    d3, n_squares = spec.pixels.other[3], 8 * PAIR
    squares = of_dy.channels * d3 // n_squares
    at_once = gcd(squares, 4)
    D3_PAIRS, N_SQUARES, B_CHANNEL = map(specialized, (d3 // PAIR, n_squares, of_dy.channel_step))
    AT_ONCE, ROUNDS = map(specialized, (at_once, squares // at_once))
    LOW = specialized(spec.k_groups * spec.matrix_words)

    @cuda.jit(device=True, forceinline=True)
    def move_k(shared, read, write, own):
        values = local_array(AT_ONCE, np.float32)
        others = local_array(AT_ONCE, np.float32)
        _, _, apart, first, second, first_halves, second_halves = own
        for some in range(ROUNDS):
            for i in range(AT_ONCE):
                n = (some * AT_ONCE + i) * 8
                place = read + n // D3_PAIRS * B_CHANNEL + n % D3_PAIRS
                values[i] = shared[at(place)]
                if PAIR > 1:
                    others[i] = shared[at(place + apart)]
            for i in range(AT_ONCE):
                place = (some * AT_ONCE + i) * (4 * N_SQUARES)
                near = nearer_tf32(values[i])
                if PAIR > 1:
                    both = permuted_bytes(values[i], others[i], first_halves)
                    shared[at(write + place + first)] = both
                    both = permuted_bytes(values[i], others[i], second_halves)
                    shared[at(write + place + second)] = both
                elif SPLIT:
                    # Cut after it is brought nearer, so that the low part is as often negative as not.
                    shared[at(write + place)] = cut_tf32(near)
                    shared[at(write + place + LOW)] = values[i] - cut_tf32(near)
                else:
                    shared[at(write + place)] = near

    return move_k


def make_place_of_k(spec):
    """Device function ``place_of_k(k)``: where a chunk of k's lies in a transposed pixel: which product, which half of it."""
    BITS, WORDS = map(specialized, (spec.tile.K.bit_length() - 1, spec.matrix_words))
    HALF = specialized(spec.tile.BN * 4)

    @cuda.jit(device=True, forceinline=True)
    def place_of_k(k):
        return (k >> BITS) * WORDS + (k >> BITS - 1 & 1) * HALF

    return place_of_k
