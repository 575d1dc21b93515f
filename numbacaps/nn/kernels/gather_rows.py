"""A batch out of images that lie on the device whole, by their row numbers.

    row[n]    = ring[step % places, n]       what the host wrote for the step, in pinned memory
    labels[n] = all_labels[row[n]]
    x[n]      = images[row[n]]

The step is read from the device: so one captured graph finds the numbers of every step.

Thread mapping: of the first kernel, which alone reads the host's memory, one thread an image; of the
second one thread an element of an image, which it walks image by image.
"""

from functools import cache

from numbacaps.device.instructions import let_next_start, wait_for_last
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.launch import THREADS, early, flat, launch
from numbacaps.device.target import at, cuda


@cache
def make_take_rows():
    """Kernel that reads a step's row numbers."""

    @kept_on_disk
    @cuda.jit
    def take_rows_kernel(
        ring,  # in   (places, N), int64
        step,  # in   (1,), int64
        all_labels,  # in   (count,), int64
        rows,  # out  (N,), int64
        labels,  # out  (N,), int64
        places,
        N,
    ):
        let_next_start()
        n = cuda.grid(1)
        if n >= N:
            return
        wait_for_last()
        row = ring[at(step[at(0)] % places * N + n)]
        rows[at(n)] = row
        labels[at(n)] = all_labels[at(row)]

    return take_rows_kernel


@cache
def make_take_images():
    """Kernel that copies images."""

    @kept_on_disk
    @cuda.jit
    def take_images_kernel(
        images,  # in   (count, size)
        rows,  # in   (N,), int64
        x,  # out  (N, size)
        size,
        N,
    ):
        let_next_start()
        i = cuda.grid(1)
        if i >= size:
            return
        n = cuda.blockIdx.y
        wait_for_last()
        while n < N:
            x[at(n * size + i)] = images[at(rows[at(n)] * size + i)]
            n += cuda.gridDim.y

    return take_images_kernel


def gather(images, all_labels, ring, step, rows, x, labels, stream=0, threads=THREADS):
    """Write a step's batch.

    Parameters
    ----------
    images : device array (count, ...), float32 or float64
    all_labels : device array (count,), int64
    ring : device array (places, N), int64
        Row numbers, 0 to count - 1, of step t at place t % places.
    step : device array (1,), int64
    rows, labels : device arrays (N,), int64, written
    x : device array (N, ...), dtype of images, written
    stream : Numba stream
    threads : int
        Most threads of a block.

    Raises
    ------
    ValueError
        An array has another size than it should, or is not C-contiguous.
    """
    count, (places, N), size = images.shape[0], ring.shape, x.size // x.shape[0]
    rows, labels = flat("rows", rows, (N,)), flat("labels", labels, (N,))
    numbers = (
        flat("ring", ring, ring.shape),
        flat("step", step, (1,)),
        flat("all_labels", all_labels, (count,)),
    )
    arguments = (*numbers, rows, labels, places, N)
    launch(early(make_take_rows(), arguments), N, 1, arguments, stream, threads)
    arrays = flat("images", images, (count, size)), rows, flat("x", x, (N, size))
    arguments = (*arrays, size, N)
    launch(early(make_take_images(), arguments), size, N, arguments, stream, threads)
