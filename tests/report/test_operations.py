"""The profile for people: the largest operations, and two shares that are not the same."""

from __future__ import annotations

import io

from rich.console import Console

from scalebench.probe_records import Operation, Profile
from scalebench.report.document import Table
from scalebench.report.sections.operations import (
    MAX_OPERATIONS,
    describe_collectives,
    make_operations_table,
    make_run_blocks,
)
from scalebench.report.terminal import make_rich_table
from tests.report.probed_run import probed_run, probes


def lines(table: Table) -> list[list[str]]:
    """Cells of each line below the head."""
    console = Console(width=200, record=True, color_system=None, file=io.StringIO())
    console.print(make_rich_table(table))
    text = [line.strip().split("  ") for line in console.export_text().splitlines() if line.strip()][2:]
    return [[cell.strip() for cell in cells if cell.strip()] for cells in text]


def test_calls_and_own_time_of_an_update() -> None:
    profile = probes().profile
    assert profile is not None
    first, second, third = lines(make_operations_table(profile, "operations", ""))
    assert first == ["gloo:all_reduce", "cpu", "1", "4.00 ms", "40.0 %", "collective"]
    assert second == ["aten::mm", "cpu", "40", "3.00 ms", "30.0 %"]
    assert third == ["a kernel [bold]whose name is much too long for a column[/...", "cpu", "2.5", "500 ns", "0.0 %"]


def test_only_the_largest_and_no_share_of_what_is_not_known() -> None:
    many = Profile(1, 1.0, None, None, [Operation(f"op{number}", 1.0, 0.1) for number in range(MAX_OPERATIONS + 1)])
    found = lines(make_operations_table(many, "operations", ""))
    assert len(found) == MAX_OPERATIONS and {cells[-1] for cells in found} == {"-"}


def test_both_shares_of_collectives() -> None:
    line = describe_collectives(probed_run(probes(), probes()))
    assert (
        "collectives: 40.0 % of the own time of all operations, and as long as 20.0 % of the wall time of a step"
        in line
    )
    other = probes(profile=Profile(3, 0.02, 0.01, None))
    assert describe_collectives(probed_run(other, other)).endswith("no operation that carries data between devices")


def test_without_a_profile_there_is_its_reason() -> None:
    none = probes(profile=None, reasons={"profile": "it has [b]none[/b]"})
    assert list(make_run_blocks(probed_run(none, none))) == ["top operations: - (it has [b]none[/b])"]
