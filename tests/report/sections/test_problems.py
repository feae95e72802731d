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
    section = problems.section(load_report_data([folder]))
    return section


def get_tables(section):
    return {block.id: block for block in section.blocks if isinstance(block, Table)}


def logs(section):
    return [block for block in section.blocks if isinstance(block, Code)]


def test_without_problems_there_is_no_such_section(tmp_path):
    write_results(tmp_path, [run("ddp_gloo", 2, noise=0.0001)])
    section = problems.section(load_report_data([tmp_path]))
    assert section is None or set(get_tables(section)) <= {"warnings", "flagged"}


def test_failed_runs_with_reason_and_the_end_of_their_log(tmp_path):
    write_results(tmp_path, [failed_run(reason=SCRIPT), failed_run(gpus=4, status="oom", reason="out of memory")])
    (tmp_path / "0" / "rank0.log").write_text("".join(f"line {n}\n" for n in range(100)) + SCRIPT)
    section = make_section(tmp_path)
    assert cell_texts(get_tables(section)["failed"]) == [
        ["ddp_gloo on 8 devices", "failed", SCRIPT, "0"], ["ddp_gloo on 4 devices", "oom", "out of memory", "1"],
    ]  # fmt: skip
    (log,) = logs(section)
    assert log.language == "log" and log.text.splitlines() == [*(f"line {n}" for n in range(71, 100)), SCRIPT]
    assert log.title == "ddp_gloo on 8 devices: the end of rank0.log" and log.tags["strategy"] == "ddp_gloo"
    assert Paragraph("ddp_gloo on 4 devices: its folder has no log rank0.log.", tags=log.tags) in section.blocks


def test_logs_that_say_nothing(tmp_path):
    write_results(tmp_path, [failed_run(), failed_run(gpus=4, log=None), failed_run(gpus=2)])
    (tmp_path / "0" / "rank0.log").write_text("\n \n")
    (tmp_path / "2" / "rank0.log").write_bytes(bytes(range(256)))
    section = make_section(tmp_path)
    sentences = [block.text for block in section.blocks if isinstance(block, Paragraph)]
    assert sentences == [
        "ddp_gloo on 8 devices: rank0.log is empty.",
        "ddp_gloo on 4 devices: its record names no log.",
    ]
    assert "ABC" in logs(section)[0].text and "\0" not in logs(section)[0].text


def test_of_many_logs_those_of_different_reasons(tmp_path, monkeypatch):
    monkeypatch.setattr(problems, "MAX_LOGS", 2)
    write_results(tmp_path, [failed_run(gpus=gpus, reason="one" if gpus < 4 else "two") for gpus in (1, 2, 3, 4)])
    for number in range(4):
        (tmp_path / str(number) / "rank0.log").write_text("text")
    section = make_section(tmp_path)
    assert [log.title.partition(":")[0] for log in logs(section)] == ["ddp_gloo on 1 device", "ddp_gloo on 4 devices"]
    assert "The ends of 2 of 4 logs" in str(section.blocks)
    assert len(get_tables(section)["failed"].rows) == 4


def test_files_that_cannot_be_read(tmp_path):
    sweep(tmp_path, ["ddp_gloo"], gpus=(1,))
    report_data = load_report_data([tmp_path])
    report_data.unreadable = [(Path("1/result.json"), f"no JSON {SCRIPT}")]
    section = problems.section(report_data)
    assert cell_texts(get_tables(section)["unreadable"]) == [["1/result.json", f"no JSON {SCRIPT}"]]


def test_runs_without_a_row(tmp_path):
    sweep(tmp_path, ["ddp_gloo"], gpus=(1,))
    (tmp_path / "7").mkdir()
    write_spec(simulated_spec(2), tmp_path / "7")
    progress = {"rank": 0, "pid": 1, "phase": "measure", "at_s": 1_800_000_000.0}
    (tmp_path / "7" / "progress0.json").write_text(json.dumps(progress))
    table = get_tables(make_section(tmp_path))["running"]
    assert cell_texts(table) == [[str(tmp_path / "7"), "simulated", "2", "measure", "2027-01-15 08:00:00"]]
    assert table.rows[0].tags["strategy"] == "simulated"


def test_flags_with_what_to_do_and_the_rows_that_have_them(tmp_path):
    flags = {1: ["throttled", "of_tomorrow"], 2: ["throttled"], 4: ["oversubscribed"]}
    write_results(tmp_path, [run("ddp_gloo", gpus, flags=names) for gpus, names in flags.items()])
    tables = get_tables(make_section(tmp_path))
    warnings = {row[0]: row[1:] for row in cell_texts(tables["warnings"])}
    assert list(warnings)[:2] == ["oversubscribed", "throttled"] and list(warnings)[-1] == "of tomorrow"
    assert warnings["throttled"][0] == "2" and "does not know this flag" in warnings["of tomorrow"][1]
    assert cell_texts(tables["flagged"])[0] == ["ddp_gloo on 1 device", "throttled, of tomorrow"]


def test_an_unsteady_row_without_a_flag_is_a_warning(tmp_path):
    sweep(tmp_path, ["ddp_gloo"], gpus=(1, 2))
    report_data = load_report_data([tmp_path])
    report_data.pooled["flags"], report_data.pooled["steady"] = ["busy_machine drifts", None], False
    section = problems.section(report_data)
    assert cell_texts(get_tables(section)["flagged"]) == [
        ["ddp_gloo on 1 device", "busy machine, drifts"], ["ddp_gloo on 2 devices", "not steady"],
    ]  # fmt: skip


def test_long_tables_say_what_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(problems, "MAX_ROWS", 1)
    write_results(
        tmp_path, [failed_run(gpus=gpus) for gpus in (1, 2)] + [run("ddp_gloo", n, flags=["swapping"]) for n in (1, 2)]
    )
    for number in (7, 8):
        (tmp_path / str(number)).mkdir()
        write_spec(simulated_spec(2), tmp_path / str(number))
    tables_by_id = get_tables(make_section(tmp_path))
    for name in ("failed", "flagged", "running"):
        assert len(tables_by_id[name].rows) == 1 and "The first 1 of 2." in tables_by_id[name].caption, name
    assert tables_by_id["warnings"].rows[0].cells[1].value == 2


def write_unfinished_sweep(folder, runs=6, **changes):
    """Two strategies at 1 and 2 devices, and a bare one: five of `runs` rows."""
    sweep(folder, gpus=(1, 2))
    record = new_sweep_record(["--multirun", "strategy=a b", "resume=true"], "", platform.node(), None)
    record.runs = [PlannedRun(number, f"run {number}", "", 0) for number in range(runs)]
    for name, value in changes.items():
        setattr(record, name, value)
    write_sweep(record, folder)
    return record


def unfinished_texts(folder):
    section = problems.unfinished_section(load_report_data([folder]))
    return [block.text for block in section.blocks if isinstance(block, Paragraph | Code)] if section else []


def test_complete_sweeps_and_single_runs_have_no_unfinished_section(tmp_path):
    write_unfinished_sweep(tmp_path / "s", runs=5)
    assert unfinished_texts(tmp_path / "s") == []
    sweep(tmp_path / "t", gpus=(1,))
    assert unfinished_texts(tmp_path / "t") == []
    write_unfinished_sweep(tmp_path / "u", ended=True)
    assert unfinished_texts(tmp_path / "u") == [], (
        "a run that left no row at all is reported as a failure when it happens"
    )


def test_a_running_sweep_is_reported_without_a_command(tmp_path):
    write_unfinished_sweep(tmp_path)
    assert unfinished_texts(tmp_path) == [
        f"{tmp_path}: this sweep is still going on: 5 of 6 runs have ended. To come: run 5."
    ]


def test_an_interrupted_sweep_has_the_command_that_continues_it(tmp_path):
    write_unfinished_sweep(tmp_path / "s", pid=2**22 + 1)
    first, command = unfinished_texts(tmp_path)  # also from the folder above
    assert "this sweep was cut short: 5 of 6 runs have ended" in first
    assert command == "scalebench --multirun 'strategy=a b' resume=true"


def test_a_sweep_of_another_machine_may_still_run(tmp_path):
    write_unfinished_sweep(tmp_path, hostname="elsewhere")
    assert "may still go on (elsewhere would know)" in unfinished_texts(tmp_path)[0]


def test_what_was_left_out_is_named(tmp_path):
    record = write_unfinished_sweep(
        tmp_path, runs=40, ended=True, max_minutes=2.5, arguments=["sweep=demo", "sweep.max_minutes=2.5"]
    )
    for planned in record.runs[5:]:
        planned.left_out = True
    write_sweep(record, tmp_path)
    first, command = unfinished_texts(tmp_path)
    assert first.endswith(
        "sweep.max_minutes=2.5 left out 35 of 40 runs, the least informative ones: run 5 (35 repeats)."
    )
    assert command == "scalebench sweep=demo resume=true"


def test_a_record_that_cannot_be_read_is_a_warning(tmp_path):
    write_unfinished_sweep(tmp_path)
    (tmp_path / SWEEP_FILE).write_text("{")
    assert "is no record of a sweep" in unfinished_texts(tmp_path)[0]
