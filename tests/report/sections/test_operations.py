"""The section operations, and the operations of one run in the terminal."""

import dataclasses

from scalebench.core.result import Profile, ProfiledOperation, read_result, write_result
from scalebench.report.document import Chart, Paragraph, Table
from scalebench.report.report_data import load_report_data
from scalebench.report.sections import operations
from scalebench.report.sections.operations import describe_collectives
from tests.builders.sweeps import make_probed_run, make_probes, run, sweep, write_results


def make_section(folder, *more):
    section = operations.section(load_report_data([folder, *more]))
    ids = [block.id for block in section.blocks if isinstance(block, Chart | Table)]
    assert len(set(ids)) == len(ids)
    return section


def tables(section, begin="operations-"):
    return [block for block in section.blocks if isinstance(block, Table) and block.id.startswith(begin)]


def paragraph_text(section):
    return "\n".join(block.text for block in section.blocks if isinstance(block, Paragraph))


def change_result(folder, **changes):
    result = dataclasses.replace(read_result(folder / "result.json"), **changes)
    write_result(result, folder)
    return result


def test_the_best_run_may_not_be_the_largest(tmp_path):
    slow = run("ddp_gloo", 4)
    slow.ranks = run("horovod_gloo", 1).ranks
    write_results(tmp_path, [run("ddp_gloo", 2), slow])
    assert [table.title for table in tables(make_section(tmp_path))] == ["Top operations: ddp_gloo on 2 devices"]
    assert "ddp_gloo on 4 devices: there is no profile" in paragraph_text(make_section(tmp_path))


def test_names_of_operations_stay_text_and_lines(tmp_path):
    sweep(tmp_path, ["ddp_gloo"], gpus=(2,))
    result = read_result(tmp_path / "0" / "result.json")
    name = "<script>alert(1)</script>" + "x" * 100
    result.ranks[0].probes.profile = Profile(3, 0.02, None, None, [ProfiledOperation(name, 1.0, 0.001)] * 50)
    write_result(result, tmp_path / "0")
    (table,) = tables(make_section(tmp_path))
    assert len(table.rows) == 10
    assert table.rows[0].cells[0].text.startswith("<script>alert(1)") and len(table.rows[0].cells[0].text) == 60
    assert table.rows[0].cells[4].text == "-" and table.rows[0].cells[4].value is None


def test_no_more_runs_than_people_read(tmp_path, monkeypatch):
    monkeypatch.setattr(operations, "MAX_PROFILED_RUNS", 1)
    sweep(tmp_path, ["ddp_gloo", "horovod_gloo"], gpus=(2,))
    section = make_section(tmp_path)
    assert len(tables(section)) == 1 and "shown for 1 of the 2 best and largest runs" in paragraph_text(section)


def test_traces_are_linked_from_where_the_report_is(tmp_path):
    sweep(tmp_path / "a", ["ddp_gloo"], gpus=(1, 2))
    sweep(tmp_path / "b", ["horovod_gloo"], gpus=(2,))
    change_result(tmp_path / "a" / "1", trace="trace.json.gz")
    result = change_result(tmp_path / "b" / "0", trace="../0/trace.json.gz")
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


def test_a_profile_without_collectives_is_described_as_one():
    none = make_probes(profile=Profile(3, 0.02, 0.01, None))
    line = describe_collectives(make_probed_run(none, none))
    assert line == "collectives: the profile shows no operation that carries data between devices"
