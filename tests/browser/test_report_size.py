"""Two hundred runs: the page stays under two million bytes, and all of its charts can be drawn."""

import pytest

from scalebench.report.html.page import write
from scalebench.report.report_data import MAX_DETAILED_RUNS, load_report_data
from tests.browser.conftest import set_width
from tests.browser.test_report_page import wait
from tests.builders import sweeps

LIMIT = 2_000_000  # bytes
STRATEGIES = ("bare_torch", "ddp_gloo", "ddp_nccl", "horovod_gloo", "horovod_mpi", "horovod_nccl", "lightning_ddp_gloo",
              "mirrored", "fsdp", "lightning_horovod", "multiworker")  # fmt: skip


def write_many_runs(folder):
    """Write runs with probes, a few more than are shown in detail."""
    sweeps.sweep(folder, STRATEGIES, gpus=(1, 2, 4, 8), repeats=5)
    report_data = load_report_data([folder])
    assert MAX_DETAILED_RUNS <= len(report_data.frame) <= MAX_DETAILED_RUNS + 5
    return report_data


@pytest.mark.slow
def test_two_hundred_runs_are_a_page_of_less_than_two_megabytes(tmp_path):
    report_data = write_many_runs(tmp_path / "sweep")
    page = write(report_data, tmp_path / "report.html")
    assert page.stat().st_size < LIMIT


@pytest.mark.slow
@pytest.mark.browser
def test_all_charts_of_a_complete_report_can_be_drawn(browser, tmp_path):
    sweeps.sweep(tmp_path / "sweep", STRATEGIES[:4])
    set_width(browser, 1280)
    browser.get(write(load_report_data([tmp_path / "sweep"]), tmp_path / "report.html").as_uri())
    browser.execute_script("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    height = browser.execute_script("return document.documentElement.scrollHeight")
    for place in range(0, height, 500):
        browser.execute_script(f"scrollTo(0, {place})")
        wait(browser, "return [...near].every(plot => 'drawn' in plot.dataset)")
    wait(browser, "return plots.every(plot => 'drawn' in plot.dataset)")
    assert browser.get_log("browser") == []
    size = browser.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
    assert size[0] <= size[1]
