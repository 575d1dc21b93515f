# %% [markdown]
# # A pipeline of copies
#
# A copy from memory takes long. While it is under way the tensor cores should multiply what is already
# there. So shared memory is cut into *stages*, a ring of them. A *producer* asks for copies into
# stages that are empty; *consumers* multiply those that are full. On an H100 they are warps of
# one block with different jobs, which is called warp specialization.
#
# Two barriers stand before each stage. *Full* counts the bytes that a copy brings. *Empty* counts the consumers
# that have read. Here is the toolkit's ring, as its kernels use it.

# %%
import inspect

import numpy as np

from experiments.lessons import pipeline_model
from experiments.lessons.course import check, open_lesson
from experiments.lessons.drawing import page
from experiments.lessons.example import X, unwritten
from experiments.walk.pictures.canvas import ROLES
from numbacaps.device import ring
from numbacaps.device.instructions import bulk_copy, mbarrier_expect
from numbacaps.device.ring import CONSUMER, PRODUCER, Ring
from numbacaps.device.target import cuda

lesson = open_lesson(8)
print(inspect.getdoc(ring))

# %% [markdown]
# The kernel below adds up pieces of the digit, a warp's width each. Thread 0 of the first warp is
# the producer, the second warp consumes. A ticket from a counter says in which order things happen.
# A careless producer, for comparison, does not wait for a stage to be empty.

# %%
WARP, BARRIERS = 32, 128  # threads; bytes from the beginning to the stages
BYTES = 4 * WARP  # of a piece


def make_pipeline(stages, careful):
    """Kernel of a ring of some stages."""
    of = Ring(stages, 0, BARRIERS, BYTES, BYTES, consumers=1)
    init, acquire, advance = ring.make_init(of), ring.make_acquire(of), ring.make_advance(of)
    wait, release = ring.make_wait(of), ring.make_release(of)

    @cuda.jit
    def pipeline_kernel(
        pieces,  # in   (PIECES * WARP,)
        sums,  # out  (WARP,)
        seen,  # out  (PIECES,): the first number that is read of each
        asked,  # out  (PIECES,): tickets
        read,  # out  (PIECES,): tickets
        tickets,  # in/out  (1,)
        count,
    ):
        shared = cuda.shared.array(0, np.float32)
        thread = cuda.threadIdx.x
        if thread == 0:
            init(shared, 0)
        cuda.syncthreads()
        if thread == 0:
            stage, phase = PRODUCER
            for i in range(count):
                if careful:
                    full, to = acquire(shared, 0, stage, phase)  # waits for empty
                else:
                    full, to = 8 * stage, BARRIERS + stage * BYTES
                    mbarrier_expect(shared, full, BYTES)
                asked[i] = cuda.atomic.add(tickets, 0, 1)
                bulk_copy(shared, to, pieces, i * WARP, BYTES, full)
                stage, phase = advance(stage, phase)
        if thread >= WARP:
            lane = thread - WARP
            total = np.float32(0)
            stage, phase = CONSUMER
            for i in range(count):
                wait(shared, 0, stage, phase)  # for full
                total += shared[BARRIERS // 4 + stage * WARP + lane]
                if lane == 0:
                    seen[i] = shared[BARRIERS // 4 + stage * WARP]
                    read[i] = cuda.atomic.add(tickets, 0, 1)
                cuda.syncwarp()  # all lanes have read
                release(shared, 0, stage, lane)
                stage, phase = advance(stage, phase)
            sums[lane] = total

    return pipeline_kernel


def run(pieces, stages, careful=True):
    """(sums, what was read first of each piece, tickets of copies, tickets of reads)."""
    shared_bytes, count = BARRIERS + stages * BYTES, len(pieces)
    sums, seen = unwritten(WARP), unwritten(count)
    asked, read = (cuda.to_device(np.full(count, -1)) for _ in range(2))
    arrays = cuda.to_device(pieces.reshape(-1)), sums, seen, asked, read
    kernel = make_pipeline(stages, careful)
    try:
        kernel[1, 2 * WARP, 0, shared_bytes](*arrays, cuda.to_device(np.zeros(1, int)), count)
    except AssertionError as failure:
        print(failure)
    return [array.copy_to_host() for array in arrays[1:]]


digit = X.reshape(-1)[: X.size // WARP * WARP].reshape(-1, WARP)
orders = {}
for stages in (1, 2, 4):
    sums, _, *orders[stages] = run(digit, stages)
    assert np.allclose(sums, digit.sum(axis=0), rtol=1e-6)
    asked, read = orders[stages]
    ahead = max(np.sum(asked < ticket) - i for i, ticket in enumerate(read))
    print(f"{stages} stages: {len(digit)} pieces added up; the producer is up to {ahead} ahead")
    assert ahead == stages

# %% [markdown]
# The sums are right, and the producer is never further ahead than there are stages: it waits. Here is what
# happens if it does not. A piece now holds its own number, so what is read tells which piece it was.

# %%
numbered = np.repeat(np.arange(6, dtype=np.float32)[:, None], WARP, axis=1)
_, careful_seen, *_ = run(numbered, 2)
_, seen, *_ = run(numbered, 2, careful=False)
print("a careful producer, pieces in the order in which they are read:", *careful_seen)
print("a careless producer (nan: never read):", *seen)
assert np.array_equal(careful_seen, numbered[:, 0]) and not np.array_equal(seen, careful_seen)

# %% [markdown]
# What the consumer reads first is already a later piece, and then it waits for a phase that is long
# over. The simulator notices that no thread is left that could end it.
#
# ## Phases
#
# A barrier is used again whenever the ring comes round. What tells one round from the next is its *phase*, a bit
# that changes when the barrier completes. A thread that waits names the phase that must be over. A thread therefore
# goes round with two numbers.

# %%
advance = ring.make_advance(Ring(3, 0, BARRIERS, BYTES, BYTES, consumers=1))
stage, phase = CONSUMER
walk = []
for step in range(8):
    walk.append((int(stage), int(phase)))
    stage, phase = advance(stage, phase)
print("a consumer of three stages, (stage, phase):", *walk)
print(
    "a producer begins with", tuple(map(int, PRODUCER)), "because an unused stage counts as empty"
)

# %% [markdown]
# ## How many stages?
#
# Say that a copy takes six times as long as multiplying a piece, and that copies can be under way side by
# side. Then the multiplication waits until there are enough stages, and more of them are of no use.

# %%
print(inspect.getsource(pipeline_model.schedule))
COPY, PRODUCT, COUNT = 6, 1, 16
lasts = {}
for stages in range(1, 11):
    lasts[stages] = pipeline_model.schedule(COUNT, stages, COPY, PRODUCT)[-1][2]
print("time by stages:", *(f"{stages}: {time}" for stages, time in lasts.items()))
best = min(lasts.values())
enough = min(stages for stages, time in lasts.items() if time == best)
print(f"{enough} stages are enough: {lasts[1] / best:.1f} times as fast as one")
assert best == COPY + COUNT * PRODUCT

# %%
figure, (order, one, more) = page(3, width=4)
for stages, role in zip(orders, ("gradient", "kernel", "output")):
    asked, read = orders[stages]
    order.step(asked, np.arange(len(asked)), color=ROLES[role], label=f"copies, {stages} stages")
    order.step(read, np.arange(len(read)), color=ROLES[role], ls=":", label="read")
order.set(title="order of events in the kernel", xlabel="ticket", ylabel="piece")
order.set(xlim=(0, 24), ylim=(-1, 12))
order.legend(frameon=False, fontsize=7)
for axes, stages in ((one, 2), (more, enough)):
    times = pipeline_model.schedule(COUNT, stages, COPY, PRODUCT)
    for i, (asked, there, done) in enumerate(times):
        axes.barh(i, there - asked, left=asked, color=ROLES["input"], height=0.7, alpha=0.6)
        axes.barh(i, PRODUCT, left=done - PRODUCT, color=ROLES["product"], height=0.7)
    axes.set(title=f"{stages} stages", xlabel="time", xlim=(0, lasts[2] + 1), ylabel="piece")
    axes.invert_yaxis()
one.legend(["copy", "product"], frameon=False, loc="lower left")
lesson.show(
    figure, "pipeline", "copies and reads in order; the model's copies and products in time"
)

# %% [markdown]
# ## Exercises
#
# Write `stage_and_phase(step, stages)`: what a consumer's two numbers are at a step, without going round.


# %%
def stage_and_phase(step, stages):
    """(stage, phase)."""
    return ..., ...


check(stage_and_phase)

# %% [markdown]
# Write `stages_wanted(copy, product)`: the fewest stages with which, in the model above, the multiplication
# waits for the first piece alone. Both times are whole numbers.


# %%
def stages_wanted(copy, product):
    """A whole number."""
    return ...


check(stages_wanted)
