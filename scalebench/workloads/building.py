"""Starts the process that makes the samples of a function, and says in one line why it gave none. Layer 1."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scalebench.plugins import PluginError
from scalebench.spec import InputError

REQUEST, ANSWER, LOG = "request.json", "answer.json", "output.log"
LOG_BYTES = 20_000  # of what it printed last, beside the traceback
TOLD_AFTER_S = 2.0
MODULE = "scalebench.workloads.builder"


@dataclass(frozen=True)
class Request:
    """What to call, with what."""

    target: str
    what: str  # names the function in messages
    own: bool  # a user's, which may lie in the current folder
    size: int
    seed: int
    options: dict[str, Any]


def build(request: Request, limit_s: float, folder: Path) -> None:
    """Both arrays into `folder`. PluginError, with a traceback and what was printed as its log, where the function
    fails or is not done within `limit_s`; InputError that it raised itself; OSError where the disk is full."""
    with tempfile.TemporaryDirectory(prefix="scalebench-") as name:
        place = Path(name)
        (place / REQUEST).write_text(json.dumps({**asdict(request), "folder": str(folder)}))
        with (place / LOG).open("wb") as log:
            code = _run([sys.executable, "-m", MODULE, name], log.fileno(), limit_s, request)
        answer = _answer(place / ANSWER) if code == 0 else None
        if answer is None:
            answer = {"problem": _died(code, limit_s, request)}
        printed = _tail(place / LOG)
    if "errno" in answer:
        raise OSError(answer["errno"], os.strerror(answer["errno"]))
    if "input" in answer:
        raise InputError(answer["input"])
    if "problem" in answer:
        raise PluginError(answer["problem"], "\n".join(filter(None, [printed, answer.get("log", "")])))


def _run(command: list[str], log: int, limit_s: float, request: Request) -> int | None:
    """The exit status; None where time was up. The process and what it started are gone afterwards."""
    with _alive() as theirs:
        process = subprocess.Popen(
            [*command, str(theirs)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[theirs],
            start_new_session=True,
        )
        try:
            try:
                return process.wait(min(TOLD_AFTER_S, limit_s))
            except subprocess.TimeoutExpired:
                print(f"{request.what} makes its samples, {request.size:,} asked for", file=sys.stderr, flush=True)
            return process.wait(max(0.0, limit_s - TOLD_AFTER_S))
        except subprocess.TimeoutExpired:
            return None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextlib.contextmanager
def _alive() -> Iterator[int]:
    """The end of a pipe where the other process reads the end of the file when this one is no more, however it went."""
    theirs, ours = os.pipe()
    try:
        yield theirs
    finally:
        os.close(ours)
        os.close(theirs)


def _answer(path: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return found


def _died(code: int | None, limit_s: float, request: Request) -> str:
    """Why there is no answer."""
    if code is None:
        return f"{request.what} was not done after {limit_s:g} s: lower dataset.size or raise measure.timeout_s"
    if code == -signal.SIGKILL:
        return f"{request.what} was killed while it made its samples (out of memory?): lower dataset.size"
    if code < 0:
        return f"{request.what} was ended by {signal.Signals(-code).name} while it made its samples"
    return f"{request.what} ended its process with exit status {code} and gave no samples: it should return them"


def _tail(path: Path) -> str:
    content = path.read_bytes()[-LOG_BYTES:]
    return content.decode("utf-8", "replace")
