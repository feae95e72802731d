"""The ladder of one run in the terminal."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalebench.linear import Figure
from scalebench.report.sections import attribution
from scalebench.verbs import show
from tests import sweeps
from tests.ladder_runs import alone, strong, weak


def details(capsys: pytest.CaptureFixture[str], folder: Path) -> str:
    assert show.main([str(folder), "--details"]) == 0
    return capsys.readouterr().out


def test_show_tells_where_the_lost_efficiency_went(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweeps.write(tmp_path, list(weak(flags=["unequal_clocks"])))
    out = details(capsys, tmp_path)
    assert out.count("where the lost efficiency went") == 2  # of the run and of the strategy alone, not of bare
    assert "transfer" in out and "9.1 % [" in out and "against the bare baseline" in out
    assert "straggler: devices run at different clocks (flagged unequal_clocks)." in out


def test_a_local_batch_is_looked_up_among_all_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result, full, bare, own = strong()
    sweeps.write(tmp_path, [result, full, bare, own, alone("ddp", 0.01, 5)])
    assert "no good run" not in details(capsys, tmp_path)
    sweeps.write(tmp_path / "less", [strong(run_id="alone")[0], alone("bare_torch", 0.018, 20, scaling="strong")])
    out = details(capsys, tmp_path / "less")
    assert "batch + overhead + contention" in out and "no good run of bare_torch on one device" in out


def test_a_run_without_a_baseline_has_no_ladder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweeps.write(tmp_path, [weak()[0], sweeps.failed()])
    assert "lost efficiency" not in details(capsys, tmp_path)


def test_figures_with_and_without_limits() -> None:
    assert attribution.format_share(Figure(0.1234, 0.1, 0.15)) == "12.3 % [10.0, 15.0]"
    assert attribution.format_share(Figure(-0.0001)) == "0.0 %"
