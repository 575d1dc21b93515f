"""A headless Chromium in which pages are tested."""

import shutil

import pytest


def open_chromium(*options):
    """A driver of it, which the caller quits; the test is skipped, loudly, where there is none.

    Parameters
    ----------
    *options : str
        Of Chromium's command line, without the dashes.
    """
    missing = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"NOT TESTED IN A BROWSER: no {' and no '.join(missing)} (Debian's packages)")
    webdriver = pytest.importorskip(
        "selenium.webdriver", reason="selenium: the extra 'test' has it"
    )
    given = webdriver.ChromeOptions()
    for option in ("headless=new", "no-sandbox", "disable-dev-shm-usage", *options):
        given.add_argument(f"--{option}")
    given.binary_location = shutil.which("chromium")
    given.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(given, webdriver.ChromeService(shutil.which("chromedriver")))
