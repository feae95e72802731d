"""Tables of a report in a terminal."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console as RichConsole

from scalebench.frame import survey
from scalebench.report.console import Console
from scalebench.report.document import Cell, Row, Table
from scalebench.report.sections.data_or_model import make_terminal_blocks
from scalebench.report.terminal import make_rich_table
from tests import sweeps
from tests.report.test_choice_tables import pairs


def test_text_is_no_markup_and_numbers_stand_to_the_right() -> None:
    out = RichConsole(file=io.StringIO(), width=60, color_system=None)
    rows = [Row([Cell("[bold]x"), Cell("1")]), Row([Cell("y"), Cell("1,000")])]
    out.print(make_rich_table(Table("id", "", ["name", "count"], rows, frozenset(["count"])), "of [red]them"))
    shown = out.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert shown[0].rstrip() == "of [red]them"
    assert [line.strip() for line in shown if "x" in line or "y" in line] == ["[bold]x      1", "y        1,000"]


def test_a_sweep_that_tried_both_ends_with_the_winners(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweeps.write(tmp_path, pairs())
    Console().table([tmp_path])
    out = capsys.readouterr().out
    assert "Data or model parallelism: predicted and measured" in out and "Bytes of a step" in out
    assert "mlp on 2 devices: pipeline should win at 8, data should win at 64; model won at 8 and 64;" in out
    assert "the kind that should win did, or is tied with it, in 1 of 2\n" in out


def test_others_say_nothing_of_it(tmp_path: Path) -> None:
    sweeps.sweep(tmp_path)
    assert list(make_terminal_blocks(survey([tmp_path]).pooled)) == []
