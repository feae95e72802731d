"""What runs used, in a report, and the warning about devices that are busy waiting."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalebench.report.document import Chart, Paragraph
from scalebench.report.sections.usage import section
from scalebench.results import Monitor, Result
from tests import sweeps
from tests.report.section_blocks import SCRIPT, evidence, frames_own, ids, of_kind, one


def test_bars_are_the_frames_figures_and_what_nobody_measured_is_no_chart(tmp_path: Path) -> None:
    found = evidence(tmp_path)
    made = section(found)
    known = ("gpu_util_mean", "gpu_power_w_mean", "sm_clock_mhz_min", "cpu_util_mean", "rss_peak_bytes")
    assert [one.id.split("-1-")[0] for one in of_kind(made, Chart)] == [f"usage-{n.replace('_', '-')}" for n in known]
    for name in known:
        chart = one(made, Chart, f"usage-{name.replace('_', '-')}")
        assert chart.kind == "bars" and frames_own(chart, found.pooled, name) == 7
        assert "better" in chart.caption or "not faster" in chart.caption
    assert of_kind(made, Paragraph) == []
    assert len(set(ids(made))) == len(ids(made))


def busy(gpus: int, share: float | None, seconds: float, noise: float = 0.001, strategy: str = "ddp_gloo") -> Result:
    """A run whose steps take `seconds`."""
    monitor = Monitor(gpu_util_mean=share, gpu_power_w_mean=50.0 * gpus)
    made = sweeps.run(strategy, gpus, noise=noise, monitor=monitor)
    mean = sum(made.ranks[0].block_s) / len(made.ranks[0].block_s)
    for rank in made.ranks:
        rank.block_s = [block * 2 * seconds / mean for block in rank.block_s]
    return made


def test_busier_but_not_faster_is_said_with_its_figures(tmp_path: Path) -> None:
    runs = [busy(1, 0.3, 0.01), busy(2, 0.9, 0.02, strategy=SCRIPT), busy(1, 0.3, 0.01, strategy=SCRIPT)]
    (words,) = of_kind(section(evidence(tmp_path, runs)), Paragraph)
    assert words.text.startswith(
        f"{SCRIPT}: from 1 to 2 devices GPU utilisation rises from 30.0 % to 90.0 %, but throughput does not: from 1,0"
    )
    assert "Power of a device: 50.0 W, then 50.0 W." in words.text and words.kind == "warning"
    assert words.tags["strategy"] == SCRIPT


@pytest.mark.parametrize(
    ("share", "seconds", "noise", "said"),
    [
        (0.9, 0.02, 0.001, True),  # twice the samples in twice the time
        (0.9, 0.025, 0.001, True),
        (0.9, 0.0195, 0.2, True),  # more by less than the noise
        (0.9, 0.0195, 0.001, False),
        (0.9, 0.01, 0.001, False),
        (0.34, 0.02, 0.001, False),
        (0.2, 0.02, 0.001, False),
        (None, 0.02, 0.001, False),
    ],
)
def test_when_it_is_said(share: float | None, seconds: float, noise: float, said: bool, tmp_path: Path) -> None:
    runs = [busy(1, 0.3, 0.01, noise), busy(2, share, seconds, noise)]
    assert bool(of_kind(section(evidence(tmp_path, runs)), Paragraph)) == said


def test_a_bar_is_missing_where_a_figure_is(tmp_path: Path) -> None:
    runs = [busy(1, 0.3, 0.01), busy(2, None, 0.01), busy(4, 0.4, 0.01)]
    chart = one(section(evidence(tmp_path, runs)), Chart, "usage-gpu-util")
    assert (chart.series[0].x, chart.series[0].y) == ([1, 4], [0.3, 0.4])


def test_no_monitor(tmp_path: Path) -> None:
    runs = [sweeps.run("ddp_gloo", n, monitor=Monitor()) for n in (1, 2)]
    assert [one.id.split("-1-")[0] for one in of_kind(section(evidence(tmp_path / "1", runs)), Chart)] == [
        "usage-rss-peak-bytes"  # which ranks say of themselves
    ]
    for rank in (rank for result in runs for rank in result.ranks):
        rank.rss_peak_bytes = None
    assert section(evidence(tmp_path / "2", runs)) is None
    assert section(evidence(tmp_path / "3", [sweeps.failed()])) is None


@pytest.mark.parametrize(("sent", "drawn"), [((0.0, 0.0), False), ((0.0, 5.0), True)])
def test_bars_that_are_all_0_are_no_chart(sent: tuple[float, float], drawn: bool, tmp_path: Path) -> None:
    monitors = [Monitor(gpu_util_mean=0.5, net_sent_bytes_per_s=one) for one in sent]
    runs = [sweeps.run("ddp_gloo", gpus, monitor=monitor) for gpus, monitor in zip((1, 2), monitors, strict=True)]
    found = [chart.id for chart in of_kind(section(evidence(tmp_path, runs)), Chart)]
    assert any("net-sent" in name for name in found) == drawn and "gpu-util" in found[0]
