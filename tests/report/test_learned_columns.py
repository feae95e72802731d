"""What the terminal's table has of trainings to a stop, and that it has none of it without any."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console

from scalebench.frame import frame
from scalebench.report.tables import write_tables
from scalebench.report.terminal import make_rich_table
from scalebench.report.training_tables import make_row_table, select_figure_columns
from scalebench.results import Result
from tests.helpers import record
from tests.report.test_tables import text
from tests.sweeps import run, write
from tests.trainings import training

BARE = {"strategy": "bare_torch", "gpus": 1, "epoch_s": 4.0}


ENDS = {"epochs": "3", "training": "6.00 s", "mse": "0.1", "gap": "0.05"}


def rows(*results: Result) -> pd.DataFrame:
    return frame(results, [Path("x")] * len(results))


def shown(results: Sequence[Result], row: int = 0) -> dict[str, str]:
    made = rows(*results)
    return {head: of(made.to_dict("records")[row]) for head, of in select_figure_columns(made).items()}


def lines(*results: Result, width: int = 120) -> list[str]:
    """The table without colour."""
    made = make_row_table(rows(*results))
    assert made is not None
    console = Console(width=width, record=True, color_system=None, file=io.StringIO())
    console.print(make_rich_table(made))
    return [line.rstrip() for line in console.export_text().splitlines()]


def test_none_without_a_training() -> None:
    assert make_row_table(rows(record("ddp"), run("ddp_gloo", 2), training(status="failed"))) is None


def test_a_row_for_each_that_trained() -> None:
    made = lines(training("bare_torch", 1), training(), run("ddp_gloo", 4), training("mirrored", status="failed"))
    shown = [line.split() for line in made if line and "─" not in line]
    assert [cells[:2] for cells in shown[1:]] == [["bare_torch", "1"], ["ddp_gloo", "2"]]
    assert shown[1][-1] == "target" and shown[0][:3] == ["strategy", "gpus", "epochs"]


def test_a_window_of_usual_width_holds_it() -> None:
    made = [training("bare_torch", 1, seed) for seed in (0, 1)] + [training(gpus=2, seed=seed) for seed in (0, 1)]
    assert all("…" not in line for line in lines(*made, width=110))


def test_metric_gap_time_and_speedup() -> None:
    made = [training(**BARE), training(epoch_s=2.0)]  # type: ignore[arg-type]
    told = shown(made, 1)
    assert told.pop("samples/s over bare").startswith("1.7")  # of which time to target knows nothing
    assert told == {**ENDS, "time to target": "6.00 s", "to target over bare": "2.00"}
    other = training("ddp_gloo", 1, epoch_s=5.0)
    assert shown([*made, other], 1)["to target over self"] == "2.50"


def test_a_target_that_was_not_reached_is_told() -> None:
    made = [training(values=[0.9]), training("mirrored", target=None), training("x", status="failed")]
    assert shown(made, 0)["time to target"] == "not reached"
    assert shown(made, 1)["time to target"] == "" == shown(made, 2)["time to target"]
    assert "to target over bare" not in shown(made)


def test_without_a_target_there_is_the_metric() -> None:
    assert shown([training(target=None)]) == ENDS


def test_several_metrics_are_named_in_their_cells() -> None:
    made = [training(target=None), training("mirrored", target=None, metric="accuracy")]
    assert [shown(made, row)["metric"] for row in (0, 1)] == ["mse 0.1", "accuracy 0.1"]


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"learning_rate_rule": "sqrt", "base_batch": 10}, "learning_rate_rule"),
        ({"learning_rate": 0.5}, "learning_rate"),
        ({"weight_decay": 0.5}, "weight_decay"),
        ({"schedule": "cosine"}, "recipe"),
        ({"accumulate": 2}, "accumulate"),
    ],
)
def test_the_table_tells_rows_apart_by_what_was_tried(settings: dict[str, object], told: str) -> None:
    two = training(), training(settings=settings, run_id="other")
    assert told in lines(*two)[1].split() and told in text(*two, width=250)
    other = training(), training("mirrored")
    assert told not in lines(*other)[1] and told not in text(*other, width=250)


def test_seeds_are_told_apart() -> None:
    assert text(training(), training(seed=1), width=250).splitlines()[2].split()[0] == "seed"
    assert lines(training(), training(seed=1))[1].split()[0] == "seed"


def test_files_of_a_sweep_have_a_row_a_training(tmp_path: Path) -> None:
    write(tmp_path, [training(seed=seed) for seed in range(3)])
    write_tables(tmp_path)
    found = pd.read_csv(tmp_path / "trainings.csv")
    assert list(found["reached"]) == [3] == list(pd.read_parquet(tmp_path / "trainings.parquet")["reached"])
    write(tmp_path / "measured", [run("ddp_gloo", 2)])
    write_tables(tmp_path / "measured")
    assert not (tmp_path / "measured" / "trainings.csv").exists()
