"""The page as a lecture: the guided walk, its state in the address, one array enlarged, type for a room."""

import importlib.util
import math
from pathlib import Path

import pytest

from numbacaps.stages import STAGES
from tests.support.page import hover, press

# A browser.
pytestmark = pytest.mark.slow

GIVEN_AND_STAGES = (
    *("O", "I", "I_flat", "K", "O'", "O", "dO", "dO", "dK'", "dK", "dI'", "dI_flat", "dI"),
)
STEP = "return document.querySelector('#guide .count').textContent"
SAID = "return document.querySelector('#guide .say').textContent"
WHY = "const why = document.querySelector('#guide .why'); return why.hidden ? '' : why.textContent"
STAGE = "return document.querySelector('#stage h2').textContent.replace(/^\\d+ +/, '')"
PINNED = "return walk.state.pinned"
ASIDE = """return Array.from(document.querySelectorAll(".panel:not(.aside)"), (one) => one.dataset.name)"""


# Arrays of which a cell is lit.
LIT = """return Object.values(walk.maps).filter((map) => {
  const {first, steps} = map.array;
  return walk.marks().subarray(first, first + steps.length).some(Boolean);
}).map((map) => map.name)"""


def shows(driver, selector):
    """Whether an element lies in the window, above the guide's bar."""
    return driver.execute_script(
        """const box = document.querySelector(arguments[0]).getBoundingClientRect();
        const bar = document.querySelector("#guide").getBoundingClientRect();
        const floor = bar.height ? bar.top : innerHeight;
        return box.top < floor - 20 && box.bottom > 20 && box.height > 0;""",
        selector,
    )


def test_the_opening_says_what_a_capsule_convolution_is(shown, data):
    driver = shown(1280, 720)
    assert len(driver.find_elements("css selector", "#opening .sentences p")) == 3
    scalars = data["opening"]["scalars"]
    products = [
        pixel * weight
        for pixels, weights in zip(scalars["window"], scalars["kernel"])
        for pixel, weight in zip(pixels, weights)
    ]
    assert sum(products) == pytest.approx(scalars["sum"], rel=1e-5)
    ones = data["opening"]["ones"]
    assert ones["scalars"] == [[[48.0] * 2] * 2] * 2
    assert ones["capsules"] == [[[[[48.0] * 3] * 3] * 3] * 2] * 2
    first, second = driver.find_elements("css selector", "#opening figure")
    assert "tensor to scalar" in first.text and "48 = 4 · 4 · 3" in first.text
    assert "tensor to tensor" in second.text and "48 = 16 products · 3" in second.text
    digits = [one.text for one in first.find_elements("css selector", ".digit")]
    assert digits[-1].replace("−", "-") == f"{scalars['sum']:.2f}"
    assert shows(driver, "#opening figure")


def test_one_key_walks_through_all_stages_and_back(shown):
    driver = shown(1280, 720)
    press(driver, "n")
    assert driver.execute_script(STEP) == "1 / 18" and shows(driver, "#opening")
    cells, stages, said = [], [], {driver.execute_script(SAID)}
    for number in range(2, 19):
        press(driver, "n")
        assert driver.execute_script(STEP) == f"{number} / 18"
        said.add(driver.execute_script(SAID))
        if number <= 14:
            name, flat = driver.execute_script(PINNED)
            cells.append(name)
            about = driver.execute_script(ASIDE)
            assert name in about and 2 <= len(about) <= 3
            assert set(driver.execute_script(LIT)) >= set(about) - ({"O"} if number == 8 else set())
            assert shows(driver, f'[data-name="{name}"]')
        if 3 <= number <= 14 and number != 8:  # at 8 stands dO, which no stage makes
            stages.append(driver.execute_script(STAGE))
    assert stages == [stage.paper for stage in STAGES.values()]
    assert cells == list(GIVEN_AND_STAGES) and len(said) == 18
    for section in ("network", "routing", "bytes", "tile"):
        assert shows(driver, f"#{section}")
        press(driver, "b")
    assert driver.execute_script(STEP) == "14 / 18"
    press(driver, "\ue00f")  # PageDown, which a presenter's clicker sends
    assert driver.execute_script(STEP) == "15 / 18"
    press(driver, "\ue00e")  # PageUp
    assert driver.execute_script(STEP) == "14 / 18"
    driver.execute_script("document.activeElement.blur()")
    press(driver, "\ue014")  # the right arrow, which no array has
    assert driver.execute_script(STEP) == "15 / 18"
    driver.execute_script("walk.maps.O.panel.focus()")
    press(driver, "\ue012")  # the left one, which moves in O
    assert driver.execute_script(STEP) == "15 / 18"


def test_the_button_steps_and_replication_is_priced(shown, data):
    driver = shown(1280, 720)
    driver.find_element("id", "enter").click()
    extended = math.prod(data["runs"][0]["arrays"]["I'"]["shape"])
    priced = {}
    for _ in range(8):
        driver.find_element("css selector", "#guide .next").click()
        priced[driver.execute_script(PINNED)[0], driver.execute_script(STEP)] = (
            driver.execute_script(WHY)
        )
    assert "Why does this cost so much?" in priced["I_flat", "4 / 18"]
    assert f"{extended:,} numbers are written" in priced["I_flat", "4 / 18"]
    assert "become" in priced["K", "5 / 18"] and "replication" in priced["dO", "9 / 18"]
    assert priced["O", "2 / 18"] == "" and priced["dO", "8 / 18"] == ""


def test_leaving_and_entering_again_anywhere(shown):
    driver = shown(1280, 720)
    for _ in range(4):
        press(driver, "n")
    hover(driver, "dI", 26)
    driver.find_element("css selector", '[data-name="dI"]').click()  # looks elsewhere meanwhile
    assert len(driver.execute_script(ASIDE)) == 14
    press(driver, "\ue00c")  # Escape
    assert not driver.find_element("id", "guide").is_displayed()
    press(driver, "n")
    assert driver.execute_script(STEP) == "4 / 18"
    marks = driver.find_elements("css selector", "#guide .marks button")
    assert [mark.get_attribute("aria-current") for mark in marks].index("step") == 3
    marks[9].click()
    assert driver.execute_script(STEP) == "10 / 18" and driver.execute_script(PINNED)[0] == "dK'"


# ---- the address


ASKED = "stride=2x2&window=3x3&at=O.7&theme=dark&step=output_reduce&zoom=1&tile=0-0-2-3&iteration=4"
CHOSEN = """return [walk.state.run, walk.state.pinned, document.documentElement.dataset.theme,
    document.querySelector("#guide .count").textContent, walk.zoom.open, Object.values(walk.tile.at),
    walk.routing.iteration]"""


def test_a_link_shows_what_was_chosen(shown, page):
    driver = shown()
    driver.get(f"{page.as_uri()}#{ASKED}")
    chosen = [3, ["O", 7], "dark", "7 / 18", True, [0, 0, 2, 3], 4]
    assert driver.execute_script(CHOSEN) == chosen
    driver.get("about:blank")
    driver.get(f"{page.as_uri()}#{ASKED}")  # on load, not by hashchange
    assert driver.execute_script(CHOSEN) == chosen
    kept = dict(part.split("=") for part in driver.current_url.split("#")[1].split("&"))
    assert kept == dict(part.split("=") for part in ASKED.split("&"))


def test_what_is_chosen_goes_into_the_address(shown):
    from selenium.webdriver import Keys

    driver = shown(1280, 720)
    assert "#" not in driver.current_url
    hover(driver, "K", 17)
    driver.find_element("css selector", '[data-name="K"]').click()
    name, flat = driver.execute_script(PINNED)
    assert driver.current_url.endswith(f"#at=K.{flat}")
    driver.find_element("id", "window").send_keys(Keys.ARROW_RIGHT)
    assert "window=3x3" in driver.current_url and "stride" not in driver.current_url
    driver.find_element("id", "theme").click()
    assert "theme=dark" in driver.current_url


@pytest.mark.parametrize("wrong", ["at=O.999999", "at=X.1", "step=none&tile=9-9-9", "stride=7x7"])
def test_an_address_that_is_wrong_shows_the_beginning(shown, page, wrong):
    driver = shown()
    first = driver.execute_script(PINNED)
    driver.get("about:blank")
    driver.get(f"{page.as_uri()}#{wrong}")
    assert driver.execute_script(PINNED) == first
    assert not driver.find_element("id", "guide").is_displayed()


# ---- for a room


def test_an_array_fills_the_stage_in_numbers_one_can_read(shown, trace):
    driver = shown(1280, 720)
    hover(driver, "dI", 26)
    driver.find_element("css selector", '[data-name="dI"]').click()
    press(driver, "z")
    name, flat = driver.execute_script(PINNED)
    own = driver.find_element("css selector", "#zoom .own")
    value = trace.operands["dI"].array.reshape(-1)[flat]
    assert float(own.text.replace("−", "-")) == pytest.approx(value, abs=6e-3)
    assert float(own.value_of_css_property("font-size")[:-2]) >= 22
    left, top, right, bottom = driver.execute_script(
        """const box = document.querySelector("#zoom table").getBoundingClientRect();
        return [box.left, box.top, box.right, box.bottom]"""
    )
    assert 0 <= left < right <= 1280 and 0 <= top < bottom <= 720 and bottom - top > 300
    press(driver, "\ue014")  # the right arrow moves the cell
    assert driver.execute_script(PINNED) != [name, flat]
    driver.find_elements("css selector", "#zoom td")[0].click()
    assert driver.execute_script("return document.querySelector('#zoom .own').cellIndex") == 0
    press(driver, "\ue00c")
    assert not driver.find_element("id", "zoom").is_displayed()
    driver.find_element("css selector", '[data-name="dI"] .enlarge').click()
    assert driver.find_element("id", "zoom").is_displayed()


def test_projector_mode_has_large_type_and_the_arrays_of_a_step(shown):
    driver = shown(1280, 720)
    before = driver.execute_script("return getComputedStyle(document.body).fontSize")
    driver.find_element("id", "projector").click()
    after = driver.execute_script("return getComputedStyle(document.body).fontSize")
    assert float(after[:-2]) >= 1.4 * float(before[:-2])
    for _ in range(10):
        press(driver, "n")
    panels = driver.find_elements("css selector", ".panel")
    seen = [one.get_attribute("data-name") for one in panels if one.is_displayed()]
    assert sorted(seen) == ["I'", "dK'", "dO'"]
    say = driver.find_element("css selector", "#guide .say")
    assert float(say.value_of_css_property("font-size")[:-2]) >= 24
    assert driver.execute_script("return document.documentElement.scrollWidth") <= 1280


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_gradients_stand_out(shown, scheme):
    """Half of the largest gradient differs from zero's colour by more than a glance can miss."""
    driver = shown(1280, 720, scheme)
    luminance = """const parts = (colour) => colour.match(/\\d+/g).map(Number);
        const [zero, half] = [0, 8192].map((steps) => parts(walk.colour("gradient", steps)));
        return Math.hypot(...zero.map((part, i) => part - half[i]));"""
    assert driver.execute_script(luminance) > 60


def test_the_theme_is_the_systems_until_one_is_chosen(shown):
    driver = shown(1280, 720, "dark")
    dark = "return document.documentElement.dataset.theme"
    assert driver.execute_script(dark) == "dark"
    driver.find_element("id", "theme").click()
    assert driver.execute_script(dark) == "light" and "theme=light" in driver.current_url


def test_reduced_motion_moves_nothing(shown, browser):
    driver = shown(1280, 720)
    features = [{"name": "prefers-reduced-motion", "value": "reduce"}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    moving = """return Array.from(document.querySelectorAll("*")).filter((one) => {
        const style = getComputedStyle(one);
        return parseFloat(style.transitionDuration) > 0 || style.animationName !== "none";
    }).length"""
    assert driver.execute_script(moving) == 0


# ---- on a phone


@pytest.mark.parametrize("step", ["given", "kernel_extend", "capsule_col2im", "bytes", "network"])
def test_on_a_phone_the_stage_is_seen_and_nothing_is_cut_off(shown, page, step):
    driver = shown(390, 844)
    driver.get("about:blank")
    driver.get(f"{page.as_uri()}#step={step}")
    assert driver.execute_script("return document.documentElement.scrollWidth") <= 390
    tab = driver.find_element("css selector", '#strip [aria-current="step"]')
    box = driver.execute_script(
        "const {left, right, top} = arguments[0].getBoundingClientRect(); return [left, right, top]",
        tab,
    )
    assert box[0] >= 0 and box[1] <= 390 and 0 <= box[2] < 844
    wide = """return Array.from(document.querySelectorAll("table")).filter((one) => {
        const box = one.getBoundingClientRect();
        return box.width && (box.right > innerWidth + 1 || one.scrollWidth > one.clientWidth + 1);
    }).map((one) => one.className)"""
    assert driver.execute_script(wide) == []
    labels = driver.execute_script(
        """return Array.from(document.querySelectorAll(".accesses td, .costs td"))
            .map((one) => getComputedStyle(one, "::before").content)"""
    )
    assert labels and all(label not in ('""', "none") for label in labels)


# ---- for everybody


def names_missing(driver):
    """Controls and pictures that no screen reader can name."""
    return driver.execute_script("""
        const named = (one) => one.getAttribute("aria-label") || one.textContent.trim() || one.title ||
            (one.labels && one.labels.length);
        return Array.from(document.querySelectorAll('button, input, select, [role="img"], section'))
            .filter((one) => !named(one)).map((one) => one.outerHTML.slice(0, 80))""")


# Text whose contrast to the paper behind it is below 4.5, or 3 where it is large.
FAINT = """
const context = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
const parts = (colour) => {
  context.clearRect(0, 0, 1, 1);
  context.fillStyle = colour;
  context.fillRect(0, 0, 1, 1);
  return context.getImageData(0, 0, 1, 1).data;
};
const light = (colour) => {
  const [red, green, blue] = Array.from(parts(colour).slice(0, 3), (part) =>
    part <= 10 ? part / 3295 : ((part / 255 + 0.055) / 1.055) ** 2.4);
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue + 0.05;
};
const behind = (one) => {
  const colour = getComputedStyle(one).backgroundColor;
  return parts(colour)[3] === 255 || !one.parentElement ? colour : behind(one.parentElement);
};
return Array.from(document.querySelectorAll("body *")).filter((one) => {
  const said = Array.from(one.childNodes).some((node) => node.nodeType === 3 && node.data.trim());
  return said && !one.closest("svg, script, template, :disabled, option") && one.checkVisibility();
}).filter((one) => {
  const {color, fontSize} = getComputedStyle(one);
  const [a, b] = [light(color), light(behind(one))];
  return Math.max(a, b) / Math.min(a, b) < (parseFloat(fontSize) >= 24 ? 3 : 4.5);
}).map((one) => one.outerHTML.slice(0, 120));"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_stand_out_from_the_paper(shown, page, scheme):
    driver = shown(1280, 720, scheme)
    driver.get("about:blank")
    driver.get(f"{page.as_uri()}#step=input_extend")
    assert driver.execute_script(FAINT) == []
    driver.execute_script("document.querySelector('#guide .say').style.color = 'grey'")
    (faint,) = driver.execute_script(FAINT)  # the check sees what is faint
    assert "grey" in faint


def axe():
    """The checker's script, where the package is installed (``pip install --no-deps axe-playwright-python``)."""
    found = importlib.util.find_spec("axe_playwright_python")
    script = Path(found.origin).parent / "axe.min.js" if found else None
    return script.read_text() if script and script.exists() else None


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("shows_what", ["", "#step=input_extend", "#at=O.7&zoom=1", "#projector=1"])
def test_no_serious_fault_for_a_screen_reader_or_weak_eyes(shown, page, scheme, shows_what):
    driver = shown(1280, 720, scheme)
    driver.get("about:blank")
    driver.get(page.as_uri() + shows_what)
    assert names_missing(driver) == []
    script = axe()
    if script is None:
        pytest.skip(
            "names are there; axe was not found: pip install --no-deps axe-playwright-python"
        )
    driver.execute_script(script)
    found = driver.execute_async_script(
        "const done = arguments[arguments.length - 1]; axe.run().then(done)"
    )
    grave = [one for one in found["violations"] if one["impact"] in ("serious", "critical")]
    told = [
        f"{one['id']}: {node['html'][:150]} {node.get('failureSummary', '')[:250]}"
        for one in grave
        for node in one["nodes"][:4]
    ]
    assert not told, "\n".join(told)
