"""What the terminal tells of one run: a text that is known, and nothing that was not measured."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from scalebench.report.console import Console
from scalebench.report.terminal import list_headline
from scalebench.results import Monitor, Result, write_result
from tests.helpers import rank, record
from tests.report.probed_run import probed_run, probes

GOLDEN = Path(__file__).parents[1] / "golden"


def shown(capsys: pytest.CaptureFixture[str], result: Result) -> list[str]:
    """Lines in a pipe, stripped at their end."""
    folder = Path("run")
    folder.mkdir(exist_ok=True)
    write_result(result, folder)
    Console().details(folder)
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


def warm_up(result: Result) -> str:
    return dict(list_headline(result))["warm-up"]


def test_all_of_a_run_that_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    monitor = Monitor(
        "monitor.parquet", cpu_util_mean=0.9, cpu_util_ours_mean=0.85, rss_bytes_max=10**9, throttle_reasons=[]
    )
    slower = probes(local_step_s=[[0.0066, 0.0069, 0.0066, 0.0069]])
    lines = shown(capsys, probed_run(probes(), slower, monitor=monitor, trace="trace.json.gz"))
    assert "\n".join(lines) + "\n" == (GOLDEN / "details.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("status", ["failed", "oom", "unsupported"])
def test_a_run_that_is_not_ok_has_no_details(capsys: pytest.CaptureFixture[str], status: str) -> None:
    assert shown(capsys, record(status=status, block_s=None)) == []


@pytest.mark.parametrize(
    ("asked", "why"),
    [(None, "an older version wrote the record"), (False, "measure.probes=false"), (True, "a rank has no probes")],
)
def test_without_probes_the_rest_is_told(capsys: pytest.CaptureFixture[str], asked: bool | None, why: str) -> None:
    result = probed_run(probes(), None)
    result.spec["measure"]["probes"] = asked
    if asked is None:
        del result.spec["measure"]["probes"]
    lines = shown(capsys, result)
    assert f"where the time of a step goes was not measured: {why}" in lines
    assert any("samples/s" in line for line in lines) and not any("forward" in line for line in lines)


def test_the_interval_says_what_it_is_over() -> None:
    result = probed_run(None, None)
    assert (
        dict(list_headline(result))["throughput"] == "2,000 samples/s [1,989, 2,011], 95 % over blocks of this repeat"
    )
    few = record(ranks=[rank(0, [0.1, 0.1])])
    told = dict(list_headline(few))
    assert told["throughput"] == "200 samples/s, too few blocks for an interval"
    assert told["steady"] == "unknown, too few blocks"


def test_warm_up_is_found_or_not_or_of_a_fixed_length() -> None:
    result = probed_run(None, None)
    assert warm_up(result) == "over after 3 steps, 800 ms; 23 steps and 1.00 s were left out"
    result.ranks[0].warmup_found_steps = None
    assert warm_up(result) == "its end was not found within 23 steps; 23 steps and 1.00 s were left out"
    del result.spec["measure"]["warmup_max_steps"]
    result.ranks[0].warmup_block_steps = 2
    assert warm_up(result) == "46 steps and 1.00 s were left out"


def test_a_series_that_drifts_is_not_steady() -> None:
    drifting = [0.1 * (1 + block / 50 + 0.001 * (-1) ** block) for block in range(64)]
    assert dict(list_headline(record(ranks=[rank(0, drifting)])))["steady"] in ("no: drifts", "no: warmup left, drifts")
    assert dict(list_headline(record()))["steady"] == "yes, no drift detected"


def test_a_trace_that_was_not_merged_is_where_its_rank_left_it(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys, probed_run(probes(), probes(trace="trace1.json.gz"), trace="trace.json.gz"))
    told = [line.split() for line in lines if "trace" in line]
    assert [words[:2] for words in told] == [["trace", "run/trace.json.gz"], ["trace", "of"]]
    assert told[1] == ["trace", "of", "rank", "1", "run/trace1.json.gz,", "not", "merged"]


def test_what_the_monitor_could_not_see_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    result = dataclasses.replace(probed_run(probes(), probes()), monitor=Monitor(reason="[red]no[/red] NVML here"))
    (line,) = [line for line in shown(capsys, result) if "not measured" in line]
    assert line.split(maxsplit=2)[2] == "[red]no[/red] NVML here"


def test_lines_are_neither_broken_nor_markup(capsys: pytest.CaptureFixture[str]) -> None:
    none = probes(profile=None, reasons={"profile": "[b]no[/b] " * 40 + "profile"})
    assert f"top operations: - ({'[b]no[/b] ' * 40}profile)" in shown(capsys, probed_run(none, none))
