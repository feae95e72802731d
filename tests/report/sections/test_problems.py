"""The sections problems and unfinished."""

import json
import platform
from pathlib import Path

from scalebench.core.spec import write_spec
from scalebench.core.sweep_file import SWEEP_FILE, PlannedRun, new_sweep_record, write_sweep
from scalebench.report.document import Code, Paragraph, Table
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
    monkeypatch.setattr(problems, "MAX_ROWS", 1)
    flagged = [run("ddp_gloo", n, flags=["swapping"]) for n in (1, 2)]
    write_results(tmp_path, [failed_run(gpus=1), failed_run(gpus=2), *flagged])
    for number in (7, 8):
        write_unfinished_run(tmp_path / str(number))
    tables = make_section(tmp_path)[1]
    for name in ("failed", "flagged", "running"):
        assert len(tables[name].rows) == 1 and "The first 1 of 2." in tables[name].caption, name
    assert tables["warnings"].rows[0].cells[1].value == 2


def unfinished_texts(folder, runs=6, above=False, left_out=0, **changes):
    """Write two strategies at 1 and 2 devices, and a bare one: five of `runs` rows; return what the report says."""
    sweep(folder, gpus=(1, 2))
    record = new_sweep_record(["--multirun", "strategy=a b", "resume=true"], "", platform.node(), None)
    record.runs = [PlannedRun(number, f"run {number}", "", 0) for number in range(runs)]
    for planned in record.runs[runs - left_out :]:
        planned.left_out = True
    for name, value in changes.items():
        setattr(record, name, value)
    write_sweep(record, folder)
    return texts_of(folder.parent if above else folder)


def texts_of(folder):
    section = problems.unfinished_section(load_report_data([folder]))
    return [block.text for block in section.blocks if isinstance(block, Paragraph | Code)] if section else []


def test_complete_sweeps_and_single_runs_have_no_unfinished_section(tmp_path):
    assert unfinished_texts(tmp_path / "s", runs=5) == []
    sweep(tmp_path / "t", gpus=(1,))
    assert texts_of(tmp_path / "t") == []
    assert unfinished_texts(tmp_path / "u", ended=True) == [], "a run that left no row is reported when it happens"


def test_an_unfinished_sweep_goes_on_or_has_the_command_that_continues_it(tmp_path):
    assert unfinished_texts(tmp_path / "s") == [
        f"{tmp_path / 's'}: this sweep is still going on: 5 of 6 runs have ended. To come: run 5."
    ]
    (text, *_) = unfinished_texts(tmp_path / "elsewhere", hostname="elsewhere")
    assert "may still go on (elsewhere would know)" in text
    first, command = unfinished_texts(tmp_path / "above" / "s", above=True, pid=2**22 + 1)
    assert "this sweep was cut short: 5 of 6 runs have ended" in first
    assert command == "scalebench --multirun 'strategy=a b' resume=true"
    arguments = ["sweep=demo", "sweep.max_minutes=2.5"]
    first, command = unfinished_texts(
        tmp_path / "short", 40, left_out=35, ended=True, max_minutes=2.5, arguments=arguments
    )
    assert first.endswith(
        "sweep.max_minutes=2.5 left out 35 of 40 runs, the least informative ones: run 5 (35 repeats)."
    )
    assert command == "scalebench sweep=demo resume=true"
    (tmp_path / "s" / SWEEP_FILE).write_text("{")
    assert "is no record of a sweep" in texts_of(tmp_path / "s")[0]
