"""What the page tells besides the stages: the fused tile, launches, bytes, routing, the sample network."""

import csv
import math

import numpy as np
import pytest

from experiments.measuring.provenance import ROOT
from experiments.measuring.workloads import PUBLISHED
from experiments.walk import captions, network
from experiments.walk.page import launches, routed
from experiments.walk.watch import READ, WRITE
from numbacaps.fused import implicit_gemm
from numbacaps.stages import PASSES, whole
from reference.routing import dynamic_routing, routing_votes

# A browser.
pytestmark = pytest.mark.slow


def fused(trace):
    """The launch of the fused forward pass that was watched."""
    records = [
        one for one in trace.algorithms if one.name == "fused" and one.direction == "forward"
    ]
    return records[0].launches[0]


def memory(launch, name):
    return [one.name for one in launch.memories].index(name)


# ---- the fused tile


def test_a_block_loads_what_the_kernel_was_seen_to_load(shown, trace):
    driver, launch = shown(), fused(trace)
    reads = launch.of(memory(launch, "I"), READ)
    tiling = "const tiling = walk.tile.tiling; "
    assert driver.execute_script(tiling + "return tiling.blocks") == math.prod(launch.grid)
    for block in range(launch.grid[0]):
        loaded = driver.execute_script(
            tiling
            + """const {m, g} = tiling.place(arguments[0]), found = new Set();
            for (let i = 0; i < tiling.BM; i++)
              for (let k = 0; k < tiling.K; k++) found.add(tiling.pixel(m + i, k, g));
            return Array.from(found)""",
            block,
        )
        assert set(loaded) - {-1} == set(reads[reads[:, 0] == block][:, 4].tolist())


def test_shared_memory_holds_what_the_kernel_was_seen_to_put_there(shown, trace):
    driver, launch = shown(), fused(trace)
    words = driver.execute_script(
        """const tiling = walk.tile.tiling, found = {left: [], right: [], begins: tiling.begins};
        for (let k = 0; k < tiling.BK; k++) {
          for (let m = 0; m < tiling.BM; m++) found.left.push(tiling.leftWord(m, k, 0));
          for (let n = 0; n < tiling.BN; n++) found.right.push(tiling.rightWord(k, n, 0));
        }
        return found"""
    )
    for side, name, first in (("left", "a_tile", 0), ("right", "b_tile", words["begins"])):
        written = launch.of(memory(launch, name), WRITE)
        assert {word - first for word in words[side]} == set(written[:, 4].tolist())


def test_a_thread_multiplies_what_the_kernel_was_seen_to_read(shown, trace):
    driver, launch = shown(), fused(trace)
    for thread in (0, 5, 15):
        own = driver.execute_script("return walk.tile.tiling.owned(arguments[0])", thread)
        tile = {
            "rows": ("a_tile", "leftWord(i, k, 0)"),
            "columns": ("b_tile", "rightWord(k, i, 0) - tiling.begins"),
        }
        for side, (name, word) in tile.items():
            expected = driver.execute_script(
                f"""const tiling = walk.tile.tiling, found = [];
                for (let k = 0; k < tiling.BK; k++) for (const i of arguments[0]) found.push(tiling.{word});
                return found""",
                own[side],
            )
            reads = launch.of(memory(launch, name), READ)
            mine = reads[(reads[:, 0] == 0) & (reads[:, 1] == thread)]
            assert set(expected) == set(mine[:, 4].tolist())


def test_the_implicit_matrices_are_those_of_the_package(shown, trace):
    """The left matrix's elements lie where the product's table says."""
    driver, g = shown(), trace.plan.geometry
    product = implicit_gemm.forward(g)
    offset, down, across, kernel = product.table[: 4 * product.K].reshape(4, -1)
    left, right = driver.execute_script(
        """const tiling = walk.tile.tiling, left = [], right = [];
        for (let m = 0; m < tiling.M; m++)
          for (let k = 0; k < tiling.K; k++) left.push(tiling.pixel(m, k, 0));
        for (let k = 0; k < tiling.K; k++) right.push(tiling.right(k, 0, 0));
        return [left, right]"""
    )
    assert right == kernel.tolist()
    image, row, column, d1 = (step for step in product.pixels.gathered)
    expected = []
    for oh, ow, i in np.ndindex(g.OH, g.OW, g.D1):
        top, first = oh * g.stride[0] - g.padding[0], ow * g.stride[1] - g.padding[1]
        inside = (
            (top + down >= 0) & (top + down < g.H) & (first + across >= 0) & (first + across < g.W)
        )
        place = oh * row + ow * column + i * d1 + offset
        expected += np.where(inside, place, -1).tolist()
    assert left == expected


def test_stepping_over_k_adds_up_to_the_output(shown, trace):
    driver = shown()
    steps = driver.execute_script("return walk.tile.tiling.steps")
    driver.execute_script("walk.tile.choose({step: 0})")
    for _ in range(steps + 1):
        driver.find_element("css selector", "#tile .next").click()
    assert driver.execute_script("return walk.tile.at.step") == steps - 1
    sums = driver.execute_script(
        """const tiling = walk.tile.tiling, found = {};
        for (let m = 0; m < tiling.M; m++)
          for (let n = 0; n < tiling.N; n++)
            found[tiling.result(m, n, 0)] = tiling.sum(m, n, 0, tiling.steps);
        return found"""
    )
    output = trace.operands["O"].array.reshape(-1)
    assert len(sums) == output.size
    for flat, value in sums.items():
        assert value == pytest.approx(output[int(flat)], abs=2e-3)
    words = driver.find_element("css selector", "#tile .now").text
    assert f"Block {driver.execute_script('return walk.tile.at.block')} loads rows m" in words


def test_warps_of_the_tensor_cores_share_the_tile_out(shown):
    from selenium.webdriver.support.ui import Select

    driver = shown()
    Select(driver.find_element("css selector", "#tile .which")).select_by_index(1)
    assert "warp" in driver.find_element("css selector", "#tile .whose").text
    shares = driver.execute_script(
        """const tiling = walk.tile.tiling;
        return [tiling.BM * tiling.BN, Array.from({length: tiling.parts}, (_, part) => {
          const {rows, columns} = tiling.owned(part);
          return rows.flatMap((m) => columns.map((n) => m * tiling.BN + n));
        })]"""
    )
    elements = [one for share in shares[1] for one in share]
    assert len(shares[1]) > 1 and sorted(elements) == list(range(shares[0]))
    labels = [
        one.get_attribute("aria-label")
        for one in driver.find_elements("css selector", "#tile canvas")
    ]
    assert any("stage" in label for label in labels) and all(labels)


# ---- launches, bytes


def test_launches_are_grouped_and_no_two_look_alike(shown, trace):
    driver = shown()
    driver.find_element("css selector", '[data-name="dI"]').click()
    groups = driver.find_elements("css selector", "#threads optgroup")
    names = [one.get_attribute("label") for one in groups]
    assert names[0] == "the stage alone"
    assert {f"algorithm {name}, backward" for name in ("naive", "indexed", "fused")} <= set(names)
    told = []
    for name, group in zip(names, groups):
        options = group.find_elements("css selector", "option")
        told += [(name, one.get_attribute("textContent")) for one in options]
    assert len(set(told)) == len(told)
    assert any("rows" in words and "columns" in words for _, words in told)


def test_what_a_launch_writes_is_said_as_it_was_seen(trace):
    record = [
        one for one in trace.algorithms if (one.name, one.direction) == ("fused", "backward")
    ][0]
    written = []
    for launch in record.launches:
        words = launches.purpose(launch, trace.operands)
        if "dI" not in words:
            continue
        rows, columns = (
            [int(one) for one in part.split(", ")]
            for part in words.split("rows ")[1].split(" and columns ")
        )
        shape = trace.operands["dI"].shape
        seen = launch.of(memory(launch, "dI"), WRITE)[:, 4]
        index = np.unravel_index(seen, shape)
        assert (set(index[2]), set(index[3])) == (set(rows), set(columns))
        written += seen.tolist()
    assert sorted(written) == list(range(trace.operands["dI"].array.size))


def test_bars_of_bytes_have_one_scale(shown):
    driver = shown(1280, 720)
    bars = driver.execute_script("""
        return Array.from(document.querySelectorAll(".totals tbody tr"), (row) => [
          parseInt(row.querySelector(".bars > span").textContent.replaceAll(",", "")),
          Array.from(row.querySelectorAll(".part"), (part) => part.getBoundingClientRect().width)
        ])""")
    assert (
        len(bars) >= 4 and max(len(parts) for _, parts in bars) == 5
    )  # of the paper's five stages
    scales = [sum(parts) / size for size, parts in bars]
    assert max(scales) / min(scales) < 1.1


# ---- routing


def test_couplings_are_the_references(data, trace):
    told, g = data["routing"], trace.plan.geometry
    columns = trace.operands["I_flat"].array[0, told["positions"]].astype(np.float64)
    votes, _ = routing_votes(
        columns.reshape(-1, g.C, g.KH, g.KW, g.G, g.D1, g.D2),
        trace.operands["K"].array.astype(np.float64),
    )
    for place, of_position in enumerate(told["couplings"]):
        assert len(of_position) == routed.ITERATIONS
        for iterations, couplings in enumerate(of_position, start=1):
            v, c = dynamic_routing(votes[place], iterations)
            np.testing.assert_allclose(couplings, c[0].T, atol=1e-4)
            lengths = told["lengths"][place][iterations - 1]
            np.testing.assert_allclose(lengths, np.linalg.norm(v[0], axis=-1), atol=1e-4)


def test_wrong_couplings_are_refused(trace, monkeypatch):
    monkeypatch.setattr(routed, "dynamic_routing", lambda votes, n: dynamic_routing(votes, n + 1))
    with pytest.raises(ArithmeticError, match="couplings are .* off the reference"):
        routed.routed(trace)


def test_routing_follows_the_iterations(shown, data):
    driver = shown(1280, 720)
    driver.execute_script("walk.routing.choose(5)")
    place = driver.execute_script("return walk.routing.place")
    last = data["routing"]["couplings"][place][-1]
    values = [one.text for one in driver.find_elements("css selector", "#routing .children .value")]
    expected = [f"{last[p][q]:.2f}" for q in range(len(last[0])) for p in range(len(last))]
    assert [float(one) for one in values] == pytest.approx(
        [float(one) for one in expected], abs=0.011
    )
    assert "iteration 5" in driver.find_element("css selector", "#routing .now").text
    assert len(driver.find_elements("css selector", "#routing .curve")) == len(last) * len(last[0])


# ---- the sample network


def test_the_networks_times_are_those_of_the_csv(shown, data):
    driver = shown(1280, 720)
    told = data["network"]
    path = ROOT / "experiments" / "results" / told["gpu"] / "table1.csv"
    with open(path, newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["pass"] == "forward"]
    for layer in told["layers"]:
        g = PUBLISHED[layer["name"]]
        assert (layer["OH"], layer["P"], layer["D1"], layer["D3"]) == (g.OH, g.P, g.D1, g.D3)
        assert layer["least"] == g.min_bytes(4)
        assert layer["staged"] == sum(whole(g).traffic(one, 4)[0] for one in PASSES["forward"])
        for line, ms in layer["ms"].items():
            algorithm, _, precision = line.partition(", ")
            fits = [
                float(row["ms_p50"])
                for row in rows
                if (row["workload"], row["algorithm"], row["precision"])
                == (layer["name"], algorithm, precision or "ieee")
                and (row["layout"], row["dtype"]) == ("capsule", "float32")
            ]
            assert fits == [ms]
    words = driver.find_element("css selector", "#network .where").text
    assert told["gpu"] in words and told["date"] in words
    assert told["current"] or "changed since" in words
    assert len(driver.find_elements("css selector", "#network .volume")) == 6


def test_a_network_without_rows_has_no_times(monkeypatch, tmp_path):
    monkeypatch.setattr(network, "_RESULTS", tmp_path / "table1.csv")
    told = network.network()
    assert [layer["ms"] for layer in told["layers"]] == [{}] * 5


def test_captions_have_the_runs_numbers(data, trace):
    for record in trace.stages:
        words = data["runs"][0]["captions"][record.name]
        assert words.startswith(record.where) and "{" not in words
    g = trace.plan.geometry
    assert f"the {g.Q} capsules under a window" in captions.caption(trace.stages[0], g)
