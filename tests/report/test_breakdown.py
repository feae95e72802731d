"""The parts of a step: known figures come out, and what is missing says why and where its time went."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from scalebench import probed
from scalebench.report import step_breakdown
from scalebench.report.step_breakdown import STEP_PARTS, compute_rest, step_interval
from scalebench.report.terminal import make_rich_table
from scalebench.results import Result, Sync
from scalebench.stats import Interval
from tests.report.probed_run import probed_run, probes, series


def rows(result: Result) -> dict[str, list[str]]:
    """Cells behind the name of each row; columns are two spaces apart."""
    console = Console(width=250, record=True, color_system=None, file=io.StringIO())
    console.print(make_rich_table(step_breakdown.make_run_breakdown(result), collapse=False))
    lines = [line.strip().split("  ") for line in console.export_text().splitlines()]
    return {cells[0]: [cell.strip() for cell in cells[1:] if cell.strip()] for cells in lines}


def without(**reasons: str) -> Result:
    """A run that lacks what the reasons are given for."""
    lists = {"forward": "forward_s", "backward": "backward_s", "optimizer": "optimizer_s", "data": "fixed_s"}
    lists |= {"exposed": "off_s", "isolated": "exchange_s", "straggler": "local_step_s", "copy": "copy_s"}
    found = [probes(**{lists[name]: [] for name in reasons}, reasons=dict(reasons)) for _ in range(2)]
    return probed_run(*found)


def test_parts_and_the_rest_make_up_the_update() -> None:
    result = probed_run(probes(), probes())
    parts = [row.measure(result) for row in STEP_PARTS.values()]
    left, step = compute_rest(result, step_interval(result))[0], step_interval(result)
    assert [round(part.value, 9) for part in parts if part] == [0.001, 0.002, 0.003, 0.0005, 0.0025]
    assert left is not None and step is not None
    assert left.value + sum(part.value for part in parts if part) == pytest.approx(step.value)
    assert left.value == pytest.approx(0.001)
    assert left.high - left.value > max(part.high - part.value for part in [step, *parts] if part)


def test_a_rest_below_zero_is_within_noise() -> None:
    noisy = probes(optimizer_s=series(0.0066, 5, 0.002))
    name, found = "not in any of these", rows(probed_run(noisy, noisy))
    assert found[name] == ["-0.10 ms [-1.85, 1.65]", "-1.0 %", "cannot be distinguished from 0"]
    assert found["optimizer"][-1] == "cannot be distinguished from 0"
    assert rows(probed_run(probes(), probes()))[name] == ["1.00 ms [0.85, 1.15]", "10.0 %"]


@pytest.mark.parametrize(
    ("missing", "row", "also"),
    [
        ("data", "data loading", []),
        ("forward", "forward", ["backward"]),
        ("backward", "backward", ["optimizer"]),
        ("optimizer", "optimizer", []),
        ("exposed", "exposed sync", ["sync per epoch"]),
        ("isolated", "isolated sync", []),
        ("straggler", "imbalance", []),
        ("copy", "host-to-device copy", []),
    ],
)
def test_what_was_not_measured_is_a_dash_and_its_reason(missing: str, row: str, also: list[str]) -> None:
    found = rows(without(**{missing: "not [b]here[/b]"}))
    for name in (row, *also):
        assert found[name] == ["-", "not [b]here[/b]"], name
    others = set(found) - {row, *also}
    assert not any("-" in found[name] for name in others)


def test_the_rest_holds_what_was_not_measured() -> None:
    found = rows(without(forward="no", data="no"))
    assert found["not in any of these"][-1] == "contains data loading, forward, backward, not measured"
    nothing: dict[str, Any] = {"exposed": "no", "data": "no", "forward": "no", "backward": "no", "optimizer": "no"}
    assert rows(without(**nothing))["not in any of these"] == ["-", "no part was measured"]


def test_one_device_misses_no_exchange() -> None:
    result = without(exposed="one device has nobody to exchange with")
    assert rows(result)["not in any of these"][-1] == "contains exposed sync, not measured"
    result.scale.gpus = 1
    assert "holds" not in rows(result)["not in any of these"][-1]


def test_figures_that_are_not_there_for_no_reason_of_their_own() -> None:
    result = probed_run(probes(copy_s=[0.1]), probes(copy_s=[0.1]), sync=Sync())
    found = rows(result)
    assert found["host-to-device copy"] == ["-", "too few blocks for a figure"]
    assert found["gradient messages per epoch"] == ["-", "the gradient messages of a step are not known"]
    result.workload.updates_per_epoch = None
    for name in ("sync per epoch", "gradient messages per epoch"):
        assert rows(result)[name] == ["-", "the steps of an epoch are not known"]


def test_the_interval_of_an_update_is_that_of_throughput() -> None:
    result = probed_run(None, None)
    step = step_interval(result)
    assert step is not None and [step.low, step.value, step.high] == pytest.approx([0.009943, 0.01, 0.010057], rel=1e-4)
    result.scale.lockstep = False
    assert step_interval(result) == Interval(step.value, step.value, step.value)


def test_every_part_of_the_frame_has_a_row() -> None:
    told = {row.measure for row in (*STEP_PARTS.values(), *step_breakdown.OTHER_FIGURES)}
    assert told == set(probed.COLUMNS.values())
