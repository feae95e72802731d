"""JSON files, sweep.json and files that others wrote: written completely or not at all, read back or refused."""

import os
import platform
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from scalebench.core import json_files, untrusted
from scalebench.core.errors import InputError
from scalebench.core.json_files import read_json
from scalebench.core.result import read_result
from scalebench.core.run_folder import RESULT_FILE, progress_path
from scalebench.core.sweep_file import SWEEP_FILE, PlannedRun, SweepRecord, new_sweep_record, read_sweep, write_sweep
from scalebench.measure.progress import read_progress
from tests.builders.runs import record


@dataclass
class Inner:
    number: int
    share: float = 0.5


@dataclass
class Outer:
    inner: Inner
    names: list[str]
    maybe: int | None = None
    parts: list[Inner] = field(default_factory=list)
    table: dict[str, float] = field(default_factory=dict)
    anything: Any = None
    losses: list[float | None] = field(default_factory=list)
    nested: dict[str, list[list[float]]] = field(default_factory=dict)


GOOD = {"inner": {"number": 1}, "names": ["a"]}


def test_what_cannot_be_written_leaves_the_old_file_alone(tmp_path, monkeypatch):
    json_files.write_json(tmp_path / "x.json", [1])
    for figure in (float("nan"), float("inf")):
        with pytest.raises(ValueError):
            json_files.write_json(tmp_path / "x.json", [figure])
    assert json_files.read_json(tmp_path / "x.json") == [1]
    assert os.listdir(tmp_path) == ["x.json"]
    (tmp_path / "x.json").write_text('{"a": [1, ')  # cut short
    with pytest.raises(ValueError):
        json_files.read_json(tmp_path / "x.json")
    (tmp_path / "x.json").unlink()
    (tmp_path / "x.json").mkdir()
    with pytest.raises(OSError):
        json_files.write_json(tmp_path / "x.json", 1)
    assert os.listdir(tmp_path) == ["x.json"]
    (tmp_path / "log").write_bytes(b"abcdef\xff")
    expected = ["f\ufffd", "abcdef\ufffd"]
    assert [json_files.read_tail(tmp_path / "log", limit_bytes) for limit_bytes in (2, 100)] == expected


WRONG = [
    ({"inner": 3}, "inner: Expected `object`, got `int`"),
    ({"inner": {}}, "inner: Object missing required field `number`"),
    ({"inner": {"number": True}}, "inner.number: Expected `int`, got `bool`"),
    ({"inner": {"number": 1.0}}, "inner.number: Expected `int`, got `float`"),
    ({"names": ["a", 2]}, "names[1]: Expected `str`, got `int`"),
    ({"parts": [{"number": "x"}]}, "parts[0].number: Expected `int`, got `str`"),
    ({"table": {"k": "v"}}, "table[...]: Expected `float`, got `str`"),
    ({"inner": {"number": 1, "share": 10**400}}, "inner.share: Number out of range"),
    ({"losses": [1.0, None, True]}, "losses[2]: Expected `float | null`, got `bool`"),
]


def test_a_pipe_that_the_user_names_is_written_to_and_not_replaced(tmp_path):
    """As /dev/stdout and /dev/null are: root could replace these for the whole machine. One in a run's folder is."""
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        json_files.write_output(tmp_path / "pipe", "page")
        assert os.read(reader, 10) == b"page" and (tmp_path / "pipe").is_fifo()
        json_files.write_json(tmp_path / "pipe", {})
        assert (tmp_path / "pipe").read_text() == "{}\n"
    finally:
        os.close(reader)


def test_a_wrong_field_is_named_and_an_unknown_one_is_ignored_at_any_depth(tmp_path):
    for change, line in WRONG:
        with pytest.raises(ValueError) as caught:
            json_files.build_record(Outer, GOOD | change)
        assert str(caught.value) == line
    for other in (None, [], "x", 3):
        with pytest.raises(ValueError, match=r"^Outer: Expected `object`, got "):
            json_files.build_record(Outer, other)
    tree = GOOD | {"later": 1, "parts": [{"number": 1, "later": 2}]}
    assert json_files.build_record(Outer, tree).parts == [Inner(1)]
    json_files.write_json(tmp_path / "x.json", tree)
    assert json_files.read_record(tmp_path / "x.json", Outer).parts == [Inner(1)]
    odd = Outer(Inner(1), ["\udcff"])  # Python uses one for each byte in the environment that is no text
    json_files.write_json(tmp_path / "x.json", odd)
    assert json_files.read_record(tmp_path / "x.json", Outer) == odd


def test_the_record_of_a_sweep(tmp_path):
    record = new_sweep_record(["sweep=demo"], "2026-01-01T00:00:00+00:00", "node", 5.0)
    record.runs = [PlannedRun(number, f"run {number}", "abc", 0, left_out=number == 3) for number in range(4)]
    write_sweep(record, tmp_path)
    again = read_sweep(tmp_path)
    assert again == record and again.left_out == record.runs[3:]
    assert read_sweep(tmp_path / "other") is None and not (tmp_path / "other").exists()
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / RESULT_FILE).touch()
    assert [run.number for run in record.missing(tmp_path)] == [0, 2], "those left out are not missing"
    for text in ("{", "[]", '{"arguments": 3}'):
        (tmp_path / SWEEP_FILE).write_text(text)
        with pytest.raises(InputError, match=r"sweep\.json is not a record of a sweep: "):
            read_sweep(tmp_path)


def test_a_record_knows_whether_its_program_still_runs_also_one_that_somebody_has_edited():
    record = new_sweep_record([], "", platform.node(), None)
    assert record.pid == os.getpid()
    assert record.is_alive(platform.node()) is True
    assert record.is_alive("elsewhere") is None
    record.pid_started_s -= 100.0
    assert record.is_alive(platform.node()) is False, "another process has its number now"
    record.pid_started_s += 100.0
    record.stopped = True
    assert record.is_alive(platform.node()) is False
    record.stopped, record.pid = False, 2**22 + 1
    assert record.is_alive(platform.node()) is False
    for pid in (-1, 0, 2**31, 2**80):  # is not a number of a process
        assert SweepRecord("", [], "here", pid, 0.0).is_alive("here") is False
    assert new_sweep_record(["a=http://me:pw@host"], "", "here", None).arguments == ["a=http://***@host"]
    assert SweepRecord("", [], "here", 1, 0.0).time_limit_text == "sweep.max_minutes"
    assert SweepRecord("", [], "here", 1, 0.0, 30.0).time_limit_text == "sweep.max_minutes=30"


DECODE_IN_THREADS = """
import pathlib, sys, threading
from scalebench.core.json_files import build_record, read_json
from scalebench.core.result import Result

sys.setswitchinterval(1e-6)
tree = read_json(pathlib.Path("result.json"))
barrier = threading.Barrier(6)

def decode():
    barrier.wait()
    build_record(Result, tree)

threads = [threading.Thread(target=decode) for _ in range(6)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""


def test_threads_decode_a_type_for_the_first_time():
    """The runs of a cohort have a thread each, which reads the records of its ranks."""
    json_files.write_json(Path("result.json"), record())
    for _ in range(2):
        subprocess.run([sys.executable, "-c", DECODE_IN_THREADS], check=True, timeout=120)


BOMB = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 10)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


def make_socket(path):
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.path.relpath(path))  # an absolute one may be longer than sockets take


ODD_FILES = {
    "pipe": os.mkfifo,
    "socket": make_socket,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "huge": lambda path: (path.touch(), os.truncate(path, 40 << 30)),  # takes no room
    "nested": lambda path: path.write_text("[" * 100_000),
    "half": lambda path: path.write_text('{"a": '),
    "latin": lambda path: path.write_bytes(b'"\xff"'),
}


@pytest.mark.parametrize("kind", ODD_FILES)
def test_any_file_beside_a_result_is_read_or_refused_at_once(kind, tmp_path):
    """Opening a pipe would wait for a writer, and a file may be larger than memory, or nested deeper than the stack."""
    for path in (tmp_path / RESULT_FILE, tmp_path / SWEEP_FILE, progress_path(tmp_path, 0)):
        ODD_FILES[kind](path)
    started_s = time.monotonic()
    with pytest.raises(InputError, match=r"result\.json (is not|is larger|has schema)"):
        read_result(tmp_path / RESULT_FILE)
    with pytest.raises(InputError, match=r"sweep\.json (is not a|is larger|is a link)"):
        read_sweep(tmp_path)
    with pytest.raises(ValueError):
        read_json(tmp_path / SWEEP_FILE)
    assert read_progress(tmp_path, 0) is None
    assert time.monotonic() - started_s < 10.0


def test_links_count_only_where_they_are_asked_for(tmp_path):
    (tmp_path / "real").write_text("1")
    (tmp_path / "link").symlink_to("real")
    assert untrusted.read_plain_file(tmp_path / "link", follow_link=True) == b"1"
    with pytest.raises(untrusted.FileRefused, match="is a link"):
        untrusted.read_plain_file(tmp_path / "link")
    with pytest.raises(IsADirectoryError):
        untrusted.read_plain_file(tmp_path)
    with pytest.raises(FileNotFoundError):
        untrusted.read_plain_file(tmp_path / "missing")
    with pytest.raises(untrusted.FileRefused, match="is larger than 0 bytes"):
        untrusted.read_plain_file(tmp_path / "real", max_bytes=0)


def test_a_flat_list_of_texts_is_read_as_it_stands_and_anything_else_is_refused(tmp_path):
    assert untrusted.read_text_list(tmp_path, ".hydra/overrides.yaml") == []
    path = tmp_path / "list"
    path.write_text('- gpus=2\n- "a=\\"b\\""\n- \'note=${oc.env:HOME}\'\n- >-\n  a\n  b\n')
    assert untrusted.read_text_list(tmp_path, "list") == ["gpus=2", 'a="b"', "note=${oc.env:HOME}", "a b"]
    path.write_text("[]\n")
    assert untrusted.read_text_list(tmp_path, "list") == []
    odd = ("- 3\n", "- [x]\n", "- a: b\n", "text\n", "- x\n---\n- y\n", "- [\n")
    for text, reason in (
        *((text, "not a flat list") for text in (BOMB, *odd)),
        ("- 'x\n", "unexpected end of stream|quoted scalar"),
        ("- \x07\n", "not allowed"),
        ("#" * (untrusted.MAX_LIST_BYTES + 1), "larger than"),
    ):
        path.write_text(text)
        with pytest.raises(untrusted.FileRefused, match=reason):
            untrusted.read_text_list(tmp_path, "list")
    private = tmp_path / "private"
    private.mkdir()
    (private / "overrides.yaml").write_text("- mine\n")
    for kind in ("file", "folder", "pipe"):  # elsewhere, or none
        folder = tmp_path / kind
        folder.mkdir()
        if kind == "folder":
            (folder / ".hydra").symlink_to(private)
        else:
            (folder / ".hydra").mkdir()
            path = folder / ".hydra" / "overrides.yaml"
            path.symlink_to(private / path.name) if kind == "file" else os.mkfifo(path)
        with pytest.raises(untrusted.FileRefused, match="is not a plain file inside the folder"):
            untrusted.read_text_list(folder, ".hydra/overrides.yaml")


def test_shown_texts_do_nothing():
    texts = {
        "soft\xadhyphen": "soft<U+00AD>hyphen",
        "note\U0001d173\U00013430": "note<U+1D173><U+13430>",
        "\x1b[31mred\x1b[0m\tone\ntwo": "red\tone\ntwo",
        "\x1b]52;c;cm0=\x07": "\ufffd]52;c;cm0=\ufffd",
        "a\x00\x08\x7f": "a\ufffd\ufffd\ufffd",
        "10 %\r20 %\r\nend": "10 %\n20 %\nend",
        "half \ud800 a sign": "half \ufffd a sign",
        "\x9b31m": "<U+009B>31m",
        "rm \u202egpj": "rm <U+202E>gpj",
        "a\u200bb\u2028c\ufeff\U000e0041": "a<U+200B>b<U+2028>c<U+FEFF><U+E0041>",
    }
    texts |= {same: same for same in ("plain ü 漢字 \N{GRINNING FACE}", "hard\xa0space, joined\u200d")}
    for text, shown in texts.items():
        assert untrusted.clean_text(text) == shown
        assert untrusted.clean_line(f"  {text}\n") == " ".join(untrusted.clean_text(text).split())
        assert untrusted.clean_text(text).encode("utf-8")
