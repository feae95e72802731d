"""Rows of another layout of the nodes: of one machine, told apart, never one row."""

from __future__ import annotations

import io
from pathlib import Path

import rich.console

from scalebench.analysis.baselines import Baselines
from scalebench.analysis.comparison import compare, compare_by
from scalebench.analysis.comparison.pairing import make_compared_run
from scalebench.analysis.repeats import pool_results
from scalebench.analysis.scaling_curves import make_curves
from scalebench.core.result import Result
from scalebench.core.spec import HardwareSpec
from scalebench.report.terminal import make_configurations
from tests.builders.runs import record


def placed(layout: str, gpus: int = 4, block_s: float = 0.1, strategy: str = "ddp") -> Result:
    """On nodes of four devices."""
    hardware = HardwareSpec("nodes", gpus_per_node=4, max_nodes=2, layout=layout)
    made = record(strategy, gpus, block_s, run_id=f"{strategy}-{layout}-{gpus}-{block_s}", hardware=hardware)
    made.scale.nodes = 2 if layout == "spread" else 1
    return made


def test_they_are_rows_of_their_own_with_a_column_that_tells() -> None:
    results = [placed("sequence"), placed("spread"), placed("spread", block_s=0.11)]
    frame = pool_results(results, [Path(str(number)) for number in range(3)])
    assert sorted(zip(frame["layout"], frame["repeats"], frame["nodes"], strict=True)) == [
        ("sequence", 1, 1),
        ("spread", 2, 2),
    ]
    console = rich.console.Console(file=io.StringIO(), width=250)
    console.print(make_configurations(frame))
    shown = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert [line.split()[0] for line in shown if "ddp" in line] == ["sequence", "spread"]
    console = rich.console.Console(file=io.StringIO(), width=250)
    console.print(make_configurations(frame[frame["layout"] == "spread"]))
    assert "layout" not in console.file.getvalue()  # type: ignore[attr-defined]


def test_they_share_the_baseline_of_one_device() -> None:
    """Which is of the usual layout, since one device has no other."""
    alone, bare = placed("sequence", 1), placed("sequence", 1, strategy="bare_torch")
    found = Baselines.among([alone, bare])
    for layout in ("sequence", "spread"):
        assert found.find_self(placed(layout)) is alone and found.find_bare(placed(layout)) is bare


def test_a_record_from_before_there_were_layouts_is_compared_all_the_same() -> None:
    alone = placed("sequence", 1)
    for key in ("layout", "interface", "stage", "max_jobs", "slurm"):
        del alone.spec["hardware"][key]
    assert Baselines.among([alone]).find_self(placed("spread")) is alone


def test_they_are_compared_only_by_their_layout() -> None:
    one, other = [[make_compared_run(placed(layout))] for layout in ("sequence", "spread")]
    refused = compare(one, other)
    assert refused.status == "not comparable" and "hardware.layout" in (refused.refusal or "")
    (pair,) = compare_by([*one, *other], "hardware.layout").pairs
    assert pair.ratio == 1.0 and "layout" not in str(pair.label)
    scaled = [make_compared_run(placed("sequence", 1)), *other]
    assert len(compare_by(scaled, "gpus").pairs) == 1


def test_they_are_curves_of_their_own() -> None:
    results = [placed(layout, gpus) for layout in ("sequence", "spread") for gpus in (2, 4)]
    frame = pool_results(results, [Path(str(number)) for number in range(4)])
    assert [(curve.name, curve.gpus) for curve in make_curves(frame)] == [
        ("ddp layout=sequence", [2, 4]),
        ("ddp layout=spread", [2, 4]),
    ]
