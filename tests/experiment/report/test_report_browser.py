"""Reports in a browser: they are drawn, fit the screen, load nothing and complain of nothing."""

import base64
import io
import json
import shutil
import sys
import time

import numpy as np
import pytest
from PIL import Image
from reports import write_run, write_sweep
from standings import standing

from fedjax_drag.experiment.arena import page as arena_page
from fedjax_drag.experiment.report import write

pytestmark = pytest.mark.slow

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SHOWN = "[...document.querySelectorAll('.chart')].filter(e => e.checkVisibility())"
PHONE, DESK = (390, 844), (1280, 900)


@pytest.fixture(scope="module")
def browser():
    from selenium import webdriver

    binary, driver = next(filter(None, map(shutil.which, BROWSERS)), None), shutil.which("chromedriver")
    if binary is None or driver is None:
        pytest.skip("needs a Chromium and its chromedriver on the PATH")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    started = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield started
    started.quit()


def drawn(browser, path, size=DESK, dark=False):
    """Opens a page, scrolls through it so that every chart is drawn, and returns its picture."""
    width, height = size
    browser.execute_cdp_cmd("Network.enable", {})
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    browser.get_log("performance")
    browser.get(path.as_uri())
    end = time.monotonic() + 60
    while not browser.execute_script(f"""
        const left = {SHOWN}.filter(e => !e.querySelector('.main-svg'));
        left.slice(0, 1).forEach(e => e.scrollIntoView());
        return left.length === 0"""):
        time.sleep(0.05)  # charts are drawn as they come into sight
        assert time.monotonic() < end, "a chart was not drawn"
    browser.execute_script("scrollTo(0, 0)")
    png = browser.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True})["data"]
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB"), np.float64)


def requests(browser):
    """Addresses that were asked for since the last page, beside what is in the page itself."""
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
    return [url for url in sent if not url.startswith(("data:", "blob:"))]


def pages(tmp_path):
    """A run with malicious and expelled clients, a sweep in which a cell is missing, and files full of markup."""
    rng = np.random.default_rng(0)
    clients = {
        "client_ids": [list(range(6))] * 8,
        "malicious": [[1, 0, 0, 1, 0, 0]] * 8,
        "valid": [[1, 1, 1, 1 if i < 5 else 0, 1, 1] for i in range(8)],
        "cosine": rng.uniform(-1, 1, (8, 6)).tolist(),
        "weight": rng.uniform(0, 1, (8, 6)).tolist(),
    }
    curve = np.linspace(0.1, 0.9, 8).tolist()
    run = write_run(tmp_path / "run", curve, {"interrupted": False}, **clients)
    axes = {"aggregator": ["fedavg", "krum", "median"], "attack": [None, "sign_flip"], "partition.beta": [0.1, 0.5]}
    base = {"partition": {"name": "dirichlet", "num_clients": 8}}
    sweep, _ = write_sweep(tmp_path / "sweep", axes, [*([curve] * 11), None], base)
    evil = "<img src=https://example.org/x onerror=console.error(1)></script><script>console.error(2)</script>"
    values = {evil: [1e308, -1e308, 0.1], "train_loss": [1e-300, 1e300, 1.0]}
    config = {"name": evil, "client": {"name": "sgd"}}
    hostile = write_run(tmp_path / "hostile", [1e308, -1e30, 0.5], {"seconds": evil}, config, **values)
    return [write(folder, with_skew=folder is run) for folder in (run, sweep, hostile)]


def test_pages_are_drawn_and_load_and_complain_of_nothing(browser, tmp_path):
    for path in pages(tmp_path):
        for size, dark in ((DESK, False), (DESK, True), (PHONE, False)):
            picture = drawn(browser, path, size, dark)
            assert requests(browser) == [path.as_uri()]
            assert browser.get_log("browser") == []
            assert browser.execute_script("return document.documentElement.scrollWidth") <= size[0]
            assert picture.std() > 5
            assert (picture.mean() < 100) == dark
        lines = browser.execute_script(
            "return [...document.querySelectorAll('.js-line')].map(e => e.getAttribute('d'))"
        )
        assert any(line and "L" in line for line in lines)


def test_pages_of_still_images_fit_and_complain_of_nothing(browser, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    for path in pages(tmp_path):
        for size, dark in ((DESK, False), (PHONE, True)):
            picture = drawn(browser, path, size, dark)
            assert requests(browser) == [path.as_uri()]
            assert browser.get_log("browser") == []
            assert browser.execute_script("return document.documentElement.scrollWidth") <= size[0]
            assert (picture.mean() < 100) == dark


def test_legend_hides_a_line_in_all_charts_that_share_it_and_heads_sort(browser, tmp_path):
    _, path, _ = pages(tmp_path)
    drawn(browser, path)
    lines = "return document.querySelectorAll('#curves .part .scatterlayer .trace').length"
    before = browser.execute_script(lines)
    browser.execute_script("document.querySelector('.legend button').click()")
    assert browser.execute_script(lines) == before - 4
    browser.execute_script("document.querySelector('.legend button').click()")
    assert browser.execute_script(lines) == before
    first = "return [...document.querySelectorAll('.sortable tbody tr')].map(row => row.cells[0].textContent)"
    browser.execute_script("document.querySelector('.sortable thead button').click()")
    assert browser.execute_script(first) == ["median"] * 4 + ["krum"] * 4 + ["fedavg"] * 4


def test_print_is_light_and_has_every_chart_within_the_paper(browser, tmp_path):
    path, _, _ = pages(tmp_path)
    drawn(browser, path, dark=True)
    browser.execute_script(f"""addEventListener('beforeprint', () => {{
        window.widths = {SHOWN}.map(e => e.querySelector('.main-svg').getBoundingClientRect().width);
        window.unfolded = document.querySelectorAll('#setup details[open]').length;
    }})""")
    pdf = browser.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True})["data"]
    assert base64.b64decode(pdf).startswith(b"%PDF")
    widths = browser.execute_script("return window.widths")
    assert widths
    assert max(widths) <= 680
    assert browser.execute_script("return window.unfolded") == 2
    assert browser.execute_script("return document.querySelectorAll('#setup details[open]').length") == 0


def test_entries_of_an_arena_are_searched_and_filtered_by_what_they_may_know(browser, tmp_path):
    path = arena_page.write(standing({"krum": 0.82, "root_only": 0.3, "median": 0.6}), tmp_path / "arena.html")
    browser.get(path.as_uri())
    entries = lambda: browser.execute_script("""
        return [...document.querySelectorAll('#standing tbody tr')].filter(e => e.checkVisibility())
            .map(e => e.querySelector('a').textContent)""")
    box, search = (browser.find_element("css selector", f".filter {one}") for one in ("[value='root data']", "[type]"))
    assert entries() == ["krum", "median", "root_only"]
    box.click()
    assert entries() == ["krum", "median"]
    search.send_keys("blanchard")
    assert entries() == ["krum"]
    search.clear()
    box.click()
    browser.find_element("xpath", "//section[@id='standing']//button[text()='withstands']").click()
    assert entries()[0] == "krum"
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
