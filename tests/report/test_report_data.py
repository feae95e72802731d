"""The data of a report: rows, names of runs, records, files of a run, unfinished runs."""

import os

from scalebench.core.spec import write_spec
from scalebench.core.untrusted import find_run_file
from scalebench.report import report_data
from scalebench.report.report_data import (
    MAX_LINE_LENGTH,
    load_report_data,
    read_log_tail,
)
from tests.builders.runs import simulated_spec
from tests.builders.sweeps import run, strong_scaling, write_results
from tests.builders.sweeps import sweep as write_sweep


def test_names_of_runs_are_unique(tmp_path):
    write_sweep(tmp_path, ["bare_torch", "ddp_gloo"], gpus=(1, 2), repeats=2)
    again, copied = run("ddp_gloo", 2, repeat=1, run_id="again"), run("ddp_gloo", 2)
    write_results(tmp_path, [again, copied, run("ddp_gloo", 4, status="failed", run_id="f", reason="r")])
    names = name_detailed_runs(tmp_path)
    assert len(set(names.values())) == len(names) == 8
    assert names["ddp_gloo-2-0"] == "ddp_gloo on 2 devices, repeat 1"
    assert names["bare_torch-1-1"] == "bare_torch on 1 device, repeat 2"
    assert names["again"] == "ddp_gloo on 2 devices, repeat 2 #2" and names["f"] == "ddp_gloo on 4 devices"
    write_results(tmp_path / "s", [run("ddp_gloo", 2), run("ddp_gloo", 4, run_id="s", **strong_scaling(40, 4))])
    strong, weak = "ddp_gloo on 4 devices, scaling strong", "ddp_gloo on 2 devices, scaling weak"
    assert name_detailed_runs(tmp_path / "s") == {"ddp_gloo-2-0": weak, "s": strong}


def name_detailed_runs(folder):
    rows = report_data.list_detailed_runs(load_report_data([folder]))
    assert len({row["run_id"] for row in rows}) == len(rows)
    return report_data.name_runs(rows)


def test_files_named_by_a_record_stay_in_its_folder(tmp_path):
    folder = tmp_path / "run"
    (folder / "sub").mkdir(parents=True)
    (tmp_path / "secret.log").write_text("secret")
    for path in (folder / "rank0.log", folder / "sub" / "rank1.log"):
        path.write_text("mine")
    (folder / "link.log").symlink_to(tmp_path / "secret.log")
    os.mkfifo(folder / "pipe.log")
    assert find_run_file(folder, "rank0.log") == folder / "rank0.log"
    assert find_run_file(folder, "sub/rank1.log") == folder / "sub" / "rank1.log"
    outside = ["../secret.log", str(tmp_path / "secret.log"), "sub/../rank0.log", "link.log", "pipe.log"]
    for name in [*outside, "sub", ".", "", "nothing.log", "a\0b", "x" * 5000]:
        assert find_run_file(folder, name) is None, name


def test_links_are_relative_to_the_first_path(tmp_path):
    for name in ("a", "b"):
        write_sweep(tmp_path / name, ["bare_torch"], gpus=(1,))
    data = load_report_data([tmp_path / "a", tmp_path / "b"])
    assert [data.make_link(tmp_path / name / "0/trace") for name in "ab"] == ["0/trace", "../b/0/trace"]
    assert load_report_data([tmp_path / "a/0/result.json"]).make_link(tmp_path / "a/0/trace") == "trace"


def test_the_last_lines_are_plain_text(tmp_path):
    path = tmp_path / "log"
    for content, lines in (
        (b"".join(b"line %d\n" % number for number in range(100)), [f"line {number}" for number in range(70, 100)]),
        (b"x" * 10_000, ["x" * MAX_LINE_LENGTH]), (b"", []),
        (b"\x1b[31mred\x1b[0m <b>\xff\xfe\x00\x07 end\r 10 %\r 20 %\n",
         ["red <b>\ufffd\ufffd\ufffd\ufffd end", " 10 %", " 20 %"]),
    ):  # fmt: skip
        path.write_bytes(content)
        assert read_log_tail(path).splitlines() == lines
    path.write_bytes(bytes(range(256)) * 100)
    assert all(char.isprintable() or char in "\n\t\xa0\xad" for char in read_log_tail(path))


def test_folders_with_a_spec_and_no_result_are_unfinished(tmp_path):
    write_sweep(tmp_path, ["ddp_gloo"], gpus=(1,))
    write_spec(simulated_spec(1), tmp_path / "0")
    (tmp_path / "7").mkdir()
    write_spec(simulated_spec(2), tmp_path / "7")
    assert load_report_data([tmp_path]).files.unfinished_folders == [tmp_path / "7"]
    assert load_report_data([tmp_path / "0" / "result.json"]).files.unfinished_folders == []
