"""The section problems."""

import json
from pathlib import Path

from scalebench.core.spec import write_spec
from scalebench.report import document
from scalebench.report.document import Code, Table
from scalebench.report.report_data import load_report_data
from scalebench.report.sections import problems
from tests.builders.runs import simulated_spec
from tests.builders.sweeps import failed_run, run, sweep, write_results
from tests.report.section_blocks import SCRIPT, cell_texts


def make_section(folder):
    """Return the section with its tables by their ids and its logs."""
    section = problems.section(load_report_data([folder]))
    tables = {block.id: block for block in section.blocks if isinstance(block, Table)}
    return section, tables, [block for block in section.blocks if isinstance(block, Code)]


def test_of_many_logs_those_of_different_reasons_as_plain_text(tmp_path, monkeypatch):
    monkeypatch.setattr(problems, "MAX_LOGS", 2)
    reasons = enumerate(("one", "one", "one", "two"), 1)
    write_results(tmp_path, [failed_run(gpus=gpus, reason=reason) for gpus, reason in reasons])
    for number in range(4):
        (tmp_path / str(number) / "rank0.log").write_bytes(bytes(range(256)))
    section, tables, logs = make_section(tmp_path)
    assert [log.title.partition(":")[0] for log in logs] == ["ddp_gloo on 1 device", "ddp_gloo on 4 devices"]
    assert "The ends of 2 of 4 logs" in str(section.blocks) and len(tables["failed"].rows) == 4
    assert "ABC" in logs[0].text and "\0" not in logs[0].text


def write_unfinished_run(folder):
    folder.mkdir()
    write_spec(simulated_spec(2), folder)


def test_runs_without_a_row_and_files_that_cannot_be_read(tmp_path):
    sweep(tmp_path, ["ddp_gloo"], gpus=(1,))
    write_unfinished_run(tmp_path / "7")
    progress = {"rank": 0, "pid": 1, "phase": "measure", "at_s": 1_800_000_000.0}
    (tmp_path / "7" / "progress0.json").write_text(json.dumps(progress))
    table = make_section(tmp_path)[1]["running"]
    assert cell_texts(table) == [[str(tmp_path / "7"), "simulated", "2", "measure", "2027-01-15 08:00:00"]]
    assert table.rows[0].tags["strategy"] == "simulated"
    report_data = load_report_data([tmp_path])
    report_data.unreadable = [(Path("1/result.json"), f"no JSON {SCRIPT}")]
    (table,) = [block for block in problems.section(report_data).blocks if getattr(block, "id", "") == "unreadable"]
    assert cell_texts(table) == [["1/result.json", f"no JSON {SCRIPT}"]]


def test_an_unsteady_row_without_a_flag_is_a_warning(tmp_path):
    sweep(tmp_path, ["ddp_gloo"], gpus=(1, 2))
    report_data = load_report_data([tmp_path])
    report_data.pooled["flags"], report_data.pooled["steady"] = ["busy_machine drifts", None], False
    (table,) = [block for block in problems.section(report_data).blocks if getattr(block, "id", "") == "flagged"]
    assert cell_texts(table) == [
        ["ddp_gloo on 1 device", "busy machine, drifts"], ["ddp_gloo on 2 devices", "not steady"],
    ]  # fmt: skip


def test_long_tables_say_what_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(document, "MAX_ROWS", 1)
    flagged = [run("ddp_gloo", n, flags=["swapping"]) for n in (1, 2)]
    write_results(tmp_path, [failed_run(gpus=1), failed_run(gpus=2), *flagged])
    for number in (7, 8):
        write_unfinished_run(tmp_path / str(number))
    tables = make_section(tmp_path)[1]
    for name in ("failed", "flagged", "running"):
        assert len(tables[name].rows) == 1 and "The first 1 of 2." in tables[name].caption, name
    assert tables["warnings"].rows[0].cells[1].value == 2
