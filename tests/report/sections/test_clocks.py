"""Which runs' clocks are drawn."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalebench.report.document import Chart, Paragraph, Section
from scalebench.report.report_data import load_report_data
from scalebench.report.sections import usage
from tests.report.monitored_run import monitored
from tests.sweeps import failed, sweep, write


def told(folder: Path) -> Section:
    found = usage.clocks_section(load_report_data([folder]))
    assert found is not None and found.folded
    ids = [block.id for block in found.blocks if isinstance(block, Chart)]
    assert len(set(ids)) == len(ids)
    return found


def headings(section: Section) -> list[str]:
    return [block.text for block in section.blocks if isinstance(block, Paragraph)]


def test_the_largest_of_each_curve_and_those_with_flags(tmp_path: Path) -> None:
    for number, (gpus, flags) in enumerate([(1, []), (2, ["busy_machine"]), (4, ["swapping"]), (3, ["throttled"])]):
        monitored(tmp_path / str(number), gpus, flags=flags)
    section = told(tmp_path)
    assert headings(section) == [
        "ddp_gloo on 3 devices: throttled", "ddp_gloo on 2 devices: busy machine", "ddp_gloo on 4 devices",
    ]  # fmt: skip
    first = next(block for block in section.blocks if isinstance(block, Chart))
    assert len(first.series) == 3
    assert first.series[0].tags == {"model": "materials_cnn", "strategy": "ddp_gloo", "hardware": "cpu"}


def test_what_is_not_drawn_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "MAX_MONITORED_RUNS", 2)
    for gpus in (1, 2, 3):
        monitored(tmp_path / str(gpus), gpus, flags=["throttled"])
    assert headings(told(tmp_path))[2:] == [
        "1 more runs with a flag, or of the most devices of a curve, are not drawn here."
    ]


def test_runs_without_a_series_have_a_reason(tmp_path: Path) -> None:
    sweep(tmp_path, ["horovod_gloo", "lightning_ddp_gloo"], gpus=(2,))
    monitored(tmp_path / "broken", 1)
    (tmp_path / "broken" / "monitor.parquet").write_bytes(b"half")
    first, second = headings(told(tmp_path))
    assert first == "No series of horovod_gloo on 2 devices; lightning_ddp_gloo on 2 devices: it was not monitored."
    assert second.startswith("No series of ddp_gloo on 1 device: monitor.parquet cannot be read: ")


def test_runs_that_failed_have_no_clocks(tmp_path: Path) -> None:
    write(tmp_path, [failed(flags=["throttled"])])
    assert usage.clocks_section(load_report_data([tmp_path])) is None
