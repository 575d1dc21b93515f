"""The page: its values are the kernels', it lights what the reference says, it is written whole.

What a page does when it is pointed at is tried in a headless Chromium; what a lecture needs of it is in
``test_page_lecture.py``, what it tells besides the stages in ``test_page_sections.py``.
"""

import base64
import os
import re
import sys

import numpy as np
import pytest

import reference
from experiments.measuring.provenance import ROOT
from experiments.walk import __main__ as command
from experiments.walk import trace as tracing
from experiments.walk.page import make, sources, variants, write
from experiments.walk.page.errata import ERRATA
from experiments.walk.pictures.canvas import ROLES
from experiments.walk.records import Trace
from experiments.walk.watch import READ, WRITE
from numbacaps.stages import STAGES
from tests.support.page import SMALL, hover

pytestmark = pytest.mark.slow

# ---- what is in the file


def values(array):
    """An array of the page's data."""
    steps = np.frombuffer(base64.b64decode(array["values"]), "<i2")
    return (steps / 32767 * array["scale"]).reshape(array["shape"])


def test_values_are_those_that_the_kernels_wrote(data, trace):
    run = data["runs"][0]
    assert set(run["arrays"]) == set(trace.operands)
    for name, operand in trace.operands.items():
        shown = run["arrays"][name]
        assert shown["axes"] == operand.axes.split(", ") and values(shown).shape == operand.shape
        np.testing.assert_allclose(values(shown), operand.array, atol=shown["scale"] / 32767)


def test_counts_are_those_of_the_kernels(data, trace):
    for record in trace.stages:
        for told, launch in zip(data["runs"][0]["launches"][record.name], record.launches):
            assert told["kernel"] == launch.kernel.__name__
            for kind, word in ((READ, "read"), (WRITE, "write")):
                count = sum(memory.get(word, {"count": 0})["count"] for memory in told["memories"])
                assert count == launch.count(kind, False) + launch.count(kind, True)
    forward = data["runs"][0]["algorithms"]["indexed"]["forward"][0]
    writes = {
        memory["name"]: memory["write"] for memory in forward["memories"] if "write" in memory
    }
    assert writes["O"]["count"] == trace.operands["O"].array.size and len(writes) == 1


def test_every_stage_is_told(data, page):
    assert [stage["name"] for stage in data["stages"]] == list(STAGES)
    for stage in data["stages"]:
        told = STAGES[stage["name"]]
        assert (stage["paper"], stage["where"], stage["formula"]) == (
            told.paper,
            told.where,
            told.formula,
        )
        for launch in data["runs"][0]["launches"][stage["name"]]:
            assert "cuda" in data["kernels"][launch["kernel"]]
        assert '<span class="k">for</span>' in data["references"][stage["reference"]]
    for colour in ROLES.values():
        assert colour in page.read_text()


def test_runs_differ_as_the_sliders_say(data):
    moves = [(run["stride"], run["window"]) for run in data["runs"]]
    assert moves == [
        ([1, 2], [2, 2]),
        ([1, 2], [3, 3]),
        ([2, 2], [2, 2]),
        ([2, 2], [3, 3]),
    ]
    for run in data["runs"]:
        assert run["geometry"]["stride"] == run["stride"]
        assert all(error <= tolerance for error, tolerance in run["checks"].values())


def test_one_small_file_without_a_network(page):
    text = page.read_text()
    assert page.stat().st_size < write.MOST_BYTES and "{{" not in text.split("<script", 1)[0]
    assert not re.search(r"(src|href)=[\"'](?!data:)", text)
    assert "http:" not in text and "https:" not in text and "@import" not in text


def test_errata_are_those_of_the_reference():
    table = (
        (ROOT / "reference" / "README.md")
        .read_text()
        .split("## What the paper writes, and what holds")[1]
    )
    for erratum in ERRATA:
        assert f"| {erratum.where} | {erratum.writes} | {erratum.holds} |" in table
        assert erratum.stages and set(erratum.stages) <= set(STAGES)


def test_data_cannot_end_its_script():
    text = write.html({"kernels": "</script><b>"}, "a < b")
    assert "<\\/script><b>" in text and "<title>a &lt; b</title>" in text


# ---- what is refused


def refused(arguments, capsys):
    """The one line with which a command line is refused."""
    with pytest.raises(SystemExit) as stopped:
        command.main(arguments)
    assert stopped.value.code == 2
    captured = capsys.readouterr()
    assert not captured.out and captured.err.count("\n") == 1
    return captured.err


@pytest.mark.parametrize("name", ["absent/walk.html", "", "file/walk.html"])
def test_unwritable_path_is_refused_before_any_work(tmp_path, capsys, monkeypatch, name):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setattr(command, "walk", None)
    message = refused([*SMALL, "--html", str(tmp_path / name)], capsys)
    assert "--html got" in message and str(tmp_path) in message and "it takes" in message
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_too_large_for_the_page_is_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(command, "walk", None)
    arguments = ["--sizes", "a=2,b=2,c=2", "--stride", "1", "--html", str(tmp_path / "walk.html")]
    message = refused(arguments, capsys)
    assert "--crop got 28,28" in message and f"{variants.MOST_VALUES:,} values" in message
    assert "try --crop 14,14" in message and not list(tmp_path.iterdir())


def test_unreadable_image_is_refused(tmp_path, capsys):
    (tmp_path / "text.png").write_text("no picture")
    arguments = ["--image", str(tmp_path / "text.png"), "--html", str(tmp_path / "walk.html")]
    assert "--image got" in refused(arguments, capsys)
    assert [path.name for path in tmp_path.iterdir()] == ["text.png"]


def test_absent_pygments_is_named_with_its_extra(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "pygments", None)
    message = refused([*SMALL, "--html", str(tmp_path / "walk.html")], capsys)
    assert "pygments" in message and "'page'" in message and not list(tmp_path.iterdir())


def test_a_write_that_fails_leaves_nothing(tmp_path, monkeypatch):
    def full(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(ValueError, match=r"--html got .*No space left"):
        write.write("page", tmp_path / "walk.html")
    assert not list(tmp_path.iterdir())


def test_a_page_above_the_limit_is_refused(tmp_path):
    with pytest.raises(ValueError, match="4,000,000"):
        write.write("x" * (write.MOST_BYTES + 1), tmp_path / "walk.html")
    assert not list(tmp_path.iterdir())


def test_a_failed_walk_makes_no_page(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(tracing.stages, "output_reduce", lambda slab, products, out: None)
    assert command.main([*SMALL, "--html", str(tmp_path / "walk.html")]) == 1
    assert not list(tmp_path.iterdir())


def test_a_failed_run_beside_it_makes_no_page(tmp_path, monkeypatch, trace):
    failed = Trace(trace.plan, "", True, {}, (), ())
    monkeypatch.setattr(Trace, "failed", property(lambda self: self is failed))
    monkeypatch.setattr(make, "walk", lambda plan, watch: failed)
    with pytest.raises(ArithmeticError, match="no page written"):
        make.make(trace.plan, trace, tmp_path / "walk.html", lambda doing: None)
    assert not list(tmp_path.iterdir())


def test_on_a_gpu_the_page_is_made_on_the_simulator(tmp_path, capsys, monkeypatch):
    runs = []
    monkeypatch.setattr(command, "SIMULATED", False)
    monkeypatch.setattr(command.subprocess, "run", lambda words, **how: runs.append((words, how)))
    arguments = [*SMALL, "--algorithm", "indexed", "--html", str(tmp_path / "walk.html")]
    assert command.main(arguments) == 0
    ((words, how),) = runs
    assert words[:3] == [sys.executable, "-m", "experiments.walk"]
    assert words[3 : 3 + len(arguments)] == arguments and how["check"]
    assert how["env"]["NUMBACAPS_TARGET"] == "sim"


def test_sources_lose_their_docstring_alone():
    text = re.sub("<[^>]+>", "", sources.coloured(reference.input_extend))
    assert "extended[n, p] = columns[n]" in text and "Parameters" not in text


# ---- what is lit: the reference's word

MOVES = ((1, 2), (1, 0), (1, 1))  # of SMALL
STEPS = {
    "I_flat": (("I",), lambda a: reference.capsule_im2col(a["I"], (2, 2), *MOVES)),
    "I'": (("I_flat",), lambda a: reference.input_extend(a["I_flat"], 2)),
    "K'": (("K",), lambda a: reference.kernel_extend(a["K"], 10)),
    "O'": (
        ("I'", "K'"),
        lambda a: reference.strided_batched_matrix_multiply(a["I'"], a["K'"]),
    ),
    "O": (("O'",), lambda a: reference.output_reduce(a["O'"], 5, 2)),
    "dO'": (("dO",), lambda a: reference.output_extend(a["dO"], 4)),
    "dK'": (
        ("I'", "dO'"),
        lambda a: reference.strided_batched_matrix_multiply(a["I'"], a["dO'"], transpose_a=True),
    ),
    "dK": (("dK'",), lambda a: reference.kernel_reduce(a["dK'"], 1, 2, 2)),
    "dI'": (
        ("dO'", "K'"),
        lambda a: reference.strided_batched_matrix_multiply(a["dO'"], a["K'"], transpose_b=True),
    ),
    "dI_flat": (("dI'",), lambda a: reference.input_reduce(a["dI'"])),
    "dI": (
        ("dI_flat",),
        lambda a: reference.capsule_col2im(a["dI_flat"], a["I"].shape, (2, 2), *MOVES),
    ),
}


def poisoned(trace, name, flat):
    """Cells that become NaN by the reference if one cell is: {array: set of flat indices}."""
    arrays = {key: operand.array.astype(np.float64) for key, operand in trace.operands.items()}
    arrays[name].reshape(-1)[flat] = np.nan
    changed = {name}
    for output, (inputs, step) in STEPS.items():
        if changed & set(inputs):
            arrays[output] = step(arrays)
            changed.add(output)
    return {key: set(np.flatnonzero(np.isnan(arrays[key]))) for key in changed}


def expected_light(trace, name, flat):
    """All that a cell feeds, and all that it was read from: every cell whose poison reaches it."""
    lit = {key: cells for key, cells in poisoned(trace, name, flat).items() if cells}
    above, todo = set(), [name]
    while todo:
        inputs = STEPS.get(todo.pop(), ((),))[0]
        todo += inputs
        above |= set(inputs)
    for source in above:
        size = trace.operands[source].array.size
        cells = {i for i in range(size) if flat in poisoned(trace, source, i).get(name, ())}
        if cells:
            lit[source] = lit.get(source, set()) | cells
    return lit


# Cells of every array whose middle no veil covers: read from the canvas, as an eye would.
LIT = """
const lit = {};
for (const [name, map] of Object.entries(walk.maps)) {
  const {veil} = map;
  const {data, width} = veil.getContext("2d").getImageData(0, 0, veil.width, veil.height);
  lit[name] = Array.from(map.X.keys()).filter((flat) => {
    const [x, y, wide, high] = map.box(flat);
    return data[4 * (Math.floor(y + high / 2) * width + Math.floor(x + wide / 2)) + 3] === 0;
  });
}
return lit;
"""


@pytest.mark.parametrize(
    "name, flat",
    [
        *(("O", 0), ("O", 61), ("I", 21), ("I_flat", 100), ("I'", 200), ("K", 17), ("K'", 300)),
        *(("O'", 250), ("dO", 33), ("dO'", 120), ("dK'", 77), ("dK", 40), ("dI'", 11)),
        *(("dI_flat", 90), ("dI", 26), ("dI", 63)),
    ],
)
def test_hovering_lights_what_the_reference_says(shown, trace, name, flat):
    driver = shown()
    hover(driver, name, flat)
    lit = {key: set(cells) for key, cells in driver.execute_script(LIT).items() if cells}
    assert lit == expected_light(trace, name, flat)


def test_the_sum_is_written_out(shown, trace):
    driver = shown()
    hover(driver, "O", 61)
    value = trace.operands["O"].array.reshape(-1)[61]
    heading = driver.find_element("css selector", "#numbers h2").text.replace("−", "-")
    assert heading.startswith("O[p 1, oh 0, ow 0 | d1 0, d3 1]")
    assert float(heading.split("= ")[1]) == pytest.approx(value, abs=2e-4)
    terms = driver.find_elements("css selector", "#numbers .sum .number")
    numbers = [float(term.text.replace("−", "-")) for term in terms]
    products = trace.operands["O'"].array.reshape(2, 10, 4, 2, 3)[1, 0, :, 0, 1]
    assert numbers[:-1] == pytest.approx(products, abs=6e-3)
    assert numbers[-1] == pytest.approx(value, abs=6e-4)


def test_keys_move_and_tab_changes_stage(shown):
    from selenium.webdriver import ActionChains, Keys

    driver = shown()
    first = driver.find_element("css selector", '[data-name="I"]')
    driver.execute_script("arguments[0].focus()", first)
    order = []
    for _ in range(14):
        focused = driver.switch_to.active_element
        order.append(focused.get_attribute("data-name"))
        assert driver.execute_script("return walk.state.pinned[0]") == order[-1]
        outline = focused.value_of_css_property("outline-style")
        assert outline == "solid" and focused.get_attribute("aria-label").startswith(order[-1])
        ActionChains(driver).send_keys(Keys.TAB).perform()
    assert order == [
        "I",
        "I_flat",
        "I'",
        "K",
        "K'",
        "O'",
        "O",
        "dO",
        "dO'",
        "dK'",
        "dK",
        "dI'",
        "dI_flat",
        "dI",
    ]

    driver.execute_script(
        "arguments[0].focus()", driver.find_element("css selector", '[data-name="I_flat"]')
    )
    spot = (
        "const [name, i] = walk.state.pinned; return [walk.maps[name].X[i], walk.maps[name].Y[i]]"
    )
    driver.execute_script("walk.state.pinned = ['I_flat', 0]")
    for keys, expected in (
        ([Keys.ARROW_RIGHT], [1, 0]),
        ([Keys.ARROW_DOWN], [1, 1]),
        ([Keys.SHIFT, Keys.ARROW_RIGHT], [3, 1]),
        ([Keys.SHIFT, Keys.ARROW_DOWN], [3, 3]),
        ([Keys.ARROW_LEFT], [2, 3]),
        ([Keys.ARROW_UP], [2, 2]),
    ):
        chain = ActionChains(driver)
        for key in keys[:-1]:
            chain.key_down(key)
        chain.send_keys(keys[-1])
        for key in keys[:-1]:
            chain.key_up(key)
        chain.perform()
        assert driver.execute_script(spot) == expected
    told = driver.find_element("css selector", "#told").get_attribute("textContent")
    assert told.startswith("I_flat[l 1, q 1 | d1 0, d2 0] is ") and "Read from: " in told
    assert "capsule_im2col" in driver.find_element("css selector", "#stage h2").text
    assert "capsule_im2col_kernel" in driver.find_element("css selector", ".own-source").text
    assert "for kh in range(KH)" in driver.find_element("css selector", ".reference-source").text
    assert "The paper writes" in driver.find_element("css selector", ".notes").text


def test_threads_are_those_that_were_counted(shown, trace):
    from selenium.webdriver import ActionChains

    driver = shown()
    launch = next(record for record in trace.stages if record.name == "output_reduce").launches[0]
    names = [memory.name for memory in launch.memories]
    writes = launch.of(names.index("O"), WRITE)
    block, thread = writes[writes[:, 4] == 61][0, :2]
    reads = launch.of(names.index("O'"), READ)
    mine = reads[(reads[:, 0] == block) & (reads[:, 1] == thread)]
    hover(driver, "O", 61)
    ActionChains(driver).click().perform()
    who = driver.find_element("css selector", "#threads .who").text
    assert f"Block ({block}, 0, 0), thread ({thread}, 0, 0)" in who and "writes O[p 1" in who
    rows = [row.text for row in driver.find_elements("css selector", ".accesses tbody tr")]
    requests, moved, fewest, _ = launch.transactions(names.index("O'"), READ)
    ratio = "coalesced" if moved / fewest < 1.05 else f"{moved / fewest:.1f} × the fewest"
    assert (
        rows[0] == f"O' global reads {len(mine)} {len(reads)} {requests} {moved} / {fewest} {ratio}"
    )
    totals = driver.find_element("css selector", ".totals").text
    assert all(name in totals for name in ("naive", "staged", "indexed", "the fewest"))
    figures = driver.find_elements("css selector", ".strips figcaption")
    assert str(mine[0, 4]) in figures[0].text


def test_sliders_choose_a_run(shown, data):
    from selenium.webdriver import Keys

    driver = shown()
    driver.find_element("css selector", "#window").send_keys(Keys.ARROW_RIGHT)
    assert driver.execute_script("return walk.state.run") == 1
    assert driver.find_element("css selector", "#window + output").text == "3 × 3"
    shapes = driver.find_element("css selector", "#stage .shapes").text
    shape = ", ".join(map(str, data["runs"][1]["arrays"]["O"]["shape"]))
    assert f"O (N, P, OH, OW, G, D1, D3) = ({shape})" in shapes
    assert driver.find_element("css selector", "#sizes").get_attribute("disabled")


@pytest.mark.parametrize("size", [(1280, 720), (390, 844)])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_fits_in_both_schemes(shown, size, scheme):
    driver = shown(*size, scheme)
    assert driver.execute_script("return document.documentElement.scrollWidth") <= size[0]
    background = driver.find_element("tag name", "body").value_of_css_property("background-color")
    brightness = sum(map(int, re.findall(r"\d+", background)[:3]))
    assert (brightness > 600) == (scheme == "light")
    corner = """const map = walk.maps.K, [x, y] = map.box(0);
        return Array.from(map.paper.getContext("2d").getImageData(x + 1, y + 1, 1, 1).data)"""
    assert driver.execute_script(corner)[3] == 255
    last = driver.find_element("css selector", '[data-name="dI"]').rect
    assert last["x"] + last["width"] <= size[0]
    if size[0] == 1280:  # all arrays are seen at once
        strip = driver.find_element("id", "strip").rect
        assert last["y"] + last["height"] - strip["y"] <= size[1]
