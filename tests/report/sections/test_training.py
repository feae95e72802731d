"""Curves and outcomes of trainings in a report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from scalebench.report import markdown, training_tables
from scalebench.report.document import Chart, Paragraph, Section, Table
from scalebench.report.html import page
from scalebench.report.sections import make_sections, training
from scalebench.results import Result
from scalebench.spec import HardwareSpec
from scalebench.time_to_target import outcomes
from tests.report.section_blocks import SCRIPT, evidence, named, of_kind, one, texts
from tests.sweeps import run
from tests.trainings import falling
from tests.trainings import training as trained


def section(folder: Path, *made: Result) -> Section:
    found = training.section(evidence(folder, made))
    assert found is not None
    return found


def seeds(strategy: str, gpus: int, lasts: Sequence[float], epoch_s: float, **changes: Any) -> Iterator[Result]:
    for seed, last in enumerate(lasts):
        yield trained(
            strategy, gpus, seed, [0.4, 0.2 + 0.01 * seed, last], epoch_s=epoch_s * (1 + 0.05 * seed), **changes
        )


def pair(folder: Path) -> Section:
    made = [*seeds("bare_torch", 1, [0.1, 0.11, 0.14], 4.0), *seeds("ddp_gloo", 2, [0.12, 0.1, 0.3], 2.5)]
    return section(folder, *made)


def test_charts_are_means_over_seeds_of_the_records_points(tmp_path: Path) -> None:
    made = pair(tmp_path)
    charts = {chart.id: chart for chart in of_kind(made, Chart)}
    assert list(charts) == [f"training-1-{kind}" for kind in ("epochs", "seconds", "trained", "gap")]
    line = named(charts["training-1-epochs"], "ddp_gloo on 2 devices")
    assert line.x == [1, 2, 3] and line.y == pytest.approx([0.4, 0.21, 0.52 / 3])
    assert line.low[0] == pytest.approx(0.4) == line.high[0] and line.tags["strategy"] == "ddp_gloo"
    low, high = line.low[1], line.high[1]
    assert low is not None and high is not None and (low + high) / 2 == pytest.approx(0.21)
    assert high - low == pytest.approx(2 * 4.302652729749462 * 0.01 / 3**0.5)
    assert named(charts["training-1-seconds"], "ddp_gloo on 2 devices").x == pytest.approx([2.625, 5.25, 7.875])
    assert named(charts["training-1-seconds"], "bare_torch on 1 device").x == pytest.approx([4.2, 8.4, 12.6])
    assert named(charts["training-1-trained"], "ddp_gloo on 2 devices").y == pytest.approx([0.2, 0.105, 0.26 / 3])
    assert named(charts["training-1-gap"], "ddp_gloo on 2 devices").y == pytest.approx([0.2, 0.105, 0.26 / 3])
    target = named(charts["training-1-epochs"], "target mse 0.15")
    assert (target.x, target.y, target.style) == ([1.0, 3.0], [0.15, 0.15], "ideal")
    assert all(series.style != "ideal" for series in charts["training-1-gap"].series)
    assert "lower is better" in charts["training-1-epochs"].caption and "over seeds" in charts["training-1-gap"].caption


def test_the_table_and_the_words(tmp_path: Path) -> None:
    made = pair(tmp_path)
    table = one(made, Table)
    bare, ddp = ({head: row.cells[i] for i, head in enumerate(table.columns)} for row in table.rows)
    assert (bare["reached"].text, ddp["reached"].text) == ("3 of 3 seeds", "2 of 3 seeds")
    assert (
        bare["time to target (95 %)"].value == pytest.approx(12 * 1.155 ** (1 / 3))
        and "[" in bare["time to target (95 %)"].text
    )
    assert ddp["time to target (95 %)"].text == "7.69 s"  # two of three: no interval
    assert ddp["to target over bare"].value == pytest.approx(12 / 7.5)
    assert ddp["samples/s over bare"].value != pytest.approx(12 / 7.5, rel=0.01)
    assert ddp["stopped by"].text == "target, epochs" and bare["rule"].text == "none"
    assert ddp["mse (95 %)"].value == pytest.approx(0.52 / 3) and ddp["gap"].value == pytest.approx(0.26 / 3)
    said = [block.text for block in of_kind(made, Paragraph)]
    assert said[0].startswith("First to reach the target: bare_torch on 1 device: mse 0.15 after 12.6 s [")
    assert said[1] == "1 of 2 trainings did not reach mse 0.15 with every seed."


def test_one_seed_is_its_own_curve_and_has_no_band(tmp_path: Path) -> None:
    made = section(tmp_path, trained(values=falling(400), target=None))
    chart = of_kind(made, Chart, "training-1-epochs")[0]
    (line,) = chart.series
    assert not line.low and len(line.x) <= 300 and (line.x[0], line.x[-1]) == (1, 400) and chart.y.log
    table = one(made, Table)
    assert not {"target", "reached", "time to target (95 %)"} & set(table.columns)
    assert "seeds" not in chart.caption and not of_kind(made, Paragraph)


def test_lines_end_where_the_first_seed_does(tmp_path: Path) -> None:
    made = section(tmp_path, trained(seed=0, values=[0.4, 0.3, 0.2, 0.1]), trained(seed=1, values=[0.3, 0.1]))
    line = of_kind(made, Chart, "training-1-epochs")[0].series[0]
    assert line.x == [1, 2] and line.y == pytest.approx([0.35, 0.2]) and not line.low


def test_seeds_that_were_evaluated_by_the_clock_have_no_mean(tmp_path: Path) -> None:
    made = [trained(seed=seed, values=[0.5, 0.4, 0.3, 0.2], target=None) for seed in range(3)]
    for seed, result in enumerate(made):
        for point in result.quality.curve[:-1]:
            point.step += seed
    line = of_kind(section(tmp_path, *made), Chart, "training-1-epochs")[0].series[0]
    assert line.y == [0.5, 0.4, 0.3, 0.2] and not line.low


def test_rules_and_rates_are_names(tmp_path: Path) -> None:
    made = [
        trained(settings={"learning_rate_rule": rule, "base_batch": 10, "learning_rate": 1e-3})
        for rule in ("none", "sqrt")
    ]
    made.append(trained(settings={"schedule": "cosine", "base_batch": 10}, run_id="c"))
    found = training_tables.name_trainings(outcomes(evidence(tmp_path, made).frame))
    assert sorted(found.values()) == [
        "ddp_gloo on 2 devices, learning rate rule none",
        "ddp_gloo on 2 devices, learning rate rule sqrt",
        "ddp_gloo on 2 devices, schedule=cosine, learning rate rule none",
    ]


def test_an_accuracy_rises(tmp_path: Path) -> None:
    made = section(
        tmp_path, *(trained(seed=s, values=[0.02, 0.6, 0.9], target=0.8, metric="accuracy") for s in range(3))
    )
    chart = of_kind(made, Chart, "training-1-epochs")[0]
    assert "higher is better" in chart.caption and not chart.y.log
    gap = of_kind(made, Chart, "training-1-gap")[0].series[0]
    assert gap.y == pytest.approx([-0.01, -0.3, -0.45])  # better than on what it was trained on
    assert one(made, Table).rows[0].cells[one(made, Table).columns.index("reached")].text == "3 of 3 seeds"


def test_without_validation_what_is_known_is_told(tmp_path: Path) -> None:
    bare = trained(target=None)
    for point in bare.quality.curve:
        point.metrics, point.train_metrics = {}, {}
    bare.quality.metric = bare.quality.metric_name = None
    made = section(tmp_path, bare)
    assert not of_kind(made, Chart) and one(made, Table).rows[0].cells[6].text == "3"


def test_machines_and_models_are_groups_of_their_own(tmp_path: Path) -> None:
    other = HardwareSpec("elsewhere", devices="cpu", gpus_per_node=2)
    made = section(tmp_path, trained(), trained(hardware=other, run_id="there"))
    assert [table.id for table in of_kind(made, Table)] == ["training-1-ends", "training-2-ends"]
    assert "hardware elsewhere" in of_kind(made, Table)[1].title


def test_of_many_some_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "MAX_CURVES", 1)
    made = section(tmp_path, trained(), trained("mirrored"))
    assert len(of_kind(made, Chart)[0].series) == 2  # and the target
    assert any(block.text.startswith("1 of 2 trainings of") for block in of_kind(made, Paragraph))
    assert len(one(made, Table).rows) == 2


def test_runs_of_their_throughput_are_no_trainings(tmp_path: Path) -> None:
    assert training.section(evidence(tmp_path, [run("ddp_gloo", 2), trained(status="failed")])) is None


def test_it_comes_after_the_epochs_and_is_escaped(tmp_path: Path) -> None:
    found = evidence(tmp_path, [trained(settings={"learning_rate_rule": SCRIPT}), trained()])
    order = [made.id for made in make_sections(found)]
    assert order.index("training") < order.index("learning")
    text = " ".join(texts(block) for block in training.section(found).blocks)  # type: ignore[union-attr]
    assert SCRIPT in text
    for write, name in ((markdown.write, "r.md"), (page.write, "r.html")):
        write(found, tmp_path / name)
        assert SCRIPT not in (tmp_path / name).read_text(encoding="utf-8")
