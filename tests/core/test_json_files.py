"""JSON files: written completely or not at all, and read back with their types checked; sweep.json."""

import errno
import os
import platform
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from scalebench.core import json_files
from scalebench.core.errors import InputError
from scalebench.core.run_folder import RESULT_FILE
from scalebench.core.sweep_file import SWEEP_FILE, PlannedRun, new_sweep_record, read_sweep, write_sweep
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
    assert [json_files.read_tail(tmp_path / "log", limit_bytes) for limit_bytes in (2, 100)] == [
        "f\ufffd",
        "abcdef\ufffd",
    ]


WRONG = [
    ({"inner": 3}, "inner should be an object, not int"),
    ({"inner": {}}, "inner lacks the field 'number'"),
    ({"inner": {"number": True}}, "inner.number should be int, not bool"),
    ({"inner": {"number": 1.0}}, "inner.number should be int, not float"),
    ({"inner": {"number": 1, "share": "1"}}, "inner.share should be float, not str"),
    ({"inner": {"number": 1, "share": True}}, "inner.share should be float, not bool"),
    ({"inner": {"number": 1, "extra": 0}}, "inner has an unknown field 'extra'"),
    ({"parts": [{"number": 1}, {"number": 1, "extra": 0}]}, "parts[1] has an unknown field 'extra'"),
    ({"names": "a"}, "names should be a list, not str"),
    ({"names": ["a", 2]}, "names[1] should be str, not int"),
    ({"names": None}, "names should be a list, not null"),
    ({"maybe": "1"}, "maybe should be int, not str"),
    ({"parts": [{"number": "x"}]}, "parts[0].number should be int, not str"),
    ({"table": [1]}, "table should be an object, not a list"),
    ({"table": {"k": "v"}}, "table[...] should be float, not str"),
    ({"b": 1, "a": 1}, "Outer has an unknown field 'a'"),
    ({"inner": {"number": 1, "share": 10**400}}, "inner.share is too large a number"),
    ({"losses": [1.0, None, True]}, "losses[2] should be float, not bool"),
    ({"losses": [[1.0]]}, "losses[0] should be float, not a list"),
    ({"nested": {"k": [[0.5], [0.5, "x"]]}}, "nested[...][1][1] should be float, not str"),
]


def test_a_wrong_field_is_named_and_an_unknown_one_can_be_ignored_at_any_depth(tmp_path):
    for change, line in WRONG:
        with pytest.raises(ValueError) as caught:
            json_files.build_record(Outer, GOOD | change)
        assert str(caught.value) == line
    for other in (None, [], "x", 3):
        with pytest.raises(ValueError, match=r"^Outer should be an object, not "):
            json_files.build_record(Outer, other)
    tree = GOOD | {"later": 1, "parts": [{"number": 1, "later": 2}]}
    assert json_files.build_record(Outer, tree, ignore_unknown=True).parts == [Inner(1)]
    json_files.write_json(tmp_path / "x.json", tree)
    assert json_files.read_record(tmp_path / "x.json", Outer, ignore_unknown=True).parts == [Inner(1)]
    with pytest.raises(ValueError, match=r"^Outer has an unknown field 'later'$"):
        json_files.read_record(tmp_path / "x.json", Outer)


def test_defaults_fill_missing_fields_and_integers_and_nulls_stand_among_floats():
    outer = json_files.build_record(Outer, GOOD)
    assert outer == Outer(Inner(1, 0.5), ["a"])
    assert outer.parts is not json_files.build_record(Outer, GOOD).parts
    tree = GOOD | {"losses": [1, None, 0.5], "nested": {"k": [[1], []]}}
    outer = json_files.build_record(Outer, tree)
    assert outer.losses == [1.0, None, 0.5]
    assert type(outer.losses[0]) is type(outer.nested["k"][0][0]) is float
    assert outer.names is not tree["names"], "the input does not change with the record"


numbers = st.floats(allow_nan=False, allow_infinity=False)
inners = st.builds(Inner, st.integers(), numbers)
anything = st.recursive(
    st.none() | st.booleans() | st.text() | numbers, lambda x: st.lists(x) | st.dictionaries(st.text(), x)
)


@given(
    st.builds(
        Outer, inners, st.lists(st.text()), st.none() | st.integers(), st.lists(inners),
        st.dictionaries(st.text(), numbers), anything,
    )
)  # fmt: skip
@example(Outer(Inner(1), ["\udcff"]))  # Python uses one for each byte in the environment that is no text
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_record_reads_back(tmp_path, record):
    json_files.write_json(tmp_path / "x.json", record)
    assert json_files.read_record(tmp_path / "x.json", Outer, ignore_unknown=True) == record
    assert json_files.read_record(tmp_path / "x.json", Outer) == record


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
        with pytest.raises(InputError, match=r"sweep\.json is no record of a sweep: "):
            read_sweep(tmp_path)


def test_a_record_knows_whether_its_program_still_runs():
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


def fail_once(write):
    """Return a function that writes from its second call on: at its first the disk is full."""
    errors = [OSError(errno.ENOSPC, "full")]

    def fail():
        if errors:
            raise errors.pop()
        write()

    return fail


def test_reserved_room_is_used_when_the_disk_is_full(tmp_path, monkeypatch):
    room = json_files.ReservedRoom(tmp_path / "room")
    room.reserve(1 << 16)
    assert (tmp_path / "room").stat().st_size == (tmp_path / "room").stat().st_blocks * 512 == 1 << 16

    def write():
        assert not (tmp_path / "room").exists()
        (tmp_path / "a").touch()

    room.use(fail_once(write))
    assert os.listdir(tmp_path) == ["a"]
    room.use(lambda: None)  # with nothing reserved
    with pytest.raises(OSError, match="full"):
        room.use(fail_once(fail_once(write)))
    for number in (errno.ENOSPC, errno.EDQUOT):

        def refuse(*_, number=number):
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "posix_fallocate", refuse)
        with pytest.raises(OSError, match=os.strerror(number)):
            room.reserve(10)
        assert not (tmp_path / "room").exists()
    monkeypatch.setattr(os, "posix_fallocate", lambda *_: refuse(number=errno.EOPNOTSUPP))
    room.reserve(10)  # on a file system that cannot


def test_a_file_is_rewritten_in_its_place_on_a_full_disk(tmp_path, monkeypatch):
    path = tmp_path / "progress.json"
    json_files.rewrite_json(path, {"steps": 12345, "phase": "measure"})

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(Path, "write_text", full)
    json_files.rewrite_json(path, {"steps": 7})
    assert json_files.read_json(path) == {"steps": 7} and os.listdir(tmp_path) == [path.name]
    with pytest.raises(OSError, match="full"):
        json_files.rewrite_json(tmp_path / "new.json", {})


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
