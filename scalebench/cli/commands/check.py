"""`scalebench check NAME [KEY=VALUE ...] [--faults]`: does a strategy, a model or a data set keep its contract?

Exit status 0: it does; 1: something does not hold, or nothing could be run here.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table

from scalebench.cli.commands.arguments import CommandParser
from scalebench.config import resolve
from scalebench.config.compose import compose_config
from scalebench.config.error_messages import FORESEEN, explain
from scalebench.core import config_files
from scalebench.core.errors import InputError, no_such
from scalebench.core.spec import RunSpec
from scalebench.strategies import registry
from scalebench.testing.dataset_contract import DATA_ONLY, of_dataset

if TYPE_CHECKING:
    import pytest

KINDS = {"strategy": "strategy", "model": "model", "dataset": "data set"}  # and their names for people
OWN = {"strategy": ("-",), "model": ("model.torch=", "model.keras="), "dataset": ("dataset.builder=",)}
USAGE = "usage: scalebench check NAME [KEY=VALUE ...] [--faults]"
IN_YAML = "yaml "  # questions that begin so start no process
HOLDS, FAILS, NOT_ASKED = "holds", "fails", "not asked"
# Neither the current folder nor another plugin of the environment changes what a contract means.
SWITCHES = (
    "--disable-plugin-autoload",
    "--import-mode=importlib",
    "--strict-markers",
    "-p",
    "scalebench.testing.pytest_plugin",
)
WITHOUT = ("terminal", "cacheprovider", "faulthandler", "logging")
SETTINGS = "[pytest]\nfilterwarnings =\n    default\n"
PYTEST_VARIABLES = ("PYTEST_ADDOPTS", "PYTEST_PLUGINS")


@dataclass(frozen=True)
class Subject:
    """What is to be checked, and the overrides that go with it."""

    kind: str  # of KINDS
    name: str
    overrides: tuple[str, ...]
    faults: bool

    @property
    def title(self) -> str:
        """The name; of a user's own model or data set its functions."""
        functions = [word.partition("=")[2] for word in self.overrides if word.startswith(OWN[self.kind])]
        return " ".join(functions) if functions and self.name == "custom" else self.name


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("words", nargs="*", metavar="NAME | KEY=VALUE", help="or model=custom model.torch=MODULE:F")
    parser.add_argument("--faults", action="store_true", help="of a strategy: also let its workers fail and hang")


def main(options: argparse.Namespace) -> int:
    if find_spec("pytest") is None:
        raise InputError("check needs pytest: pip install 'scalebench[testing]'")
    subject = read_subject(options.words, options.faults)
    cases = contracts(subject)
    print(f"checking {KINDS[subject.kind]} {subject.title}", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="scalebench-check-") as folder:
        answers = run_contracts(cases, Path(folder))
    show(subject, answers)
    ran = any(answer.verdict == HOLDS and not answer.question.startswith(IN_YAML) for answer in answers)
    return 0 if ran and not any(answer.verdict == FAILS for answer in answers) else 1


def read_subject(words: list[str], faults: bool = False) -> Subject:
    """InputError for a name that is none, or several things."""
    overrides = [word for word in words if "=" in word]
    names = [word for word in words if word not in overrides]
    if len(names) > 1:
        raise InputError(f"check takes one name, not '{' '.join(names)}'; {USAGE}")
    if names:
        kind, name = _kind_of(names[0]), names[0]
    else:
        kind, name = _named_by(overrides)
        overrides = [word for word in overrides if word != f"{kind}={name}"]
    if faults and kind != "strategy":
        raise InputError(f"--faults is for strategies, and {name} is a {KINDS[kind]}")
    return Subject(kind, name, tuple(overrides), faults)


def _kind_of(name: str) -> str:
    choices = {"strategy": registry.table().keys() | config_files.options("strategy").keys()}
    choices |= {kind: config_files.options(kind).keys() for kind in ("model", "dataset")}
    kinds = [kind for kind, names in choices.items() if name in names]
    if not kinds:
        raise InputError(no_such("strategy, model or data set", name, {n for names in choices.values() for n in names}))
    if len(kinds) > 1:
        which = " and ".join(f"a {KINDS[kind]}" for kind in kinds)
        raise InputError(f"'{name}' is {which}: say {' or '.join(f'{kind}={name}' for kind in kinds)}")
    return kinds[0]


def _named_by(overrides: list[str]) -> tuple[str, str]:
    """The strategy where one is chosen, else the model, else the data set."""
    chosen = dict(word.split("=", 1) for word in overrides)
    for kind in KINDS:
        if kind in chosen:
            return kind, chosen[kind]
    raise InputError(f"check what? {USAGE}")


def contracts(subject: Subject) -> list[Case]:
    """The contracts of a subject. InputError where its overrides do not make a run."""
    if subject.kind == "dataset":
        resolved([*of_dataset(subject.name, subject.overrides), *DATA_ONLY])
        return [Case("DatasetContract", {"dataset": subject.name, "overrides": subject.overrides})]
    if subject.kind == "model":
        resolved(["strategy=simulated", f"model={subject.name}", "gpus=1", *subject.overrides])
        return [Case("ModelContract", {"model": subject.name, "overrides": subject.overrides})]
    others = tuple(word for word in subject.overrides if not word.startswith("gpus="))
    spec = resolved([f"strategy={subject.name}", *subject.overrides])
    chosen = any(word.startswith("gpus=") for word in subject.overrides)
    gpus = spec.gpus if chosen else min(2, spec.config.strategy.max_gpus or 2)
    cases = [Case("StrategyContract", {"strategy": subject.name, "gpus": gpus, "overrides": others})]
    return [*cases, Case("FaultContract", _faults(subject.name, others))] if subject.faults else cases


def _faults(name: str, overrides: tuple[str, ...]) -> dict[str, Any]:
    spec = resolved([f"strategy={name}", *overrides, "gpus=2"])
    measuring = spec.processes - len(spec.services)
    return {"strategy": name, "overrides": overrides, "measuring": measuring, "rank": 1 if measuring > 1 else 0}


def resolved(words: list[str]) -> RunSpec:
    try:
        return resolve.resolve(compose_config(words))
    except FORESEEN as error:
        raise InputError(explain(error, words)) from error


def show(subject: Subject, answers: list[Answer]) -> None:
    """Print the table, and below it each of pytest's reports of failures once."""
    table = Table(KINDS[subject.kind], subject.title, "", box=box.SIMPLE_HEAD)
    for answer in answers:
        table.add_row(answer.question, answer.verdict, answer.reason)
    console = Console(markup=False, highlight=False)
    console.width = console.width if console.is_terminal else 400  # a line for each question
    console.print(table)
    for detail in dict.fromkeys(answer.detail for answer in answers if answer.detail):
        console.print(detail, soft_wrap=True)
    counts = {verdict: sum(answer.verdict == verdict for answer in answers) for verdict in (HOLDS, FAILS, NOT_ASKED)}
    words = {HOLDS: "hold", FAILS: "do not hold", NOT_ASKED: "not asked"}
    console.print(f"{subject.title}: " + ", ".join(f"{count} {words[verdict]}" for verdict, count in counts.items()))


@dataclass(frozen=True)
class Case:
    """One contract, and the attributes of its test class."""

    contract: str  # StrategyContract, ...
    settings: Mapping[str, Any]  # strings, numbers, tuples: what repr writes and Python reads

    def source(self) -> str:
        lines = [f"    {key} = {value!r}" for key, value in self.settings.items()]
        head = f"from scalebench.testing import {self.contract} as _{self.contract}"
        return "\n".join([head, "", f"class Test{self.contract}(_{self.contract}):", *lines, ""])


@dataclass(frozen=True)
class Answer:
    """The outcome of one test."""

    question: str  # "losses equal the baselines"
    verdict: str
    reason: str = ""  # one line
    detail: str = ""  # pytest's report of a failure


@dataclass
class Listener:
    """A plugin of pytest that keeps the outcome of each test."""

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


def run_contracts(cases: list[Case], folder: Path) -> list[Answer]:
    """Run the tests of these contracts with files in `folder`. Raises nothing but KeyboardInterrupt."""
    import pytest

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
    """Forget the modules of a folder: pytest would take one of the same name in another folder for them."""
    try:
        yield
    finally:
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", "")).startswith(f"{folder}{os.sep}"):
                del sys.modules[name]


@contextmanager
def _environment() -> Iterator[None]:
    before = {name: os.environ.pop(name) for name in PYTEST_VARIABLES if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(before)
