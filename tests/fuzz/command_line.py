"""Runs the program's command lines in this process, where 10,000 of them take minutes, and checks how each ends.

A line ends well with status 0, with 1 where the plan of a dry run says that a run cannot be done, or with 2 and a
reason in a few lines; never with a traceback, and within MAX_CPU_S.
"""

import contextlib
import io
import signal
import unicodedata
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from scalebench import __main__ as program

MAX_CPU_S = 10.0
MAX_WALL_S = 600.0  # for what waits and computes nothing, at nice 19 beside other tests, too
MAX_ERROR_LINES = 3


class LineHangs(BaseException):
    """A command line that has not ended in time. No handler of the program catches it."""


class Ending(NamedTuple):
    status: int
    out: str
    err: str


def run_line(words, *, statuses=(0, 2)):
    """Run one command line, check what holds for each, and return how it ended."""
    out = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)  # strict, as standard output is
    err = io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace", write_through=True)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), _limited_time():
        status = program.main(list(words))
    ending = Ending(status, *(stream.buffer.getvalue().decode() for stream in (out, err)))
    assert "Traceback" not in ending.out + ending.err
    says_why = "unsupported: " in ending.out or "will fail: " in ending.out
    assert (status in statuses or (status == 1 and says_why)) and (status != 2 or ending.err), ending
    return ending


# Unicode counts them as marks of format. Joiners only shape letters; those of Arabic and Kaithi numbers can be seen.
DRAWN_SIGNS = set("\u200c\u200d\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd")


def check_signs(ending):
    """No control characters, no marks that turn text around: what is printed shows all that it has."""
    signs = set(ending.out + ending.err) - {"\n"} - DRAWN_SIGNS
    odd = {sign for sign in signs if unicodedata.category(sign) in ("Cc", "Cf", "Cs")}
    assert not odd, f"{odd!r} in {ending}"


@contextlib.contextmanager
def _limited_time():
    def stop(*_):
        raise LineHangs

    limits = ((signal.ITIMER_REAL, signal.SIGALRM, MAX_WALL_S), (signal.ITIMER_PROF, signal.SIGPROF, MAX_CPU_S))
    before = [signal.signal(number, stop) for _, number, _ in limits]
    for timer, _, limit_s in limits:
        signal.setitimer(timer, limit_s)
    try:
        yield
    finally:
        for (timer, number, _), handler in zip(limits, before, strict=True):
            signal.setitimer(timer, 0)
            signal.signal(number, handler)


def many_examples(few, many):
    """Run a test with `few` examples, always the same, and as a part of `make test-all` with `many` others."""
    return pytest.mark.parametrize("examples", [few, pytest.param(many, marks=pytest.mark.slow)])


def try_examples(check, examples, **drawn):
    """Call `check` with so many examples of the `drawn` arguments. Those of a slow test differ from run to run; the
    one that fails is printed as it was drawn: to look for a smaller one takes minutes."""
    slow = examples >= 1000
    chosen = settings(
        max_examples=examples, deadline=None, derandomize=not slow, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    chosen(given(**drawn)(check))()
