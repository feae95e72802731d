"""The section on memory, against bytes that were written down here."""

from __future__ import annotations

from pathlib import Path

from scalebench.report.document import MAX_ROWS, Chart, Paragraph, Table
from scalebench.report.sections.memory import section
from tests import sweeps
from tests.footprints import WHOLE, kept, out_of_memory
from tests.report.section_blocks import SCRIPT, column, evidence, frames_own, of_kind, one, texts


def test_table_words_and_bars(tmp_path: Path) -> None:
    found = evidence(
        tmp_path,
        [
            kept("bare_torch", 1, WHOLE, peak=30_000),
            kept("ddp_gloo", 2, WHOLE, peak=31_000),
            kept(SCRIPT, 2, WHOLE // 2),
            kept("horovod_gloo", 2, None),
            out_of_memory("ddp_gloo", 4),
        ],
    )
    made = section(found)
    table = one(made, Table, "memory-table")
    assert column(table, "state of a device") == {
        "bare_torch 1": WHOLE, "ddp_gloo 2": WHOLE, f"{SCRIPT} 2": WHOLE // 2, "horovod_gloo 2": None,
        "ddp_gloo 4": None,
    }  # fmt: skip
    assert list(column(table, "of a whole model").values()) == [1.0, 1.0, 0.5, None, None]
    assert list(column(table, "peak of a device").values()) == [30_000, 31_000, None, None, None]
    assert list(column(table, "status").values()) == ["ok"] * 4 + ["oom"]
    assert "16 bytes" in table.caption and "status" not in table.numeric
    said = [texts(words) for words in of_kind(made, Paragraph)]
    assert f"50 % under {SCRIPT}." in said[0] and "On 4 devices out of memory: ddp_gloo; none had room." in said
    chart = one(made, Chart, "memory-state")
    assert chart.kind == "bars" and frames_own(chart, found.pooled, "state_bytes") == 3


def test_bars_of_one_height_are_no_chart(tmp_path: Path) -> None:
    made = section(evidence(tmp_path, [kept("bare_torch", 1, WHOLE), kept("ddp_gloo", 2, WHOLE)]))
    assert of_kind(made, Chart) == [] and of_kind(made, Paragraph) == [] and len(of_kind(made, Table)) == 1


def test_no_section_where_nobody_tells(tmp_path: Path) -> None:
    assert section(evidence(tmp_path / "1")) is None
    assert section(evidence(tmp_path / "2", [sweeps.failed()])) is None


def test_no_more_rows_than_a_table_holds(tmp_path: Path) -> None:
    many = [kept("ddp_gloo", 1, WHOLE) for _ in range(MAX_ROWS + 3)]
    for number, run in enumerate(many):
        run.run_id = run.fingerprint = str(number)
    table = one(section(evidence(tmp_path, many)), Table)
    assert len(table.rows) == MAX_ROWS and "3 more rows" in table.caption
