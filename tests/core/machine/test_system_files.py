"""The kernel's files: what is not there, or not as it should be, is no answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalebench.core.machine import cpus as system_files


def test_files_that_are_there_and_those_that_are_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(system_files, "ROOT", tmp_path)
    (tmp_path / "sys").mkdir()
    (tmp_path / "sys/text").write_bytes(b"a: 1\nb:  two \xff\n")
    (tmp_path / "sys/number").write_text(" -12\n")
    assert system_files.find("^b:(.*)$", "sys", "text") == "two \ufffd"
    assert system_files.find("^c:(.*)$", "sys/text") is None
    assert (system_files.read("sys"), system_files.read("sys/absent")) == ("", "")
    assert system_files.number("sys/number") == -12
    assert [system_files.number(f"sys/{name}") for name in ("text", "absent")] == [None, None]


@pytest.mark.parametrize(
    ("text", "cpus"), [("0-2,8\n", [0, 1, 2, 8]), ("3\n", [3]), ("\n", []), ("10-11,0", [10, 11, 0])]
)
def test_lists_of_processors(text: str, cpus: list[int]) -> None:
    assert system_files.cpu_list(text) == cpus
