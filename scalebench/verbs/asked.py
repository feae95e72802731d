"""Contracts asked of pytest in a folder of their own, for `scalebench check`: what held, what did not, and why."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

HOLDS, FAILS, NOT_ASKED = "holds", "fails", "not asked"
# Nothing of the current folder, and no other plugin of the environment, has a say in what a contract means.
SWITCHES = (
    "--disable-plugin-autoload",
    "--import-mode=importlib",
    "--strict-markers",
    "-p",
    "scalebench.testing.plugin",
)
WITHOUT = ("terminal", "cacheprovider", "faulthandler", "logging")
SETTINGS = "[pytest]\nfilterwarnings =\n    default\n"
MEANT_FOR_OTHERS = ("PYTEST_ADDOPTS", "PYTEST_PLUGINS")


@dataclass(frozen=True)
class Case:
    """One contract, and the attributes of the class that asks it."""

    contract: str  # StrategyContract, ...
    settings: Mapping[str, Any]  # strings, numbers, tuples: what repr writes and Python reads

    def source(self) -> str:
        lines = [f"    {key} = {value!r}" for key, value in self.settings.items()]
        head = f"from scalebench.testing import {self.contract} as _{self.contract}"
        return "\n".join([head, "", f"class Test{self.contract}(_{self.contract}):", *lines, ""])


@dataclass(frozen=True)
class Answer:
    """What became of one test."""

    question: str  # "losses equal the baselines"
    verdict: str
    reason: str = ""  # one line
    detail: str = ""  # of a failure, all that pytest tells


@dataclass
class Listener:
    """A plugin of pytest that keeps what became of each test."""

    answers: dict[str, Answer] = field(default_factory=dict)  # by test

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:  # also where its end fails, after the test itself went well
            self._keep(report, FAILS, _first_line(report), report.longreprtext)
        elif report.skipped:
            self._keep(report, NOT_ASKED, str(report.longrepr[2] if isinstance(report.longrepr, tuple) else ""))
        elif report.when == "call":
            self._keep(report, HOLDS)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._keep(report, FAILS, _first_line(report), report.longreprtext)

    def _keep(self, report: Any, verdict: str, reason: str = "", detail: str = "") -> None:
        name = report.nodeid.rpartition("::")[2].removeprefix("test_").replace("_", " ")
        reason = reason.removeprefix("Skipped: ")
        self.answers[report.nodeid] = Answer(name, verdict, " ".join(reason.split()), detail)


def ask(cases: list[Case], folder: Path) -> list[Answer]:
    """Run the tests of these contracts, files and all in `folder`. Lets nothing out but KeyboardInterrupt."""
    (folder / "pytest.ini").write_text(SETTINGS)
    for number, case in enumerate(cases):
        (folder / f"test_{number}.py").write_text(case.source())
    listener = Listener()
    places = ["-c", str(folder / "pytest.ini"), f"--rootdir={folder}", f"--confcutdir={folder}"]
    without = [word for name in WITHOUT for word in ("-p", f"no:{name}")]
    with _environment(), _forgetting(folder):
        status = pytest.main([*places, f"--basetemp={folder / 'runs'}", *SWITCHES, *without, str(folder)], [listener])
    if status == pytest.ExitCode.INTERRUPTED:
        raise KeyboardInterrupt
    if status == pytest.ExitCode.INTERNAL_ERROR or not listener.answers:
        return [*listener.answers.values(), Answer("pytest", FAILS, f"it ended with status {int(status)}")]
    return list(listener.answers.values())


def _first_line(report: Any) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = report.longreprtext if crash is None else crash.message.removeprefix("AssertionError: ")
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


@contextmanager
def _forgetting(folder: Path) -> Iterator[None]:
    """pytest takes a module of that name for the same one, in whatever folder it was."""
    try:
        yield
    finally:
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", "")).startswith(f"{folder}{os.sep}"):
                del sys.modules[name]


@contextmanager
def _environment() -> Iterator[None]:
    before = {name: os.environ.pop(name) for name in MEANT_FOR_OTHERS if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(before)
