# %% [markdown]
# # What decides speed
#
# This lesson times nothing: without a GPU times mean nothing. It reads what was recorded on one, and asks of
# each row why it took so long.

# %%
import numpy as np

from experiments.lessons import recorded
from experiments.lessons.course import check, open_lesson
from experiments.lessons.drawing import bars, page
from experiments.walk.pictures.canvas import ROLES
from numbacaps import Geometry
from numbacaps.device.gpu import H100
from numbacaps.device.launch import ceil_div
from numbacaps.fused.rung_3_register_tiles.tile import Tile

lesson = open_lesson(9)
layers = [
    row
    for row in recorded.rows("table1", pass_="forward", layout="capsule")
    if row["workload"] in [f"layer {i}" for i in range(1, 6)] and row["ms_p50"]
]
dates = sorted(row["timestamp"][:10] for row in layers)
print(f"{len(layers)} rows of the published network's layers, batch {layers[0]['N']}")
print(f"{recorded.GPU}, measured {dates[0]} to {dates[-1]}")

# %% [markdown]
# ## Two floors
#
# A pass has to move its bytes, and to do its arithmetic. A large copy and a large matrix product were measured in the same
# run: they say how fast the GPU does either. So there are two floors, and no time can be below the
# larger one.

# %%
ours = [row for row in layers if row["algorithm"] == "fused" and row["precision"] == "ieee"]
print(f"copy {ours[0]['copy_gbs']:.0f} GB/s, SGEMM {ours[0]['sgemm_tflops']:.1f} TFLOP/s")
print("fused, float32:    us   bytes' floor   FLOP's floor   of the larger")
for row in ours:
    of_bytes = row["min_bytes"] / row["copy_gbs"] / 1e6
    of_flop = row["gflop"] / row["sgemm_tflops"]
    share = max(of_bytes, of_flop) / row["ms_p50"]
    binds = "bytes" if of_bytes > of_flop else "FLOP"
    times = (1e3 * ms for ms in (row["ms_p50"], of_bytes, of_flop))
    print(
        "{:>14} {:6.1f} {:14.1f} {:14.1f}".format(row["workload"], *times), f"{share:8.0%} {binds}"
    )
    assert share < 1

# %% [markdown]
# None is at its floor. Tensor cores have a floor of their own, below the SGEMM's: with them a pass may take less time than
# the FLOP's floor of float32 says.

# %%
on_tensor_cores = [
    row for row in layers if row["algorithm"] == "fused" and row["precision"] == "tf32"
]
below = [row for row in on_tensor_cores if row["flop_fraction"] > 1]
print(f"{len(below)} of {len(on_tensor_cores)} layers in TF32 are below the SGEMM's floor")
print(f"none is below the bytes' floor: {max(row['byte_fraction'] for row in layers):.0%} at most")
assert below and all(row["byte_fraction"] < 1 for row in layers)

# %% [markdown]
# ## The ladder
#
# The rungs of the fused kernels, on a wider layer. Each is closer to the floor of its bytes.

# %%
names = {
    "direct": "1 direct",
    "shared_tiles": "2 shared tiles",
    "register_tiles": "3 register tiles",
    "wgmma": "4 tensor cores",
    "bulk_wgmma": "5 producer and consumers",  # as older rows call it
    "warp_specialized": "5 producer and consumers",
}
ladder = {}
for row in recorded.rows("rungs", pass_="forward", algorithm="fused"):
    if row["precision"] != "tf32x3":
        ladder[names[row["stage"]]] = row["ms_p50"]
        print(f"{names[row['stage']]:>25}: {row['ms_p50']:8.3f} ms, {row['byte_fraction']:.1%}")
assert list(ladder.values()) == sorted(ladder.values(), reverse=True)

# %% [markdown]
# The paper's stages show the other side. Each moves its bytes almost as fast as a copy does, and their sum is slow
# all the same: there are too many bytes.

# %%
stages = [
    row
    for row in recorded.rows("stages", workload="em", pass_="forward", algorithm="staged")
    if row["stage"]
]
for row in stages:
    print(
        f"{row['stage']:>24}: {row['ms_p50']:6.3f} ms, {row['byte_fraction']:.0%} of a copy's rate"
    )
together = sum(row["ms_p50"] for row in stages)
print(f"together {together:.1f} ms, rung 5 {ladder[names['bulk_wgmma']]:.3f} ms")
assert together > 100 * ladder[names["bulk_wgmma"]]

# %% [markdown]
# ## How full is the GPU?
#
# A kernel's blocks are handed out to the multiprocessors. Several are resident at once, as many as
# registers and shared memory allow: that is *occupancy*. When all places are taken, the
# rest waits for the next wave. What shared memory allows, for a tile of rung three:

# %%
tile = Tile(64, 64, 8, 4, 4)
by_shared = H100.shared_bytes // tile.shared_bytes(4)
print(f"{tile}: {tile.threads} threads, {tile.shared_bytes(4)} bytes of shared memory")
print(f"shared memory has room for {by_shared} blocks on a multiprocessor")
print("registers allow, by what a thread takes:")
for registers in (32, 64, 128):
    print(f"  {registers:>3} registers: {H100.registers // (registers * tile.threads)} blocks")

# %% [markdown]
# And how many blocks are there? With one block on each multiprocessor, the share of places that are taken:

# %%
for row in ours:
    sizes = [int(row[name]) for name in ("N", "C", "P", "H", "W", "KH", "KW")]
    sizes += [int(row[name]) for name in ("G", "D1", "D2", "D3")]
    M, N, _ = Geometry(*sizes, stride=int(row["stride"])).gemm
    blocks = ceil_div(M, tile.BM) * ceil_div(N, tile.BN)
    waves = ceil_div(blocks, H100.multiprocessors)
    taken = blocks / (waves * H100.multiprocessors)
    print(f"{row['workload']}: {blocks:>4} blocks, {waves} waves, {taken:.0%} of the places taken")

# %% [markdown]
# ## The host
#
# Somebody has to launch it all. What a call costs the host is recorded, too. Where that is more than the GPU's time, the
# GPU waits for the host, unless the calls are captured once into a CUDA graph and replayed.

# %%
waits = [row for row in layers if row["host_us"] > 1e3 * row["ms_p50"]]
print(f"{len(waits)} of {len(layers)} rows take the host longer than the GPU")
for algorithm in ("torch_net", "torch_net_graph", "capsnet"):
    rows = recorded.rows("table1", pass_="net_forward", algorithm=algorithm, precision="tf32")
    row = min(rows, key=lambda row: row["ms_p50"])
    times = f"GPU {1e3 * row['ms_p50']:6.1f} us, host {row['host_us']:6.1f} us"
    print(f"whole network by {algorithm:>15}: {times}  {row['note']}")

# %%
figure, (roof, rungs, hosts) = page(3, width=4.2)
copy, sgemm = ours[0]["copy_gbs"], ours[0]["sgemm_tflops"]
intensity = np.geomspace(0.5, 500, 50)
roof.plot(intensity, np.minimum(intensity * copy / 1e3, sgemm), color="black", label="floors")
for algorithm, precision, role in (
    ("naive", "ieee", "gradient"),
    ("staged", "ieee", "product"),
    ("fused", "ieee", "input"),
    ("fused", "tf32", "output"),
):
    points = [r for r in layers if (r["algorithm"], r["precision"]) == (algorithm, precision)]
    xs = [r["gflop"] * 1e9 / r["min_bytes"] for r in points]
    ys = [r["gflop"] / r["ms_p50"] for r in points]
    roof.plot(xs, ys, "o", color=ROLES[role], label=f"{algorithm}, {precision}")
roof.set(xscale="log", yscale="log", title="roofline of the layers", ylabel="TFLOP/s")
roof.set(xlabel="FLOP a byte that must move")
roof.set_ylim(top=3000)
roof.legend(frameon=False, fontsize=7, loc="upper left")
bars(rungs, ladder, "input", "the ladder", "ms", logarithmic=True)
for row in layers:
    role = "output" if row["algorithm"] == "fused" else "product"
    hosts.plot(1e3 * row["ms_p50"], row["host_us"], ".", color=ROLES[role])
ends = [min(1e3 * row["ms_p50"] for row in layers), max(row["host_us"] for row in layers)]
hosts.plot(ends, ends, color="black", lw=1)
hosts.set(xscale="log", yscale="log", title="host and GPU (fused: green)")
hosts.set(xlabel="GPU, us", ylabel="host, us")
lesson.show(figure, "speed", "a roofline, the ladder's times, the host's time beside the GPU's")

# %% [markdown]
# ## Exercises
#
# Write `floor_ms(gflop, nbytes, copy_gbs, sgemm_tflops)`: the milliseconds that no pass can be below. `check` takes
# recorded rows.


# %%
def floor_ms(gflop, nbytes, copy_gbs, sgemm_tflops):
    """Milliseconds."""
    return ...


check(floor_ms)

# %% [markdown]
# Write `places_taken(blocks, multiprocessors, resident)`: the share of places that are taken, over all waves, if each multiprocessor has
# room for `resident` blocks, and all blocks take equally long.


# %%
def places_taken(blocks, multiprocessors, resident):
    """A share, at most 1."""
    return ...


check(places_taken)
