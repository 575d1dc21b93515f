"""A small walk's page, and a headless Chromium (Debian's chromium and chromium-driver) to open it in; what seems to be a GPU.

``.ci/run`` installs Chromium; without it those tests are skipped and say so. The fixtures import what they use: this
file can be read before ``tests/conftest.py`` has chosen the target.
"""

import json

import pytest


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Experiments take it that there is a GPU, called "here", and that PyTorch runs on it; what rows say of it."""
    torch = pytest.importorskip("torch", reason="the extra 'torch' is not installed")
    from experiments.measuring import command, device_memory, listed, opponents, provenance

    now = {"gpu": "here", "driver": "1", "versions": "{}", "source_sha256": "now"}
    monkeypatch.setattr(command, "refuse_without_gpu", lambda name: None)
    monkeypatch.setattr(opponents, "torch_on_gpu", lambda: torch)
    monkeypatch.setattr(provenance, "gpu_name", lambda: "here")
    monkeypatch.setattr(listed, "of_machine", lambda: now)
    monkeypatch.setattr(device_memory, "release", lambda: None)
    return now


@pytest.fixture(scope="session")
def page(tmp_path_factory):
    """A page of a small walk with four runs: its path."""
    from experiments.walk import __main__ as command
    from experiments.walk.page import variants
    from tests.support.page import SMALL

    path = tmp_path_factory.mktemp("page") / "walk.html"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(variants, "_STRIDES", (2,))
        patch.setattr(variants, "_WINDOWS", (3,))
        patch.setattr(variants, "_SIZES", ())
        assert command.main([*SMALL, "--html", str(path)]) == 0
    assert [found.name for found in path.parent.iterdir()] == ["walk.html"]
    return path


@pytest.fixture(scope="session")
def data(page):
    """The page's data as it stands in the file."""
    text = page.read_text()
    return json.loads(
        text.split('<script id="data" type="application/json">')[1].split("</script>")[0]
    )


@pytest.fixture(scope="session")
def trace():
    """The same walk, run again and watched."""
    from experiments.walk import __main__ as command
    from experiments.walk import trace as tracing
    from experiments.walk.records import Options
    from experiments.walk.watch import watching
    from tests.support.page import SMALL

    options = vars(command._make_parser().parse_args(SMALL))
    for name in ("out", "pictures", "html"):
        del options[name]
    return tracing.walk(tracing.plan(Options(**options)), watch=watching)


@pytest.fixture(scope="session")
def browser():
    """A headless Chromium without scrollbars."""
    from tests.support.browser import open_chromium

    driver = open_chromium("hide-scrollbars")
    yield driver
    driver.quit()


@pytest.fixture
def shown(browser, page):
    """Opens the page at a size and in a colour scheme; at the end its console must be empty."""

    def open_page(width=1700, height=1000, scheme="light", path=page):
        feature = {"name": "prefers-color-scheme", "value": scheme}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
        browser.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 700},
        )
        browser.get(path.as_uri())
        return browser

    yield open_page
    assert browser.get_log("browser") == []
