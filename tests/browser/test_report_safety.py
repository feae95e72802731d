"""Nothing in a result runs in a browser, and a screen reader can read the page."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By

from scalebench.report.html.page import write
from scalebench.report.report_data import load_report_data
from tests.browser.test_report_page import open_page, write_page
from tests.builders import sweeps
from tests.report.html.test_page import nasty_sections

pytestmark = [pytest.mark.slow, pytest.mark.browser]
RAN = "return [window.ran, document.images.length, document.querySelectorAll('script:not([type])').length]"


def test_nothing_in_a_result_runs(browser: Chrome, tmp_path: Path) -> None:
    sweeps.sweep(tmp_path / "sweep", gpus=(1,))
    report_data = load_report_data([tmp_path / "sweep"])
    open_page(browser, write(report_data, tmp_path / "report.html", nasty_sections()))
    browser.execute_script("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    for filter_box in browser.find_elements(By.CSS_SELECTOR, "#filters input"):
        filter_box.click()
        filter_box.click()
    for link in browser.find_elements(By.CSS_SELECTOR, "main a, .plot a"):
        assert link.get_attribute("href").startswith("file:")
    assert browser.execute_script(RAN) == [None, 0, 2]
    assert "<script>" in browser.find_element(By.CSS_SELECTOR, "pre").text  # it is there, as text
    assert browser.find_element(By.CSS_SELECTOR, ".plot .xtick").text.startswith("\"'><img src=x")
    assert browser.get_log("browser") == []


def test_long_words_do_not_make_the_page_wide(browser: Chrome, tmp_path: Path) -> None:
    sweeps.sweep(tmp_path / "sweep", gpus=(1,))
    report_data = load_report_data([tmp_path / "sweep"])
    open_page(browser, write(report_data, tmp_path / "report.html", nasty_sections("n" * 400)), pixels=390)
    browser.execute_script("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    assert browser.execute_script("return document.documentElement.scrollWidth") == 390


def test_a_script_that_came_in_as_text_would_not_run(browser: Chrome, tmp_path: Path) -> None:
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


def test_the_page_has_what_a_screen_reader_needs(browser: Chrome, tmp_path: Path) -> None:
    open_page(browser, write_page(tmp_path))

    def each(selector: str, what: str) -> list[str]:
        return list(browser.execute_script(f"return [...document.querySelectorAll(`{selector}`)].map(e => {what})"))

    assert each("html", "e.lang") == ["en"] and len(each("h1", "1")) == len(each("main", "1")) == 1
    assert all(each("[role=img]", "e.ariaLabel")) and all(
        each("[role=region]", "e.ariaLabel || e.getAttribute('aria-labelledby')")
    )
    levels = [int(name[1]) for name in each("h1, h2, h3, h4", "e.tagName")]
    assert levels[0] == 1 and all(after - before <= 1 for before, after in itertools.pairwise(levels))
    assert all(int(count) == 1 for count in each("input", "e.labels.length"))
    assert all(text.strip() for text in each("button, a", "e.ariaLabel || e.textContent"))
    assert all(text.strip() for text in each("table", "e.caption.textContent")) and all(
        each("fieldset", "e.querySelector('legend').textContent")
    )
    ids = each("[id]", "e.id")
    assert len(ids) == len(set(ids))
    assert set(each("thead th", "e.scope")) == {"col"}
    inside = ".plot a, .plot button, .plot [tabindex]"  # what is drawn is one picture: nothing in it can be reached
    assert each(inside, "e.tabIndex") in ([], [-1] * len(each(inside, "1")))
