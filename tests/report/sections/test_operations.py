"""The section operations, and the operations of one run in the terminal."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from scalebench.core.result import Profile, ProfiledOperation, Result, read_result, write_result
from scalebench.report.document import Chart, Paragraph, Section, Table
from scalebench.report.report_data import load_report_data
from scalebench.report.sections import operations
from scalebench.report.sections.operations import (
    MAX_OPERATIONS,
    describe_collectives,
    make_operations_table,
    make_run_blocks,
)
from tests.builders.sweeps import failed_run, make_probed_run, make_probes, run, sweep, write_results
from tests.report.section_blocks import cell_texts


def make_section(folder: Path, *more: Path) -> Section:
    section = operations.section(load_report_data([folder, *more]))
    assert section is not None
    ids = [block.id for block in section.blocks if isinstance(block, Chart | Table)]
    assert len(set(ids)) == len(ids)
    return section


def tables(section: Section, begin: str = "operations-") -> list[Table]:
    return [block for block in section.blocks if isinstance(block, Table) and block.id.startswith(begin)]


def paragraph_text(section: Section) -> str:
    return "\n".join(block.text for block in section.blocks if isinstance(block, Paragraph))


def change_result(folder: Path, **changes: object) -> Result:
    result = dataclasses.replace(read_result(folder / "result.json"), **changes)  # type: ignore[arg-type]
    write_result(result, folder)
    return result


def test_the_largest_operations_of_the_best_and_the_largest_runs(tmp_path: Path) -> None:
    sweep(tmp_path, ["bare_torch", "ddp_gloo", "horovod_gloo"])
    section = make_section(tmp_path)
    titles = [table.title for table in tables(section)]
    assert titles == ["Top operations: ddp_gloo on 4 devices", "Top operations: horovod_gloo on 4 devices"]
    table = tables(section)[0]
    first, second = table.rows
    assert [cell.value for cell in first.cells] == ["gloo:all_reduce", "cpu", 1.0, 0.004, 0.4, "collective"]
    assert [cell.value for cell in second.cells] == ["aten::mm", "cpu", 40.0, 0.003, 0.3, None]
    assert first.tags == {"model": "materials_cnn", "strategy": "ddp_gloo", "hardware": "cpu"}
    assert "on rank 0" in table.caption
    shares = load_report_data([tmp_path]).frame.set_index("run_id").loc["ddp_gloo-4-0"]
    assert f"collectives: {100 * shares['collective_kernel_share']:.1f} % of the own time" in paragraph_text(section)
    assert f"as long as {100 * shares['collective_step_share']:.1f} % of the wall time of a step" in paragraph_text(
        section
    )
    assert "No operations of bare_torch on 1 device: there is no profile." in paragraph_text(section)


def test_the_best_run_may_not_be_the_largest(tmp_path: Path) -> None:
    slow = run("ddp_gloo", 4)
    slow.ranks = run("horovod_gloo", 1).ranks
    write_results(tmp_path, [run("ddp_gloo", 2), slow])
    assert [table.title for table in tables(make_section(tmp_path))] == ["Top operations: ddp_gloo on 2 devices"]
    assert "ddp_gloo on 4 devices: there is no profile" in paragraph_text(make_section(tmp_path))


def test_names_of_operations_stay_text_and_lines(tmp_path: Path) -> None:
    sweep(tmp_path, ["ddp_gloo"], gpus=(2,))
    result = read_result(tmp_path / "0" / "result.json")
    name = "<script>alert(1)</script>" + "x" * 100
    assert result.ranks[0].probes is not None
    result.ranks[0].probes.profile = Profile(3, 0.02, None, None, [ProfiledOperation(name, 1.0, 0.001)] * 50)
    write_result(result, tmp_path / "0")
    (table,) = tables(make_section(tmp_path))
    assert len(table.rows) == 10
    assert table.rows[0].cells[0].text.startswith("<script>alert(1)") and len(table.rows[0].cells[0].text) == 60
    assert table.rows[0].cells[4].text == "-" and table.rows[0].cells[4].value is None


def test_no_more_runs_than_people_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "MAX_PROFILED_RUNS", 1)
    sweep(tmp_path, ["ddp_gloo", "horovod_gloo"], gpus=(2,))
    section = make_section(tmp_path)
    assert len(tables(section)) == 1 and "shown for 1 of the 2 best and largest runs" in paragraph_text(section)


def test_traces_are_linked_from_where_the_report_is(tmp_path: Path) -> None:
    sweep(tmp_path / "a", ["ddp_gloo"], gpus=(1, 2))
    sweep(tmp_path / "b", ["horovod_gloo"], gpus=(2,))
    change_result(tmp_path / "a" / "1", trace="trace.json.gz")
    result = change_result(tmp_path / "b" / "0", trace="../0/trace.json.gz")
    assert result.ranks[1].probes is not None
    result.ranks[1].probes.trace = "trace1.json.gz"
    write_result(result, tmp_path / "b" / "0")
    for path in ("a/1/trace.json.gz", "b/0/trace.json.gz", "b/0/trace1.json.gz"):
        (tmp_path / path).touch()
    (table,) = tables(make_section(tmp_path / "a", tmp_path / "b"), "traces")
    assert [[cell.text for cell in row.cells] for row in table.rows] == [
        ["ddp_gloo on 2 devices", "all ranks", "1/trace.json.gz"],
        ["horovod_gloo on 2 devices", "rank 1", "../b/0/trace1.json.gz"],
    ]
    assert table.rows[0].cells[2].link == "1/trace.json.gz" and "ui.perfetto.dev" in table.caption
    (tmp_path / "a" / "1" / "trace.json.gz").unlink()
    assert len(tables(make_section(tmp_path / "a", tmp_path / "b"), "traces")[0].rows) == 1


def test_runs_without_probes_say_so(tmp_path: Path) -> None:
    result = run("ddp_gloo", 2)
    for rank in result.ranks:
        rank.probes = None
    write_results(tmp_path, [result])
    section = make_section(tmp_path)
    assert "these runs have no probes" in paragraph_text(section)
    assert "No operations of ddp_gloo on 2 devices: they were run without probes." in paragraph_text(section)


def test_runs_that_failed_have_no_operations(tmp_path: Path) -> None:
    write_results(tmp_path, [failed_run()])
    assert operations.section(load_report_data([tmp_path])) is None


def test_calls_and_own_time_of_a_step() -> None:
    profile = make_probes().profile
    assert profile is not None
    first, second, third = cell_texts(make_operations_table(profile, "operations", ""))
    assert first == ["gloo:all_reduce", "cpu", "1", "4.00 ms", "40.0 %", "collective"]
    assert second == ["aten::mm", "cpu", "40", "3.00 ms", "30.0 %", ""]
    assert third == [
        "a kernel [bold]whose name is much too long for a column[/...",
        "cpu",
        "2.5",
        "500 ns",
        "0.0 %",
        "",
    ]


def test_only_the_largest_and_no_share_of_what_is_not_known() -> None:
    many = Profile(
        1, 1.0, None, None, [ProfiledOperation(f"op{number}", 1.0, 0.1) for number in range(MAX_OPERATIONS + 1)]
    )
    rows = cell_texts(make_operations_table(many, "operations", ""))
    assert len(rows) == MAX_OPERATIONS and {cells[4] for cells in rows} == {"-"}


def test_both_shares_of_collectives() -> None:
    line = describe_collectives(make_probed_run(make_probes(), make_probes()))
    assert (
        "collectives: 40.0 % of the own time of all operations, and as long as 20.0 % of the wall time of a step"
        in line
    )
    other = make_probes(profile=Profile(3, 0.02, 0.01, None))
    assert describe_collectives(make_probed_run(other, other)).endswith(
        "no operation that carries data between devices"
    )


def test_without_a_profile_there_is_its_reason() -> None:
    none = make_probes(profile=None, reasons={"profile": "it has [b]none[/b]"})
    assert list(make_run_blocks(make_probed_run(none, none))) == ["top operations: - (it has [b]none[/b])"]
