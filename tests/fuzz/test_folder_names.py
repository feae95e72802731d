"""Whatever a file system allows as a name of a run's folder can be shown and reported, or is refused in one line."""

import itertools
import os
import shutil
import unicodedata
from pathlib import Path

from hypothesis import strategies as st

from scalebench.core.result import write_result
from tests.builders.sweeps import run
from tests.fuzz.command_line import check_signs, many_examples, run_line, try_examples

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
    Path("in", name, "0").mkdir(parents=True)
    write_result(run("ddp_gloo", 2), Path("in", name, "0"))
    before = set(os.listdir())
    readable = all(unicodedata.category(sign) != "Cs" for sign in name)  # bytes are lone surrogates
    for words in (["show", "in", "--details"], ["report", f"in/{name}", "--markdown"]):
        ending = run_line(words)
        assert ending.status == (0 if readable else 2), (words, ending)
        assert readable or "is no UTF-8: rename it" in ending.err
        check_signs(ending)
    assert set(os.listdir(Path("in", name))) == ({"0", "report.html", "report.md"} if readable else {"0"})
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
