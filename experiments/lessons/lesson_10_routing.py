# %% [markdown]
# # Routing
#
# A convolution adds up all products of a window. Routing weighs them first. Each capsule under the
# window is a *child*; its product with a kernel capsule is its *vote* for a *parent*, an output
# channel. Children whose votes agree with a parent get more weight in it. The weights, the
# *couplings*, are found in a few iterations.
#
# Here the children are the capsules of the digit, and the window is the whole input.

# %%
import numpy as np
from matplotlib.colors import to_rgb

from experiments.lessons.counting import sectors
from experiments.lessons.course import check, open_lesson
from experiments.lessons.drawing import heat, page, pixels
from experiments.lessons.example import X
from experiments.measuring.routed import WORKLOADS
from experiments.walk.pictures.canvas import ROLES
from experiments.walk.watch import READ, WRITE, watching
from numbacaps import capsule_routing
from numbacaps.routing.runner import Runner
from reference import routing

lesson = open_lesson(10)
PARENTS, ITERATIONS = 3, (1, 2, 3, 5)
H, CAPSULE = X.shape[2], X.shape[5:]
draw = np.random.default_rng(0)
kernel = draw.standard_normal((PARENTS, 1, H, H, 1, *CAPSULE), dtype=np.float32) / 2
votes = routing.routing_votes(X.astype(np.float64), kernel.astype(np.float64))[0][0]
L, CHILDREN, _, E = votes.shape
print(f"{CHILDREN} children, {PARENTS} parents, votes of {E} numbers")

# %% [markdown]
# ## Dynamic routing
#
# Logits b begin at zero. An iteration has three steps: couplings c = softmax of b over the parents, so
# that each child's add up to one; parents v = squash(sum of c times the votes u); agreement: b grows by the
# scalar product of u and v. The toolkit's kernels do what the reference's loops say. (Here they run on a
# simulator, where ordinary arithmetic, the precision `ieee`, is much faster than simulated tensor cores.)

# %%
how = {"product": "gab,gbc->gac", "precision": "ieee"}
whole = how | {"algorithm": "fused", "couplings": True}
couplings, parents = {"dynamic": {}, "em": {}}, {}
for r in ITERATIONS:
    v, c = capsule_routing(X, kernel, iterations=r, **whole)
    expected_v, expected_c = routing.dynamic_routing(votes, r)
    assert np.allclose(v.reshape(PARENTS, E), expected_v[0], atol=1e-5)
    couplings["dynamic"][r], parents[r] = c.reshape(PARENTS, CHILDREN), expected_v[0]
    assert np.allclose(couplings["dynamic"][r].T, expected_c[0], atol=1e-5)
    lengths = np.linalg.norm(v.reshape(PARENTS, E), axis=1)
    print(f"iterations {r}: the parents' lengths are", *(f"{length:.3f}" for length in lengths))

# %% [markdown]
# Most capsules at the edge of the picture have no ink. Their votes are zero, so they agree with
# no parent, and their couplings stay as they are. Of the others, how much does the strongest parent have?

# %%
ink = X.sum(axis=(4, 5, 6)).reshape(-1) > 1


def strongest(c):
    """Mean over the children with ink of their largest coupling."""
    return c[:, ink].max(axis=0).mean()


blank = X.sum(axis=(4, 5, 6)).reshape(-1) == 0
print(f"{ink.sum()} children with ink, {blank.sum()} without any")
for r, c in couplings["dynamic"].items():
    assert np.allclose(c[:, blank], 1 / PARENTS)
    print(f"iterations {r}: the strongest parent has {strongest(c):.0%} of a child")
assert strongest(couplings["dynamic"][5]) > strongest(couplings["dynamic"][1])

# %% [markdown]
# ## EM routing
#
# Here a parent is a Gaussian with a mean, a variance and an activation. The E step asks of each child how likely
# each parent makes its vote; the M step fits the parents to the votes, weighed by that and by the
# children's activations. As activation serves the mean ink of a capsule.

# %%
activations = X.mean(axis=(4, 5, 6))
zeros = np.zeros(PARENTS)
for r in ITERATIONS:
    em = {"routing": "em", "iterations": r, "activations": activations, "lam": 0.5}
    mean, active, c = capsule_routing(X, kernel, **em, **whole)
    children = activations.reshape(1, CHILDREN).astype(np.float64)
    _, expected_a, expected_c = routing.em_routing(votes, children, zeros, zeros, r, lam=0.5)
    couplings["em"][r] = c.reshape(PARENTS, CHILDREN)
    assert np.allclose(couplings["em"][r].T, expected_c[0], atol=1e-3)
    assert np.allclose(active.reshape(PARENTS), expected_a[0], atol=1e-3)
    sure = strongest(couplings["em"][r])
    print(
        f"iterations {r}: active",
        *(f"{a:.2f}" for a in active.reshape(-1)),
        f"strongest {sure:.0%}",
    )

# %% [markdown]
# The picture: each capsule in the colours of its parents, mixed as the couplings say. Capsules without
# ink are pale.

# %%
colours = np.array([to_rgb(ROLES[role]) for role in ("input", "kernel", "output")])
figure, panels = page(1 + len(ITERATIONS), rows=2, width=2.2, height=2.3)
digit, growth = panels[0], panels[1 + len(ITERATIONS)]
heat(digit, pixels(X[0, 0, :, :, 0]), "input", "the digit")
shade = np.where(ink, 1, 0.15)[:, None]
maps = iter(axes for axes in panels if axes not in (digit, growth))
for (kind, found), style in zip(couplings.items(), ("o-", "s--")):
    for r, c in found.items():
        mixed, axes = 1 - shade * (1 - c.T @ colours), next(maps)
        axes.imshow(mixed.clip(0, 1).reshape(H, H, 3), interpolation="nearest")
        axes.set(title=f"{kind}, {r}", xticks=[], yticks=[])
    growth.plot(list(found), [strongest(c) for c in found.values()], style, label=kind)
growth.set(title="strongest parent", xlabel="iterations", ylim=(0, 1.05), xticks=ITERATIONS)
growth.legend(frameon=False, fontsize=7)
lesson.show(
    figure, "couplings", "couplings over the iterations, dynamic and EM, one colour a parent"
)

# %% [markdown]
# ## No vote is stored
#
# Logits are sums of scalar products, so b = u v_1 + u v_2 + ... = u (v_1 + v_2 + ...). For its couplings a
# child needs its vote and the sum of the parents so far; nothing has to be kept for each child:

# %%
so_far = parents[1] + parents[2]
again = routing.softmax(np.einsum("ije,je->ij", votes[0], so_far))
assert np.allclose(again.T, couplings["dynamic"][3], atol=1e-5)
print(
    "couplings of the third iteration from the sum of the first two iterations' parents: the same"
)

# %% [markdown]
# So a pass computes a child's votes, uses them, and forgets them. The algorithm `stored` writes the votes first and reads them in
# every pass. Otherwise both run the same kernels at this precision. With as few children as here one block takes a position, so a
# single kernel does all passes (`numbacaps/routing/whole.py`). Counted here for a small batch, the digit and its shifts, is what
# each kernel must bring from memory once and take there; what it reads again, as votes in later passes, may come from a cache:

# %%
batch = np.concatenate([np.roll(X, shift, axis=3) for shift in range(4)])
counted = {}
for algorithm in ("stored", "fused"):
    with watching({}) as launches:
        capsule_routing(batch, kernel, algorithm=algorithm, **how)
    counted[algorithm] = sectors(launches, READ), sectors(launches, WRITE)
    kernels = sum("whole" in launch.kernel.__name__ for launch in launches)
    memories = {memory.name for launch in launches for memory in launch.memories}
    has = "votes" in memories
    print(
        f"{algorithm}: {kernels} kernel for all passes; votes in memory: {'yes' if has else 'no'}"
    )
    print("  sectors of 32 bytes from memory {}, to memory {}".format(*counted[algorithm]))
    assert has == (algorithm == "stored")
assert all(fused < stored for fused, stored in zip(counted["fused"], counted["stored"]))

# %% [markdown]
# In published networks the votes outgrow all else:

# %%
for name in ("digitcaps-128", "em-conv1-64", "em-conv2-64"):
    workload = WORKLOADS[name]
    runner = Runner(workload.geometry, np.dtype(np.float32), workload.options)
    operands, stored = workload.nbytes("forward"), runner.votes_nbytes()
    print(f"{name}: operands {operands / 1e6:.1f} MB, votes {stored / operands:.0f} times as much")
    print(" ", runner.explain().splitlines()[-1])
    assert stored > 5 * operands

# %% [markdown]
# ## Exercises
#
# Write `couplings_of(b)` in NumPy: the couplings c of logits b, both (children, parents).
# Large logits must not overflow.


# %%
def couplings_of(b):
    """Array (children, parents)."""
    return ...


check(couplings_of)

# %% [markdown]
# Write `vote_bytes(g, iterations)`: the bytes of float32 votes that move in a forward pass of a geometry where they are stored,
# and no cache holds them: they are written, and each pass reads them.


# %%
def vote_bytes(g, iterations):
    """Bytes, a whole number."""
    return ...


check(vote_bytes)
