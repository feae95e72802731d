"""The history of this machine: what sweeps add to it, and what a single repeat gets from it."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import scalebench
from scalebench.analysis import history
from scalebench.analysis.history import HistoryEntry, append_history, read_history
from scalebench.analysis.load import survey
from scalebench.analysis.scaling_curves import plain_rows
from scalebench.core.machine.machine import classify_machine
from scalebench.core.result import Result, write_result
from tests.builders.repeat_worlds import World
from tests.builders.runs import MACHINE, record

START_SD = 0.05


@pytest.fixture(autouse=True)
def file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("SCALEBENCH_HISTORY", str(tmp_path / "history.jsonl"))
    return tmp_path / "history.jsonl"


def write(folder: Path, *results: Result) -> Path:
    for number, result in enumerate(results):
        (folder / str(number)).mkdir(parents=True)
        write_result(result, folder / str(number))
    return folder


def make_sweep(folder: Path, seed: int, repeats: int = 3, drift: float = 0.0, **changes: Any) -> Path:
    """A sweep of three configurations whose starts differ by START_SD, and whose repeats differ by `drift`, for all of
    a cohort alike."""
    levels = World("", START_SD, drift).draw(np.random.default_rng(seed), 3, repeats)
    return write(
        folder,
        *(
            record(
                strategy, block_s=0.1 * math.exp(-levels[k, r]), repeat=r, run_id=f"{folder.name}-{strategy}-{r}",
                started_at=f"2026-01-01T{r:02}:{k:02}:00+00:00", cohort=f"c{r}" if drift else None, **changes,
            )
            for r in range(repeats)
            for k, strategy in enumerate(("bare_torch", "ddp", "horovod"))
        ),
    )  # fmt: skip


def remember(folder: Path) -> None:
    append_history(survey(folder).configurations.list_history(str(folder)))


def only(folder: Path) -> dict[str, Any]:
    (row,) = plain_rows(scalebench.pooled(folder))
    return row


def test_a_sweep_adds_a_line_for_each_configuration_once(tmp_path: Path, file: Path) -> None:
    folder = make_sweep(tmp_path / "sweep", 1)
    remember(folder)
    remember(folder)
    entries = [msgspec.json.decode(line, type=HistoryEntry) for line in file.read_text().splitlines()]
    assert [(entry.strategy, entry.repeats) for entry in entries] == [("bare_torch", 3), ("ddp", 3), ("horovod", 3)]
    rates = [run.throughput_samples_per_s for run in scalebench.load(folder).itertuples() if run.strategy == "ddp"]
    assert entries[1].variance == pytest.approx(np.log(np.array(rates, float)).var(ddof=1))
    assert entries[1].throughput_samples_per_s == pytest.approx(np.exp(np.log(np.array(rates, float)).mean()))
    assert 0 < sum(entry.degrees_of_freedom for entry in entries) <= 6
    assert entries[0].machine == str(classify_machine(MACHINE)) and entries[0].session == str(folder)


def test_a_single_repeat_has_limits_by_the_history_when_that_is_long_enough(tmp_path: Path) -> None:
    single = write(tmp_path / "single", record(run_id="single"))
    before = only(single)
    assert before["interval_over"] == "blocks" and before["throughput_high"] / before["throughput_low"] < 1.02
    remember(make_sweep(tmp_path / "first", 1))
    assert only(single) == before, "six degrees of freedom at most"
    for seed in range(2, 8):
        remember(make_sweep(tmp_path / f"sweep{seed}", seed))
    after = only(single)
    assert (
        after["interval_over"] == "history" and after["throughput_samples_per_s"] == before["throughput_samples_per_s"]
    )
    half_width = math.log(after["throughput_high"] / after["throughput_low"]) / 2
    assert half_width == pytest.approx(2.03 * START_SD, rel=0.4)
    (frame_row,) = scalebench.load(single).to_dict("records")
    assert frame_row["interval_over"] == "blocks", "a row of one run is of that run"


def test_ratios_of_single_repeats_have_limits_by_the_history(tmp_path: Path) -> None:
    pair = write(tmp_path / "pair", record("bare_torch", run_id="bare"), record("ddp", gpus=2, run_id="ddp"))
    assert scalebench.pooled(pair)["speedup_bare_low"].isna().all()
    for seed in range(8):
        remember(make_sweep(tmp_path / f"sweep{seed}", seed))
    row = scalebench.pooled(pair).to_dict("records")[1]
    assert row["speedup_bare"] == pytest.approx(2)
    half_width = math.log(row["speedup_bare_high"] / row["speedup_bare_low"]) / 2
    assert half_width == pytest.approx(2.03 * 2**0.5 * START_SD, rel=0.4)


@pytest.mark.parametrize(("cohort", "sd"), [("one", START_SD), ("another", math.hypot(0.3, START_SD))])
def test_what_changes_for_all_runs_of_a_cohort_is_not_in_their_ratios(cohort: str, sd: float, tmp_path: Path) -> None:
    bare, ddp = record("bare_torch", run_id="bare", cohort="one"), record("ddp", gpus=2, run_id="ddp", cohort=cohort)
    pair = write(tmp_path / "pair", bare, ddp)
    for seed in range(8):
        remember(make_sweep(tmp_path / f"sweep{seed}", seed, drift=0.3))
    row = scalebench.pooled(pair).to_dict("records")[1]
    half_width = math.log(row["speedup_bare_high"] / row["speedup_bare_low"]) / 2
    assert half_width == pytest.approx(2.06 * 2**0.5 * sd, rel=0.4)
    width = math.log(row["throughput_high"] / row["throughput_low"]) / 2
    assert width > 0.3, "the throughput of another day differs by the drift"


def test_a_history_without_turns_serves_runs_in_turns_too(tmp_path: Path) -> None:
    """Files of earlier versions have no such variances."""
    runs = record("bare_torch", run_id="bare", cohort="one"), record("ddp", gpus=2, run_id="ddp", cohort="one")
    pair = write(tmp_path / "pair", *runs)
    for seed in range(8):
        remember(make_sweep(tmp_path / f"sweep{seed}", seed))
    assert not scalebench.pooled(pair)["speedup_bare_low"].isna()[1]


def test_other_machines_say_nothing(tmp_path: Path) -> None:
    other = dataclasses.replace(MACHINE, cpu_model="another")
    for seed in range(8):
        remember(make_sweep(tmp_path / f"sweep{seed}", seed, machine=other))
    assert only(write(tmp_path / "single", record()))["interval_over"] == "blocks"
    assert only(write(tmp_path / "same", record(machine=other)))["interval_over"] == "history"


def test_single_repeats_and_sleeping_strategies_add_nothing(tmp_path: Path, file: Path) -> None:
    sleepers = [record("simulated", repeat=r, run_id=f"s{r}") for r in range(3)]
    for sleeper in sleepers:
        sleeper.scale.framework = "none"
    remember(write(tmp_path / "sweep", record(), *sleepers))
    assert not file.exists()


def test_only_the_newest_entries_are_kept(tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MAX_ENTRIES", 4)
    for name in ("one", "two"):
        remember(make_sweep(tmp_path / name, 1))
    sessions = [msgspec.json.decode(line)["session"] for line in file.read_text().splitlines()]
    assert [Path(session).name for session in sessions] == ["one", "two", "two", "two"]


@pytest.mark.parametrize("text", ["{", '{"machine": 1}\n', "\xff", '{"a": 1}\n' * 10])
def test_a_history_that_cannot_be_read_is_named_in_one_line(tmp_path: Path, file: Path, text: str) -> None:
    file.write_bytes(text.encode("latin-1"))
    single = write(tmp_path / "single", record())
    surveyed = survey(single)
    ((path, line),) = surveyed.unreadable
    assert path == file and "the history of this machine cannot be read" in line and "\n" not in line
    assert surveyed.pooled["interval_over"].tolist() == ["blocks"]
    remember(make_sweep(tmp_path / "sweep", 1))
    assert file.read_bytes() == text.encode("latin-1"), "what somebody else wrote stays"


def test_it_can_be_switched_off(tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCALEBENCH_HISTORY", "off")
    remember(make_sweep(tmp_path / "sweep", 1))
    assert not file.exists() and read_history()[1] is None
    monkeypatch.delenv("SCALEBENCH_HISTORY")
    monkeypatch.setenv("SCALEBENCH_CACHE", str(tmp_path / "cache"))
    remember(tmp_path / "sweep")
    assert len(list((tmp_path / "cache" / "history").glob("*.jsonl"))) == 1
