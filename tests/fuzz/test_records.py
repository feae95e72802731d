"""Records that somebody has edited, cut or forged, beside one that is good: that one is always shown, and a bad one is
a row or a line of warning; no traceback, no hang, no control characters, nothing of the reader's environment. Whatever
a file system allows as a name of a run's folder can be shown and reported, or is refused in one line."""

import copy
import itertools
import json
import os
import shutil
import unicodedata
from pathlib import Path

import pytest
from hypothesis import strategies as st

import scalebench
from scalebench.core.errors import InputError
from scalebench.core.result import write_result
from scalebench.core.run_folder import RESULT_FILE
from scalebench.report import comparison as comparison_report
from tests.builders.sweeps import run
from tests.fuzz.command_line import check_signs, many_examples, run_line, try_examples

SECRET = "s3cret-of-the-reader"
RIGHT_TO_LEFT = "\u202e"
TEXTS = [
    *("", "ok", "oom", "x" * 10_000, "two\nlines", "\x1b]52;c;aGk=\x07", "\x9b31m", "\ud800", RIGHT_TO_LEFT, "\0"),
    *("</script><img src=x onerror=alert(1)>", "=cmd|' /C calc'!A0", "${oc.env:SECRET}", "../../../../etc/passwd"),
    *("/dev/zero", "2026-13-99", "2026-01-01T00:00:00+99:00", "9999-12-31T23:59:59.999+00:00", "[link=x]y[/]", "NaN"),
]
NUMBERS = [
    None, True, False, -1, 0, 1, 3.5, -0.0, 1e308, -1e308, 5e-324, 2**31, 2**63, 2**70, float("nan"), float("inf"),
]  # fmt: skip
LARGE = [[], {}, [[]], [{}], {"": None}, [0.1] * 1000, [None] * 3, {"a": {"b": []}}]
VALUES = st.sampled_from([*TEXTS, *NUMBERS, *LARGE]) | st.text(max_size=20) | st.integers() | st.floats()
COMPARE_STATUSES = (2, *comparison_report.EXIT_STATUS.values())  # 2: it leaves nothing out
VERBS = st.sampled_from(
    ["show .", "show . --details", "show . --baseline good", "report .", "report . --csv", "compare . ."]
)


def list_places(tree, place=()):
    """Yield the keys that lead to each value of a tree of JSON, of a list to the first two."""
    children = tree.items() if isinstance(tree, dict) else enumerate(tree[:2]) if isinstance(tree, list) else ()
    for key, value in children:
        yield (*place, key)
        yield from list_places(value, (*place, key))


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """What the program writes of a run that went well, and of one that failed."""
    made = []
    for changes in ({}, {"status": "failed", "reason": "failed as configured", "log": "rank0.log"}):
        folder = tmp_path_factory.mktemp("record")
        write_result(run("ddp_gloo", 2, **changes), folder)
        made.append(json.loads((folder / RESULT_FILE).read_text()))
    return made


def change(tree, place, value, action):
    """Change one value of a tree of JSON; a place that an earlier change has removed stays as it is."""
    for key in place[:-1]:
        try:
            tree = tree[key]
        except (KeyError, IndexError, TypeError):
            return
    if not isinstance(tree, (dict, list)) or (isinstance(tree, list) and not tree):
        return
    if action == "remove":
        tree.pop(place[-1], None) if isinstance(tree, dict) else tree.pop()
    elif action == "double" and isinstance(tree, list):
        tree.extend(copy.deepcopy(tree))
    else:
        tree[place[-1] if isinstance(tree, dict) else 0] = value


class Mutants:
    def __init__(self, records):
        self.records, self.numbers = records, itertools.count()
        self.places = sorted({place for record in records for place in list_places(record)}, key=str)

    def write(self, data):
        folder = Path(str(next(self.numbers)))
        for name in ("good", "mutant"):
            (folder / name).mkdir(parents=True)
        write_result(run("bare_torch", 1, run_id="good"), folder / "good")
        tree = copy.deepcopy(self.records[data.draw(st.integers(0, 1))])
        for _ in range(data.draw(st.integers(1, 2))):
            action = data.draw(st.sampled_from(["set", "set", "set", "set", "remove", "double"]))
            change(tree, data.draw(st.sampled_from(self.places)), data.draw(VALUES), action)
        text = json.dumps(tree).encode()
        if data.draw(st.integers(0, 19)) == 0:
            text = text[: data.draw(st.integers(0, len(text)))] + data.draw(st.binary(max_size=5))
        (folder / "mutant" / RESULT_FILE).write_bytes(text)
        return folder

    def check(self, data):
        folder, start = self.write(data), Path.cwd()
        os.chdir(folder)
        try:
            verb, *rest = data.draw(VERBS).split()
            ending = run_line([verb, *rest], statuses=COMPARE_STATUSES if verb == "compare" else (0,))
            check_signs(ending)
            for text in (ending.out + ending.err, *(path.read_text() for path in Path().glob("report.*"))):
                assert SECRET not in text and "<img src=x" not in text
            check_rows(ending.err.splitlines() if verb == "show" else None)
        finally:
            os.chdir(start)
            shutil.rmtree(folder)


def check_rows(lines):
    """The mutant is a row, or it is left out with one line that names it, among these where they are printed."""
    try:
        rows = len(scalebench.load("mutant"))
    except InputError as error:
        assert "mutant" in str(error) and "\n" not in str(error)
        assert lines is None or sum(line.startswith("scalebench: left out: ") for line in lines) == 1, lines
    else:
        assert rows == 1 and not any("left out" in line for line in lines or [])


@many_examples(8, 2_000)
def test_changed_records(records, examples, monkeypatch):
    monkeypatch.setenv("SECRET", SECRET)
    try_examples(Mutants(records).check, examples, data=st.data())


MAX_NAME_BYTES = 255  # of Linux
ODD = [
    "-x", "--help", "a=b", "a b", " ", "\n", "a\nb", "\t", "'", '"', "`id`", "$(id)", "${gpus}", "${oc.env:HOME}", "~",
    "{a: b}", "[a]", "a,b", "\x1b[31m", "\x1b]0;t\x07", "\x9b", "\u202e", "\u2028", "%s", "{}", "*", "?",
    "<b>", "&amp;", "[link=x]", "#", "a#b", "%41", "a:b", "\\", "\\n", "...", "result.json", "é", "e\u0301", "x" * 255,
    "null", "1e5", *(os.fsdecode(raw) for raw in (b"\xff", b"a\xe4", b"\xed\xa0\x80")),  # no UTF-8
]  # fmt: skip
LETTERS = st.binary(min_size=1, max_size=12).map(os.fsdecode) | st.text(max_size=12)
NAMES = (st.sampled_from(ODD) | st.builds(str.__add__, st.sampled_from(ODD), LETTERS) | LETTERS).filter(
    lambda name: name not in ("", ".", "..") and not set("/\0") & set(name) and _is_possible(name)
)


def _is_possible(name):
    try:
        return len(os.fsencode(name)) <= MAX_NAME_BYTES
    except UnicodeEncodeError:
        return False


def check_commands(name):
    name = os.fsdecode(os.fsencode(name))  # bytes that are UTF-8 together are read as that
    Path("in", name, "0").mkdir(parents=True)
    write_result(run("ddp_gloo", 2), Path("in", name, "0"))
    before = set(os.listdir())
    readable = all(unicodedata.category(sign) != "Cs" for sign in name)  # bytes are lone surrogates
    for words in (["show", "in", "--details"], ["report", f"in/{name}"]):
        ending = run_line(words)
        assert ending.status == (0 if readable else 2), (words, ending)
        assert readable or "is not UTF-8: rename it" in ending.err
        check_signs(ending)
    assert set(os.listdir(Path("in", name))) == ({"0", "report.html"} if readable else {"0"})
    ending = run_line(["show", name])  # as an argument it may look like an option
    check_signs(ending)
    assert set(os.listdir()) == before


def check_dry_run(name, key, quoted, switches):
    before = set(os.listdir())
    value = "'" + name.replace("\\", "\\\\").replace("'", "\\'") + "'" if quoted else name
    ending = run_line([*switches, "strategy=simulated", f"{key}={value}", "dry_run=true"])
    check_signs(ending)
    assert set(os.listdir()) == before


@many_examples(5, 1_000)
def test_names_of_folders(examples):
    start, numbers = Path.cwd(), itertools.count()

    def check(name, **override):
        here = start / str(next(numbers))
        here.mkdir()
        os.chdir(here)
        try:
            check_commands(name)
            check_dry_run(name, **override)
        finally:
            os.chdir(start)
            shutil.rmtree(here)

    keys, switches = st.sampled_from(["hydra.run.dir", "hydra.sweep.dir"]), st.sampled_from([[], ["--multirun"]])
    try_examples(check, examples, name=NAMES, key=keys, quoted=st.booleans(), switches=switches)
