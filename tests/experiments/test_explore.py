"""The explorer: its rows are the CSVs', its marks follow what is chosen, and nothing is fetched.

What the page does is tried in a headless Chromium, as in ``test_page.py``.
"""

import json
import re
import shutil
import sys
import time
from importlib.util import find_spec

import pytest

from experiments.explore import __main__ as command
from experiments.explore import gather, page
from experiments.measuring import provenance, records, sources
from tests.support.browser import open_chromium

_ABSENT = find_spec("vl_convert") is None
pytestmark = [
    pytest.mark.slow,  # which make test-all runs: it installs the extra
    pytest.mark.skipif(_ABSENT, reason="the extra 'explore' is not installed"),
]
GEOMETRY = dict.fromkeys(records.GEOMETRY, 1) | {"N": 8, "C": 2, "P": 2, "H": 8, "W": 8}
MS = {"fused": 1.0, "torch_fold": 2.0}


def row(workload, algorithm, ms, **cells):
    """A row of today's kernels."""
    common = {"experiment": "mine", "workload": workload, "algorithm": algorithm, "pass": "forward"}
    common |= {"layout": "capsule", "precision": "ieee", "dtype": "float32", "gpu": "Card A"}
    common |= {"timestamp": "2026-01-02T03:04:05+00:00", "kernel_sources": sources.NO_KERNELS}
    common |= {"gpu_uuid": "GPU-1", "driver": "580.1", "gflop": 1.5, "byte_fraction": 0.25}
    common |= {"ms_p20": 0.9 * ms, "ms_p50": ms, "ms_p80": 1.2 * ms}
    return GEOMETRY | common | cells


def swept(factor=1.0, **cells):
    """A sweep of the window by two algorithms at two precisions."""
    return [
        row("windows", name, factor * ms * window * (0.5 if precision == "tf32" else 1), **cells)
        | {"KH": window, "KW": window, "precision": precision}
        for window in (1, 3, 5)
        for name, ms in MS.items()
        for precision in ("ieee", "tf32")
    ]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Two GPUs' folders; the first has rows of two dates, the later of which have older kernels."""
    folder = tmp_path_factory.mktemp("results")
    old = {"kernel_sources": "0123456789abcdef", "timestamp": "2026-01-03T03:04:05+00:00"}
    later = swept(2.0, **old, **{"pass": "backward_input"})
    single = [row("one", name, ms) for name, ms in MS.items()]
    records.write(folder / "A" / "mine.csv", swept() + later + single)
    records.write(folder / "B" / "mine.csv", swept(4.0, gpu="Card B", gpu_uuid="GPU-2"))
    failed = {"ms_p20": "", "ms_p50": "", "ms_p80": "", "note": "out of memory: too much"}
    records.write(folder / "B" / "memory.csv", [row("em", "naive", 1.0) | failed])
    cards = [line | {"gpu_uuid": f"GPU-{line['KH']}"} for line in swept() if line["KH"] < 5]
    cards += [line | {"KH": 7, "KW": 7, "gpu_uuid": "GPU-1"} for line in swept() if line["KH"] == 5]
    records.write(folder / "B" / "cards.csv", cards)
    many = [row(f"seed 1, {i}", "fused", 1.0, gflop=1.0 + i) for i in range(60)]
    records.write(folder / "B" / "drawn_speed.csv", many)
    (folder / "B" / "host.csv").write_text("a,b\n1,2\n")
    return folder


@pytest.fixture(scope="module")
def written(results, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "explore.html"
    assert command.main([str(results), "--html", str(path)]) == 0
    return path


def refused(capsys, *arguments):
    """The one line with which a command line is refused."""
    with pytest.raises(SystemExit) as stopped:
        command.main(list(map(str, arguments)))
    assert stopped.value.code == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    return message


# ---- what is in the file


def test_every_row_is_there_with_its_state(results):
    found = gather.rows(gather.csvs([results]))
    assert len(found) == 111
    assert [row["state"] for row in found].count(gather.OLDER) == 12
    assert {(row["run"], row["file"]) for row in found} == {
        *(("A", "mine"), ("B", "cards"), ("B", "mine"), ("B", "memory"), ("B", "drawn_speed"))
    }
    packed = gather.contents(found)["columns"]
    words = packed["algorithm"]["words"]
    assert [words[at] for at in packed["algorithm"]["at"]] == [row["algorithm"] for row in found]
    assert packed["ms_p50"] == [row["ms_p50"] for row in found] and None in packed["ms_p50"]


def test_a_prediction_is_one(tmp_path):
    records.write(tmp_path / "mine.csv", [row("one", "fused", 1.0, note="prediction: by bytes")])
    assert gather.rows(gather.csvs([tmp_path]))[0]["state"] == gather.PREDICTION


def test_folders_of_one_name_are_told_apart(results, tmp_path):
    shutil.copytree(results / "A", tmp_path / "A")
    runs = set(gather.csvs([results / "A", tmp_path]).values())
    assert runs == {str(results / "A"), str(tmp_path / "A")}
    assert set(gather.csvs([results / "A" / "mine.csv"]).values()) == {"A"}
    assert len(gather.csvs([results, results / "A"])) == 5


def test_one_small_file_that_may_fetch_nothing(written):
    text = written.read_text()
    assert written.stat().st_size < page.MOST_BYTES and "default-src 'none'" in text
    own = text.replace(page.require_library().javascript_bundle(), "")
    assert not re.search(r"<(?:script|link|img)[^>]*(?:src|href)=[\"'](?!data:)", own)
    assert "University of Washington Interactive Data Lab" in text and "Mike Bostock" in text


def test_the_same_bytes_again(results, written, tmp_path):
    assert command.main([str(results), "--html", str(tmp_path / "again.html")]) == 0
    assert (tmp_path / "again.html").read_bytes() == written.read_bytes()


def test_the_committed_results_fit(tmp_path, capsys):
    assert command.main(["--html", str(tmp_path / "explore.html")]) == 0
    told = capsys.readouterr().out
    assert f"of {len(provenance.measured())} folders" in told
    assert (tmp_path / "explore.html").stat().st_size < page.MOST_BYTES


def test_what_cannot_be_used_is_refused(results, tmp_path, capsys, monkeypatch):
    assert "FOLDER got" in refused(capsys, tmp_path)
    assert "FOLDER got" in refused(capsys, tmp_path / "absent")
    (tmp_path / "file").write_text("")
    message = refused(capsys, results, "--html", tmp_path / "file" / "explore.html")
    assert "--html got" in message
    text = (results / "A" / "mine.csv").read_text()
    (tmp_path / "mine.csv").write_text(text.replace(",1.5,", ",fast,", 1))
    assert "column gflop" in refused(capsys, tmp_path)
    monkeypatch.setattr(page, "MOST_BYTES", 1000)
    assert "at most 1,000" in refused(capsys, results, "--html", tmp_path / "explore.html")
    assert not (tmp_path / "explore.html").exists()


def test_absent_library_is_named_with_its_extra(results, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    message = refused(capsys, results, "--html", tmp_path / "explore.html")
    assert "'explore'" in message and not list(tmp_path.iterdir())


# ---- in the browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """A headless Chromium that saves to a folder."""
    driver = open_chromium("window-size=1400,1000")
    driver.saved = tmp_path_factory.mktemp("saved")
    driver.execute_cdp_cmd(
        "Browser.setDownloadBehavior",
        {"behavior": "allow", "downloadPath": str(driver.saved)},
    )
    yield driver
    driver.quit()


@pytest.fixture
def shown(browser, written):
    """Opens the page anew with choices; at the end its console must be empty."""

    def open_page(**choices):
        browser.get("about:blank")
        browser.get(f"{written.as_uri()}#{json.dumps(choices)}")
        drawn(browser)
        return browser

    yield open_page
    assert browser.get_log("browser") == []


def until(found, seconds=10):
    """What a function returns once it is true."""
    end = time.monotonic() + seconds
    while not (value := found()):
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.05)
    return value


def drawn(browser):
    """What is drawn, settled: the points' values by what they are."""
    script = """
      const drawing = document.querySelector('#drawing');
      if (drawing.textContent.startsWith('Nothing')) return [];
      if (!view || !drawing.querySelector('svg')) return null;
      return [...drawing.querySelectorAll('.mark-symbol.role-mark path')].map((mark) => {
        const datum = mark.__data__.datum;
        return [datum.name, datum.precision, datum.pass, datum.run, String(datum.x), datum.y, datum.state];
      });"""
    until(lambda: browser.execute_script(script) is not None)
    return browser.execute_script(script)


def choose(browser, name, value):
    """Choose an option of a select, and wait until it is drawn."""
    select = browser.find_element("id", name)
    browser.execute_script("window.before = view")
    select.find_element("css selector", f"option[value='{value}']").click()
    until(lambda: browser.execute_script("return view !== before"))
    return drawn(browser)


def click(browser, name):
    browser.execute_script("window.before = view")
    browser.find_element("id", name).click()
    until(lambda: browser.execute_script("return view !== before"))
    return drawn(browser)


def values(points, name, precision="ieee", **where):
    """The values of an algorithm's points by their place on the axis."""
    order = ("name", "precision", "pass", "run", "x", "y", "state")
    found = [dict(zip(order, point)) for point in points]
    wanted = {"name": name, "precision": precision, "pass": "forward", "run": "A"} | where
    return {
        point["x"]: pytest.approx(point["y"])
        for point in found
        if all(point[key] == value for key, value in wanted.items())
    }


def test_many_geometries_of_one_algorithm_are_times_against_work(shown):
    browser = shown(file="drawn_speed")
    points = drawn(browser)
    assert values(points, "fused", run="B") == {str(1 + i): 1.0 for i in range(60)}
    assert browser.find_element("id", "quantity").get_attribute("value") == "time"


def test_it_opens_on_the_sweep_with_speedups(shown):
    browser = shown(file="mine")
    points = drawn(browser)
    assert values(points, "fused") == {"1": 2, "3": 2, "5": 2}
    assert values(points, "torch_fold") == {"1": 1, "3": 1, "5": 1}
    assert len(points) == 24
    assert "14 of 26 rows are as new" in browser.find_element("id", "told").text


def test_choices_change_the_marks(shown):
    browser = shown(file="mine", first="A", workload="windows")
    assert values(choose(browser, "quantity", "time"), "fused") == {"1": 1, "3": 3, "5": 5}
    assert values(choose(browser, "quantity", "floor"), "fused") == dict.fromkeys("135", 0.25)
    points = choose(browser, "quantity", "speedup")
    assert values(points, "fused", "tf32") == {"1": 2, "3": 2, "5": 2}
    points = choose(browser, "baseline", "torch_fold | ieee")
    assert values(points, "fused", "tf32") == {"1": 4, "3": 4, "5": 4}
    points = click(browser, "precisions-tf32")
    assert not values(points, "fused", "tf32") and values(points, "fused")
    points = click(browser, "names-torch_fold")
    assert {point[0] for point in points} == {"fused"}
    points = click(browser, "passes-backward_input")
    assert {point[2] for point in points} == {"forward"} and len(points) == 3
    points = choose(browser, "axis", "gflop")
    assert {point[4] for point in points} == {"1.5"}
    assert values(choose(browser, "workload", "one"), "fused") == {"1.5": 2}


def test_rows_of_older_kernels_are_hollow_and_can_be_left_out(shown):
    browser = shown(file="mine", first="A", workload="windows")
    fills = browser.execute_script("""
      return [...document.querySelectorAll('#drawing .mark-symbol.role-mark path')].map(
        (mark) => [mark.__data__.datum.state, mark.getAttribute('fill')]);""")
    assert {state for state, _ in fills} == {"current", "older"}
    assert all((fill == "transparent") == (state == "older") for state, fill in fills)
    assert "hollow: rows that are older" in browser.find_element("id", "drawing").text
    assert {point[6] for point in click(browser, "older")} == {"current"}


def test_two_results_beside_each_other_and_over_each_other(shown):
    browser = shown(file="mine", first="A", workload="windows", quantity="time")
    points = choose(browser, "second", "B")
    assert values(points, "fused", run="B") == {"1": 4, "3": 12, "5": 20}
    points = choose(browser, "quantity", "versus")
    assert values(points, "fused") == {"1": 4, "3": 4, "5": 4} and len(points) == 12


def test_no_curve_joins_two_cards(shown):
    browser = shown(file="cards", quantity="time", without={"precisions": ["tf32"]})
    curves = browser.execute_script("""
      return [...document.querySelectorAll('#drawing .mark-line path')].map(
        (line) => (line.getAttribute('d').match(/[ML]/g) ?? []).length);""")
    assert sorted(curves) == [1, 1, 2, 2]  # each algorithm's: of windows 1 and 7, and of 3


def test_two_dates(shown):
    browser = shown(file="mine", first="A | 2026-01-02", second="A | 2026-01-03", quantity="time")
    runs = {(point[2], point[3]) for point in drawn(browser)}
    assert runs == {("forward", "A | 2026-01-02"), ("backward_input", "A | 2026-01-03")}


def test_hovering_tells_the_row_and_where_it_comes_from(shown):
    from selenium.webdriver import ActionChains

    browser = shown(file="mine", first="A", workload="windows", quantity="time")
    mark = browser.find_element("css selector", "#drawing .mark-symbol.role-mark path")
    ActionChains(browser).move_to_element(mark).perform()
    told = until(lambda: browser.find_element("id", "tip").text)
    top, bottom = browser.execute_script("""
      const { top, bottom } = document.getElementById('tip').getBoundingClientRect();
      return [top, innerHeight - bottom];""")
    assert top >= 0 and bottom >= 0
    for words in ("Card A", "GPU-1", "2026-01-02T03:04:05", sources.NO_KERNELS, "580.1"):
        assert words in told
    assert "A/mine.csv" in told and re.search("as new as its kernels|OLDER than its kernels", told)
    ActionChains(browser).move_to_element(browser.find_element("tag name", "h1")).perform()
    browser.find_element("css selector", "section summary").click()
    assert sources.NO_KERNELS in browser.find_element("id", "table").text


@pytest.mark.parametrize("format", ["png", "svg"])
def test_the_picture_is_saved(shown, format):
    browser = shown(file="mine", first="A", workload="windows")
    browser.find_element("id", format).click()
    path = browser.saved / f"capsules.{format}"
    content = until(lambda: path.exists() and path.read_bytes())
    if format == "png":
        assert content[:8] == b"\x89PNG\r\n\x1a\n" and len(content) > 10_000
    else:
        assert b"<svg" in content and b"Speedup: windows" in content


def test_a_link_shows_one_drawing(shown, written):
    browser = shown(file="mine", first="A", workload="windows")
    points = choose(browser, "quantity", "time")
    address = browser.current_url
    browser.get("about:blank")
    browser.get(address)
    assert drawn(browser) == points


def test_rows_without_a_value_say_why(shown):
    browser = shown(file="memory", first="B", quantity="time")
    said = browser.find_element("id", "lacking").text
    assert "naive ieee out of memory (1)" in said


def test_on_a_phone_nothing_is_cut_off(browser, shown):
    size = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        shown(file="mine")
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
