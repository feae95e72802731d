"""The knee in words: below the table of a sweep, and in its report."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from scalebench.batch_knee import StepFit
from scalebench.curves import Curve
from scalebench.pooling import pool
from scalebench.report.console import Console
from scalebench.report.sections.batch_size import (
    MAX_SENTENCES,
    describe_curve,
    format_half_batch,
    list_terminal_sentences,
)
from scalebench.results import Result
from tests import sweeps
from tests.helpers import null_config


def curve(rates: dict[int, float], width: float | None = 0.01, gpus: int = 1, start_s: float | None = None) -> Curve:
    """Limits lie off by the share `width`; without `start_s` its steps are not known."""
    rows = [
        {"batch_per_device": batch, "throughput_samples_per_s": rate, "gpus": gpus,
         "throughput_low": None if width is None else rate * (1 - width),
         "throughput_high": None if width is None else rate * (1 + width),
         "step_s": None if start_s is None else batch * gpus / rate}
        for batch, rate in rates.items()
    ]  # fmt: skip
    return Curve(f"ddp, {gpus} devices", {}, {"model": "mlp"}, rows)


@pytest.mark.parametrize(
    ("rates", "said"),
    [
        (
            {75: 50, 150: 80, 350: 93, 700: 100},
            "saturating batch: 350 per device (ddp, 1 devices): 93 % of the highest throughput, that of 700, and no neighbour "
            "could be it by its interval",
        ),
        (
            {75: 50, 150: 89.5, 350: 95, 700: 100, 1000: 99},
            "saturating batch: 350 per device (ddp, 1 devices): 95 % of the highest throughput, that of 700; by their intervals "
            "150 could be it",
        ),
        (
            {75: 100, 150: 99},
            "saturating batch: 75 per device or less (ddp, 1 devices): no measured batch has a higher throughput, and no neighbour "
            "could be it by its interval",
        ),
        (
            {75: 50, 5000: 100},
            "no saturating batch up to 5,000 per device (ddp, 1 devices): 75 has less than 90 % of its "
            "throughput, which may rise further, and no neighbour could be it by its interval",
        ),
    ],
)
def test_a_knee(rates: dict[int, float], said: str) -> None:
    assert describe_curve(curve(rates)) == said
    assert str(describe_curve(curve(rates, width=None))).endswith(", with no interval to tell neighbours from it")
    assert str(describe_curve(curve(rates), "mlp")).count("(mlp with ddp, 1 devices)") == 1


def test_the_line_of_its_updates_is_told_behind() -> None:
    rates = {b: b / (0.01 + 1e-5 * b) for b in (100, 1000, 3000, 4000)}  # n_1/2 1,000, and 100,000 samples/s at most
    said = str(describe_curve(curve(rates, start_s=0.01)))
    assert "; n_1/2 1,000" in said and said.endswith(
        "; the highest is 80 % of the limit that the line of its steps approaches"
    )
    assert "n_1/2" not in str(describe_curve(curve({10: 10.0, 20: 18.0, 40: 30.0, 80: 40.0})))


def test_one_batch_says_nothing() -> None:
    assert describe_curve(curve({75: 50})) is None


@pytest.mark.parametrize(
    ("low", "high", "shown"), [(390.0, 450.0, "420 [390, 450]"), (None, None, "420")]
)  # fmt: skip
def test_half_batches(low: float | None, high: float | None, shown: str) -> None:
    assert format_half_batch(StepFit(0.004, 1e-5, 420.0, low, high, 0.99, 0.02, 7)) == shown
    assert format_half_batch(StepFit(0.004, 1e-5, None, None, None, 0.99, 0.02, 7)) == ""


def batched(batch: int, strategy: str = "ddp_gloo", **changes: Any) -> Result:
    train = dataclasses.replace(null_config().train, batch_per_device=batch)
    made = sweeps.run(strategy, 1, train=train, **changes)
    made.run_id = made.fingerprint = f"{strategy}-{batch}"
    return made


def pooled(*results: Result) -> pd.DataFrame:
    return pool(results, [Path(str(number)) for number in range(len(results))])


def test_a_sweep_over_batches_has_a_line_for_each_curve() -> None:
    assert [line.partition(":")[0] for line in list_terminal_sentences(pooled(batched(10), batched(20)))] == [
        "saturating batch"
    ]
    assert list_terminal_sentences(pooled(batched(10), batched(10, "horovod_gloo"), sweeps.failed())) == []
    assert (
        len(list_terminal_sentences(pooled(batched(10), batched(20), sweeps.run("ddp_gloo", 2)))) == 1
    )  # of the one device only
    many = [batched(batch, f"s{number}") for number in range(MAX_SENTENCES + 2) for batch in (10, 20)]
    said = list_terminal_sentences(pooled(*many))
    assert len(said) == MAX_SENTENCES + 1 and said[-1].startswith("saturating batches: 2 more")


def test_the_terminal_shows_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweeps.write(tmp_path, [batched(10), batched(20)])
    Console().table([tmp_path])
    lines = capsys.readouterr().out.splitlines()
    (told,) = [
        line for line in lines if line.startswith("saturating batch: 10 per device or less (ddp_gloo, 1 device)")
    ]
    assert lines.index(told) < next(i for i, line in enumerate(lines) if line.startswith("results:"))
