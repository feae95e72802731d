"""Files of a run: only its own, and only the end of a log."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest

from scalebench.report.report_data import (
    MAX_LINE_LENGTH,
    MAX_LOG_BYTES,
    find_run_file,
    load_report_data,
    read_log_tail,
)
from tests.sweeps import sweep


def test_what_a_record_names_stays_in_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    (folder / "sub").mkdir(parents=True)
    (tmp_path / "secret.log").write_text("secret")
    for path in (folder / "rank0.log", folder / "sub" / "rank1.log"):
        path.write_text("mine")
    (folder / "link.log").symlink_to(tmp_path / "secret.log")
    os.mkfifo(folder / "pipe.log")
    assert find_run_file(folder, "rank0.log") == folder / "rank0.log"
    assert find_run_file(folder, "sub/rank1.log") == folder / "sub" / "rank1.log"
    outside = [
        "../secret.log",
        str(tmp_path / "secret.log"),
        "sub/../rank0.log",
        "link.log",
        "pipe.log",
        "sub",
        ".",
        "",
    ]
    for name in [*outside, "nothing.log", "a\0b", "x" * 5000]:
        assert find_run_file(folder, name) is None, name


def test_links_are_relative_to_what_was_given_first(tmp_path: Path) -> None:
    sweep(tmp_path / "a", ["bare_torch"], gpus=(1,))
    sweep(tmp_path / "b", ["ddp_gloo"], gpus=(1,))
    found = load_report_data([tmp_path / "a", tmp_path / "b"])
    assert found.make_link(tmp_path / "a" / "0" / "trace") == "0/trace"
    assert found.make_link(tmp_path / "b" / "0" / "trace") == "../b/0/trace"
    of_a_file = load_report_data([tmp_path / "a" / "0" / "result.json"])
    assert of_a_file.make_link(tmp_path / "a" / "0" / "trace") == "trace"


def test_the_last_lines(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("".join(f"line {number}\n" for number in range(100)))
    assert read_log_tail(path).splitlines() == [f"line {number}" for number in range(70, 100)]
    path.write_text("x" * 10_000)
    assert read_log_tail(path) == "x" * MAX_LINE_LENGTH
    path.write_text("")
    assert read_log_tail(path) == ""


def test_any_bytes_are_plain_text(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"\x1b[31mred\x1b[0m <b>\xff\xfe\x00\x07 end\r 10 %\r 20 %\n")
    assert read_log_tail(path).splitlines() == ["red <b>\ufffd\ufffd\ufffd\ufffd end", " 10 %", " 20 %"]
    path.write_bytes(bytes(range(256)) * 100)
    assert all(char.isprintable() or char in "\n\t\xa0\xad" for char in read_log_tail(path))


def test_a_log_larger_than_memory_costs_its_end(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with open(path, "wb") as file:
        file.truncate(100_000_000)
        file.seek(0, os.SEEK_END)
        file.write(b"\nthe end\n")
    tracemalloc.start()
    try:
        assert read_log_tail(path).splitlines()[-1] == "the end"
        assert tracemalloc.get_traced_memory()[1] < 20 * MAX_LOG_BYTES
    finally:
        tracemalloc.stop()


def test_a_log_that_is_gone_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        read_log_tail(tmp_path / "log")
