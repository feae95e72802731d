"""Data or model parallelism in the report."""

from __future__ import annotations

from pathlib import Path

from scalebench.measured_rates import PROBES
from scalebench.report.document import Paragraph, Table
from scalebench.report.sections.data_or_model import section
from tests.choices import bare, ddp, made
from tests.report.section_blocks import SCRIPT, evidence, ids, of_kind, one, texts
from tests.report.test_choice_tables import pairs


def test_it_answers_then_shows_what_that_stands_on(tmp_path: Path) -> None:
    found = section(evidence(tmp_path, pairs()))
    said, verdict = of_kind(found, Paragraph)
    assert said.kind == "answer" and said.text.startswith("mlp on 2 devices: pipeline should win at 8")
    assert said.text.endswith(".") and said.tags == {"model": "mlp", "hardware": "cpu"}
    assert verdict.text == "The kind that should win did, or is tied with it, in 1 of 2."
    assert ids(found) == ["data-or-model-winners", "data-or-model-bytes"]
    for table in of_kind(found, Table):
        assert len(table.rows) == 2 and table.numeric < set(table.columns) and table.caption.endswith(".")
        assert all("strategy" not in row.tags for row in table.rows)


def test_figures_are_the_frames(tmp_path: Path) -> None:
    gathered = evidence(tmp_path, pairs())
    table = one(section(gathered), Table, "data-or-model-winners")
    rate = {
        (row["strategy"], row["global_batch"]): row["throughput_samples_per_s"]
        for row in gathered.pooled.to_dict("records")
    }
    for row, batch in zip(table.rows, (8, 64), strict=True):
        values = {head: cell.value for head, cell in zip(table.columns, row.cells, strict=True)}
        assert values["data took"] == batch / rate["ddp_gloo", batch]
        assert values["model took"] == batch / rate["model_parallel", batch]


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    found = section(evidence(tmp_path, [bare(8, probed=False), ddp(8, 0.1), made("model_parallel", 8, 0.05)]))
    said = [words.text for words in of_kind(found, Paragraph)]
    assert f"mlp: data, model not predicted: the bare run was {PROBES}." in said


def test_nothing_to_say(tmp_path: Path) -> None:
    assert section(evidence(tmp_path / "usual")) is None
    assert section(evidence(tmp_path / "one", [bare(8), ddp(8, 0.1)])) is None


def test_text_stays_text(tmp_path: Path) -> None:
    changed = pairs()
    for run in changed:
        run.workload.model = SCRIPT
    found = section(evidence(tmp_path, changed))
    assert found is not None and all(SCRIPT in texts(block) for block in of_kind(found, Table))
