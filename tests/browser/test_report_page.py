"""The page in a browser, as people use it: filters, sorting, colours, keyboard, and the figures that it shows.
Nothing in a result runs in a browser, and a screen reader can read the page."""

import base64
import dataclasses
import itertools
import json

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.wait import WebDriverWait

import scalebench
from scalebench.report.html.page import write
from scalebench.report.report_data import load_report_data
from tests.browser.conftest import set_width
from tests.builders import sweeps
from tests.report.html.frame_sections import sections
from tests.report.html.test_page import nasty_sections

pytestmark = [pytest.mark.slow, pytest.mark.browser]
WAIT_S = 30
OPEN_ALL = "document.querySelectorAll('details').forEach(one => { one.open = true; })"
TRACES = "return [...document.querySelector('#speedup .plot').data].filter(t => t.meta.role !== 'band')"


@pytest.fixture
def page(browser, tmp_path):
    """A report of two models on two kinds of hardware, drawn."""
    open_page(browser, write_page(tmp_path))
    return browser


def write_page(folder):
    sweeps.sweep(folder / "sweep")
    report_data = load_report_data([folder / "sweep"])
    return write(report_data, folder / "sweep" / "report.html", sections(report_data))


def open_page(browser, path, pixels=1280, dark=False, after="", height=900):
    set_width(browser, pixels, height, dark)
    browser.get("about:blank")
    browser.get(path.as_uri() + after)
    wait(browser, "return document.querySelectorAll('.plot[data-drawn]').length > 0")


def wait(browser, script):
    WebDriverWait(browser, WAIT_S, 0.1).until(lambda driver: driver.execute_script(script))


def status_text(browser):
    return browser.find_element(By.ID, "shown").text


def visible_series(browser):
    return {trace["name"] for trace in browser.execute_script(TRACES) if trace.get("visible", True) is True}


def visible_rows(browser):
    """First cells of the rows that are to be seen."""
    table_rows = browser.find_elements(By.CSS_SELECTOR, "#runs tbody tr")
    return [row.find_element(By.TAG_NAME, "td").text for row in table_rows if row.is_displayed()]


def filter_box(browser, name, value):
    return browser.find_element(By.CSS_SELECTOR, f"#filters input[name={name}][value={value}]")


def test_filters_hide_rows_and_lines_and_say_so(page):
    assert status_text(page).startswith("7 of 7 rows shown")
    filter_box(page, "strategy", "ddp_gloo").click()
    assert status_text(page).startswith("4 of 7 rows shown")
    assert set(visible_rows(page)) == {"bare_torch", "horovod_gloo"}
    assert visible_series(page) == {"ideal", "bare_torch", "horovod_gloo", "elsewhere"}
    page.find_element(By.CSS_SELECTOR, "[data-none=strategy]").click()
    assert visible_rows(page) == [] and visible_series(page) == {"ideal", "elsewhere"}
    assert page.find_element(By.CSS_SELECTOR, "#runs .empty").is_displayed()
    page.find_element(By.CSS_SELECTOR, "[data-all=strategy]").click()
    assert len(visible_rows(page)) == 7
    filter_box(page, "hardware", "alpha").click()
    assert "elsewhere" not in visible_series(page) and len(visible_rows(page)) == 7
    filter_box(page, "hardware", "cpu").click()
    assert visible_rows(page) == []
    filter_box(page, "hardware", "cpu").click()
    page.find_element(By.CSS_SELECTOR, "details.fold > summary").click()
    warning = page.find_element(By.CSS_SELECTOR, ".paragraph.warning")
    assert warning.is_displayed()
    filter_box(page, "strategy", "horovod_gloo").click()
    assert not warning.is_displayed(), "paragraphs and code are filtered too"
    assert len([code for code in page.find_elements(By.CSS_SELECTOR, ".code") if code.is_displayed()]) == 1


def test_bars_with_tags_of_their_own_go_one_by_one(page):
    bars = "const p = document.querySelector('#lost .plot'); p.scrollIntoView(); return 'drawn' in p.dataset && %s"
    figures = "[p.data.map(t => [t.meta.role, t.y, t.x]), p.layout.yaxis.categoryarray]"
    wait(page, bars % "true")
    filter_box(page, "strategy", "ddp_gloo").click()
    wait(page, bars % "p.data[0].x.length === 1")
    shares, names = page.execute_script(bars % figures)
    assert names == ["horovod_gloo"] and [y for _, y, _ in shares] == [["horovod_gloo"]] * 4
    pieces = [(role, x) for role, _, x in shares]
    assert pieces == [("bar", [0.05]), ("bar", [None]), ("gain", [-0.01]), ("bar", [0.16])]
    filter_box(page, "strategy", "ddp_gloo").click()
    wait(page, bars % "p.data[0].x.length === 2")


def test_the_address_keeps_the_filters(page, tmp_path):
    filter_box(page, "strategy", "ddp_gloo").click()
    page.find_element(By.CSS_SELECTOR, "nav a[href='#problems']").click()
    address = page.current_url
    assert address.endswith("#problems&hide.strategy=ddp_gloo")
    assert page.find_element(By.CSS_SELECTOR, "#problems .warning").is_displayed()  # unfolded
    page.get("about:blank")
    page.get(address)
    wait(page, "return document.querySelector('.plot[data-drawn]') !== null")
    assert status_text(page).startswith("4 of 7 rows shown")
    assert not filter_box(page, "strategy", "ddp_gloo").is_selected()


def test_figures_of_the_page_are_those_of_the_frame(page, tmp_path):
    frame = scalebench.load(tmp_path / "sweep")
    shown = {trace["name"]: trace for trace in page.execute_script(TRACES)}
    for strategy, runs in frame.sort_values("gpus").groupby("strategy"):
        assert shown[strategy]["x"] == list(runs["gpus"])
        assert shown[strategy]["y"] == pytest.approx(list(map(float, runs["speedup_bare"])), rel=1e-8)
    table = "return [...document.querySelectorAll('#runs tbody td:nth-child(3)')].map(td => td.dataset.value)"
    values = sorted(map(float, page.execute_script(table)))
    assert values == sorted(map(float, frame["throughput_samples_per_s"]))
    texts = "return [...document.querySelectorAll('#throughput .figures td:nth-child(2)')].map(td => td.textContent)"
    figures = sorted(float(text) for text in page.execute_script(texts))
    assert figures == pytest.approx(values, rel=1e-5)
    button = page.find_elements(By.CSS_SELECTOR, "#runs .sort")[2]  # a click sorts, a second one turns round
    head = "return document.querySelectorAll('#runs th')[2].getAttribute('aria-sort')"
    for order, direction in ((values, "ascending"), (values[::-1], "descending")):
        button.click()
        assert list(map(float, page.execute_script(table))) == order and page.execute_script(head) == direction


def test_colours_follow_the_system_and_the_button(page, tmp_path):
    def look():
        line = "return document.querySelector('#speedup .plot').layout.paper_bgcolor"
        return page.execute_script("return getComputedStyle(document.body).backgroundColor"), page.execute_script(line)

    light = look()
    page.find_element(By.ID, "theme").click()
    night = look()
    assert light[0] != night[0] and light[1] != night[1]
    page.refresh()
    wait(page, "return document.querySelector('.plot[data-drawn]') !== null")
    assert look() == night  # remembered
    page.execute_script("localStorage.clear()")
    open_page(page, tmp_path / "sweep" / "report.html", dark=True)
    assert look() == night


def test_the_keyboard_reaches_everything(page):
    active = "const a = document.activeElement; return [a.id, a.name || '', a.className, a.dataset.copy || '']"
    page.execute_script("document.body.focus()")
    reached = []
    for _ in range(60):
        page.switch_to.active_element.send_keys(Keys.TAB)
        reached.append(page.execute_script(active))
        if reached[-1][2] == "sort":
            break
    assert reached[0][2] == "skip" and ["theme", "", "quiet", ""] in reached
    assert {"strategy", "hardware"} <= {name for _, name, _, _ in reached}
    page.switch_to.active_element.send_keys(Keys.ENTER)
    assert page.execute_script("return document.querySelector('#runs th').getAttribute('aria-sort')") == "ascending"
    page.execute_script("document.querySelector('#filters input[value=ddp_gloo]').focus()")
    page.switch_to.active_element.send_keys(Keys.SPACE)
    assert status_text(page).startswith("4 of 7 rows shown")
    page.execute_script("document.getElementById('theme').focus()")
    page.switch_to.active_element.send_keys(Keys.SPACE)
    assert page.execute_script("return document.documentElement.dataset.theme") == "dark"


@pytest.mark.parametrize("pixels", [1280, 390])
def test_no_width_makes_the_page_scroll_sideways(browser, tmp_path, pixels):
    open_page(browser, write_page(tmp_path), pixels)
    browser.execute_script(OPEN_ALL)
    size = browser.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
    assert size[0] <= size[1] == pixels
    shot = browser.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True})["data"]
    (tmp_path / f"report-{pixels}.png").write_bytes(base64.b64decode(shot))
    wide = "return [...document.querySelectorAll('.plot svg.main-svg')].map(svg => svg.clientWidth)"
    assert all(0 < drawn <= pixels for drawn in browser.execute_script(wide))


def write_real_page(folder, strategies=("bare_torch", "ddp_gloo", "horovod_gloo")):
    """Write the page of a sweep with all its sections."""
    sweeps.sweep(folder, strategies, repeats=3)
    return write(load_report_data([folder]), folder / "report.html")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize(("pixels", "height", "last"), [(1400, 900, ".chart .plot"), (390, 844, ".reason")])
def test_the_answer_is_seen_without_scrolling(browser, tmp_path, pixels, height, last, dark):
    open_page(browser, write_real_page(tmp_path), pixels, dark, height=height)
    near = 3 if pixels > 1000 else 2
    wait(browser, f"return document.querySelectorAll('#answer .plot[data-drawn]').length === {near}")
    ends = "return [...document.querySelectorAll(`#answer :is(%s)`)].map(e => e.getBoundingClientRect().bottom)"
    seen = browser.execute_script(ends % f".headline, .tiles dd, {last}")
    assert len(seen) >= 11 and max(seen) <= height
    assert browser.execute_script("return document.querySelectorAll('main details[open]').length") == 0
    assert browser.execute_script("return [document.documentElement.scrollWidth, innerWidth]") == [pixels, pixels]


@pytest.mark.parametrize("pixels", [320, 390])
def test_of_bars_in_a_narrow_card_nothing_is_cut_off(browser, tmp_path, pixels):
    """Long names stand above their bars, which take most of the width, and the legend below all."""
    page = write_real_page(tmp_path, ("bare_torch", "ddp_gloo", "lightning_ddp_gloo"))
    open_page(browser, page, pixels, height=4000)
    wait(browser, "return document.querySelectorAll('#answer .plot[data-drawn]').length === 3")
    script = """
        const plot = [...document.querySelectorAll('#answer .plot')].find(p => p.layout.yaxis.categoryarray);
        const box = e => e.getBoundingClientRect(), all = names => [...plot.querySelectorAll(names)].map(box);
        const texts = all('text:not(:empty)').filter(b => b.width), card = box(plot);
        return [Math.max(...texts.map(b => b.right)) - card.right, Math.max(...texts.map(b => b.bottom)) - card.bottom,
                Math.min(...all('.legendtext').map(b => b.top)) - box(plot.querySelector('.xtitle')).bottom,
                box(plot.querySelector('.barlayer')).width / card.width]"""
    right, bottom, legend, share = browser.execute_script(script)
    assert right <= 0 and bottom <= 0 and legend >= 0 and share > 0.5


def test_the_first_page_of_paper_has_the_answer_and_its_charts(browser, tmp_path):
    open_page(browser, write_real_page(tmp_path), dark=True)
    before = browser.execute_script("return document.querySelectorAll('details[open]').length")
    set_width(browser, 703, dark=True)  # A4 without margins of 12 mm
    features = [{"name": "prefers-color-scheme", "value": "dark"}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": features})
    browser.execute_script("beforePrint()")
    answer = browser.execute_script("return document.getElementById('answer').getBoundingClientRect().bottom")
    assert answer < 1000, "A4 has 1032 pixels"
    # Wider contents make Chromium print everything smaller.
    assert browser.execute_script("return document.documentElement.scrollWidth") == 703
    wide = "return [...document.querySelectorAll('.plot')].map(p => p.querySelector('svg').clientWidth - p.clientWidth)"
    assert max(browser.execute_script(wide)) <= 0
    assert browser.execute_script("return document.querySelectorAll('details.fold:not([open])').length") == 0
    assert browser.execute_script("return document.documentElement.dataset.theme") == "light"
    browser.execute_script("afterPrint()")
    assert browser.execute_script("return document.querySelectorAll('details[open]').length") == before
    assert browser.execute_script("return document.documentElement.dataset.theme") == "dark"


def test_charts_are_drawn_when_they_come_near(browser, tmp_path):
    sweeps.sweep(tmp_path / "sweep", gpus=(1, 2))
    report_data = load_report_data([tmp_path / "sweep"])
    section, copies = sections(report_data)[1], []
    for number in range(30):
        blocks = [dataclasses.replace(block, id=f"{block.id}-{number}") for block in section.blocks]
        copies.append(dataclasses.replace(section, id=f"{section.id}-{number}", blocks=blocks))
    open_page(browser, write(report_data, tmp_path / "report.html", copies))
    count_drawn = "return document.querySelectorAll('.plot[data-drawn]').length"
    assert browser.execute_script(count_drawn) < 10
    browser.execute_script("scrollTo({top: document.body.scrollHeight, behavior: 'instant'})")
    wait(browser, "return 'drawn' in [...document.querySelectorAll('.plot')].at(-1).dataset")
    assert browser.execute_script(count_drawn) < 30


def test_the_console_has_no_errors_and_nothing_is_requested(page):
    page.execute_script("scrollTo(0, document.body.scrollHeight)")
    filter_box(page, "strategy", "ddp_gloo").click()
    assert page.get_log("browser") == []
    assert page.execute_script("return performance.getEntriesByType('resource').map(one => one.name)") == []
    messages = [json.loads(entry["message"])["message"] for entry in page.get_log("performance")]
    requests = [message["params"] for message in messages if message["method"] == "Network.requestWillBeSent"]
    addresses = {message["request"]["url"] for message in requests if message["documentURL"].startswith("file:")}
    assert {address for address in addresses if not address.startswith("data:")} == {page.current_url.split("#")[0]}


RAN = "return [window.ran, document.images.length, document.querySelectorAll('script:not([type])').length]"


def test_nothing_in_a_result_runs(browser, tmp_path):
    sweeps.sweep(tmp_path / "sweep", gpus=(1,))
    report_data = load_report_data([tmp_path / "sweep"])
    page = write(report_data, tmp_path / "report.html", nasty_sections())
    open_page(browser, page, height=4000)  # down to the charts
    browser.execute_script(OPEN_ALL)
    for filter_box in browser.find_elements(By.CSS_SELECTOR, "#filters input"):
        filter_box.click()
        filter_box.click()
    for link in browser.find_elements(By.CSS_SELECTOR, "main a, .plot a"):
        assert link.get_attribute("href").startswith("file:")
    assert browser.execute_script(RAN) == [None, 0, 2]
    assert "<script>" in browser.find_element(By.CSS_SELECTOR, "pre").text  # it is there, as text
    assert browser.find_element(By.CSS_SELECTOR, ".plot .xtick").text.startswith("\"'><img src=x")
    assert browser.get_log("browser") == []
    page = write(report_data, tmp_path / "report.html", nasty_sections("n" * 400))
    open_page(browser, page, pixels=390, height=8000)  # which long words do not make wide
    browser.execute_script(OPEN_ALL)
    assert browser.execute_script("return document.documentElement.scrollWidth") == 390


def test_a_script_that_came_in_as_text_would_not_run(browser, tmp_path):
    """The second wall behind the first: the policy knows the page's own scripts only."""
    page = write_page(tmp_path)
    wrong = '<script>window.ran = 1</script><img src="x" onerror="window.ran = 2"><p>'
    page.write_text(page.read_text(encoding="utf-8").replace("<main", f"{wrong}<main", 1), encoding="utf-8")
    open_page(browser, page)
    assert browser.execute_script("return window.ran") is None
    fetch = "fetch('http://127.0.0.1:9/x').then(() => arguments[0]('went'), () => arguments[0]('refused'))"
    assert browser.execute_async_script(fetch) == "refused"
    refused = [entry["message"] for entry in browser.get_log("browser")]
    assert any("Content Security Policy" in text and "127.0.0.1" in text for text in refused)


def test_the_page_has_what_a_screen_reader_needs(browser, tmp_path):
    open_page(browser, write_page(tmp_path))

    def each(selector, what):
        return list(browser.execute_script(f"return [...document.querySelectorAll(`{selector}`)].map(e => {what})"))

    assert each("html", "e.lang") == ["en"] and len(each("h1", "1")) == len(each("main", "1")) == 1
    assert all(each("[role=img]", "e.ariaLabel"))
    assert all(each("[role=region]", "e.ariaLabel || e.getAttribute('aria-labelledby')"))
    levels = [int(name[1]) for name in each("h1, h2, h3, h4", "e.tagName")]
    assert levels[0] == 1 and all(after - before <= 1 for before, after in itertools.pairwise(levels))
    assert all(int(count) == 1 for count in each("input", "e.labels.length"))
    assert all(text.strip() for text in each("button, a", "e.ariaLabel || e.textContent"))
    assert all(text.strip() for text in each("table", "e.caption.textContent"))
    assert all(each("fieldset", "e.querySelector('legend').textContent"))
    ids = each("[id]", "e.id")
    assert len(ids) == len(set(ids))
    assert set(each("thead th", "e.scope")) == {"col"}
    inside = ".plot a, .plot button, .plot [tabindex]"  # what is drawn is one picture: nothing in it can be reached
    assert each(inside, "e.tabIndex") in ([], [-1] * len(each(inside, "1")))


def test_all_charts_of_a_complete_report_can_be_drawn(browser, tmp_path):
    set_width(browser, 1280)
    browser.get(write_real_page(tmp_path, ("bare_torch", "ddp_gloo", "ddp_nccl", "horovod_gloo")).as_uri())
    browser.execute_script(OPEN_ALL)
    for place in range(0, browser.execute_script("return document.documentElement.scrollHeight"), 500):
        browser.execute_script(f"scrollTo(0, {place})")
        wait(browser, "return [...near].every(plot => 'drawn' in plot.dataset)")
    wait(browser, "return plots.every(plot => 'drawn' in plot.dataset)")
    assert browser.get_log("browser") == []
    size = browser.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
    assert size[0] <= size[1]
