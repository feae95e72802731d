"""`scalebench check NAME [KEY=VALUE ...]`: check that a strategy, a model or a data set keeps its contract.

The exit status is 0 where it does, 1 where a test fails or nothing can be run here. `scalebench check --gpu` checks a
GPU machine instead: see check_gpu.py.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich import box
from rich.table import Table

from scalebench.cli.commands.arguments import (
    CommandParser,
    compose_overrides,
    count_verdicts,
    make_console,
    read_positive,
)
from scalebench.cli.commands.list import list_names
from scalebench.config.aliases import accept_aliases
from scalebench.core.errors import InputError, unknown_name_message
from scalebench.core.spec import RunSpec

if TYPE_CHECKING:
    import pytest

SUBJECT_KINDS = {"strategy": "strategy", "model": "model", "dataset": "data set"}  # config group: text for people
USER_FUNCTION_KEYS = {"model": ("model.torch=", "model.keras="), "dataset": ("dataset.builder=",)}
CHECK_USAGE = "usage: scalebench check NAME [KEY=VALUE ...] [--faults]"
GPU_PAGE, GPU_MINUTES = "gpu-check.md", 15.0
YAML_TEST_PREFIX = "yaml "  # tests with this prefix start no process
HOLDS, FAILS, SKIPPED = "holds", "fails", "skipped"
# With these, neither the current folder nor another plugin of the environment affects a contract.
PYTEST_SETTINGS = """[pytest]
filterwarnings = default
addopts = --disable-plugin-autoload --import-mode=importlib --strict-markers -p scalebench.testing.pytest_plugin
"""
WITHOUT_PLUGINS = ["-p", "no:terminal", "-p", "no:cacheprovider", "-p", "no:faulthandler", "-p", "no:logging"]
PYTEST_VARIABLES = ("PYTEST_ADDOPTS", "PYTEST_PLUGINS")
_numbers = itertools.count()  # of test modules: Python loads one of a name only once


class CheckSubject(NamedTuple):
    """A strategy, model or data set to check, with its overrides."""

    kind: str  # of SUBJECT_KINDS
    name: str
    overrides: tuple[str, ...]
    faults: bool

    @property
    def title(self) -> str:
        """The name; of a user's own model or data set its functions."""
        keys = USER_FUNCTION_KEYS.get(self.kind, ())
        functions = [word.partition("=")[2] for word in self.overrides if word.startswith(keys)]
        return " ".join(functions) if functions and self.name == "custom" else self.name


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("subject", nargs="*", metavar="NAME | KEY=VALUE", help="or model=MODULE:FUNCTION")
    parser.add_argument("--traceback", action="store_true", help="print pytest's whole report of each failure")
    parser.add_argument("--faults", action="store_true", help="for a strategy: also let its workers fail and hang")
    parser.add_argument(
        "--gpu", action="store_true", help="a new GPU machine: doctor, contracts, known truths; one page"
    )
    parser.add_argument("--page", metavar="FILE", help=f"of --gpu: the page to write (default: {GPU_PAGE})")
    parser.add_argument(
        "--minutes",
        metavar="N",
        type=read_positive,
        help=f"of --gpu: start nothing that would end later (default: {GPU_MINUTES:g})",
    )


def main(options: argparse.Namespace) -> int:
    if find_spec("pytest") is None:
        raise InputError("check needs pytest: pip install 'scalebench-train[testing]'")
    if options.gpu:
        if options.subject or options.faults or options.traceback:
            raise InputError("check --gpu checks this machine: it takes --page and --minutes alone")
        from scalebench.cli.commands import check_gpu  # imports pytest, pandas and Hydra

        return check_gpu.main(Path(options.page or GPU_PAGE), options.minutes or GPU_MINUTES)
    if options.page is not None or options.minutes is not None:
        raise InputError("--page and --minutes go with --gpu")
    subject = read_subject(options.subject, options.faults)
    cases = list_contracts(subject)
    print(f"checking {SUBJECT_KINDS[subject.kind]} {subject.title}", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="scalebench-check-") as folder:
        results = run_contracts(cases, Path(folder))
    print_results(subject, results, options.traceback)
    return 0 if has_run(results) and not any(result.verdict == FAILS for result in results) else 1


def has_run(results: list[ContractResult]) -> bool:
    """Return whether a test holds that started a process."""
    return any(result.verdict == HOLDS and not result.test.startswith(YAML_TEST_PREFIX) for result in results)


def read_subject(arguments: list[str], faults: bool = False) -> CheckSubject:
    """Read the subject from arguments. Raise InputError for a name that is unknown or ambiguous."""
    names = [argument for argument in arguments if "=" not in argument]
    overrides = accept_aliases(argument for argument in arguments if "=" in argument)
    if len(names) > 1:
        raise InputError(f"check takes one name, not '{' '.join(names)}'; {CHECK_USAGE}")
    if names:
        name, kinds = names[0], [kind for kind in SUBJECT_KINDS if names[0] in list_names(kind)]
        if not kinds:
            names_of_all = {each for kind in SUBJECT_KINDS for each in list_names(kind)}
            way_out = "scalebench list strategies, models or datasets shows them"
            raise InputError(unknown_name_message("strategy, model or data set", name, names_of_all, way_out))
        if len(kinds) > 1:
            meanings = " and ".join(f"a {SUBJECT_KINDS[kind]}" for kind in kinds)
            raise InputError(f"'{name}' is {meanings}: say {' or '.join(f'{kind}={name}' for kind in kinds)}")
        kind = kinds[0]
    else:  # the strategy where one is chosen, else the model, else the data set
        chosen = dict(override.split("=", 1) for override in overrides)
        kind = next((kind for kind in SUBJECT_KINDS if kind in chosen), "")
        if not kind:
            raise InputError(f"check what? {CHECK_USAGE}")
        name = chosen[kind]
        overrides = [override for override in overrides if override != f"{kind}={name}"]
    if faults and kind != "strategy":
        raise InputError(f"--faults is for strategies, and {name} is a {SUBJECT_KINDS[kind]}")
    return CheckSubject(kind, name, tuple(overrides), faults)


def list_contracts(subject: CheckSubject) -> list[ContractCase]:
    """List the contracts of a subject. Raise InputError where its overrides are invalid."""
    if subject.kind == "dataset":
        from scalebench.testing.dataset_contract import DATA_ONLY_OVERRIDES, dataset_overrides

        resolve_overrides([*dataset_overrides(subject.name, subject.overrides), *DATA_ONLY_OVERRIDES])
        return [ContractCase("DatasetContract", {"dataset": subject.name, "overrides": subject.overrides})]
    if subject.kind == "model":
        resolve_overrides(["strategy=simulated", f"model={subject.name}", "gpus=1", *subject.overrides])
        return [ContractCase("ModelContract", {"model": subject.name, "overrides": subject.overrides})]
    others = tuple(override for override in subject.overrides if not override.startswith("gpus="))
    spec = resolve_overrides([f"strategy={subject.name}", *subject.overrides])
    gpus = spec.gpus if others != subject.overrides else min(2, spec.config.strategy.max_gpus or 2)
    cases = [ContractCase("StrategyContract", {"strategy": subject.name, "gpus": gpus, "overrides": others})]
    if subject.faults:
        spec = resolve_overrides([f"strategy={subject.name}", *others, "gpus=2"])
        measuring = spec.processes - len(spec.services)
        settings = {"strategy": subject.name, "overrides": others, "measuring": measuring}
        cases.append(ContractCase("FaultContract", {**settings, "rank": 1 if measuring > 1 else 0}))
    return cases


def resolve_overrides(overrides: list[str]) -> RunSpec:
    """Compose and resolve a run. Raise InputError for anything wrong with its overrides."""
    from scalebench.config import resolve  # takes longer than the command's --help

    return resolve.resolve(compose_overrides(overrides))


def print_results(subject: CheckSubject, results: list[ContractResult], with_details: bool) -> None:
    """Print the table, and below it, with details, each of pytest's reports of failures once."""
    table = Table(SUBJECT_KINDS[subject.kind], subject.title, "", box=box.SIMPLE_HEAD)
    for result in results:
        table.add_row(result.test, result.verdict, result.reason)
    console = make_console()
    console.print(table)
    details = dict.fromkeys(result.detail for result in results if result.detail)
    for detail in details if with_details else []:
        console.print(detail, soft_wrap=True)
    texts = {HOLDS: "hold", FAILS: "do not hold", SKIPPED: "skipped"}
    console.print(f"{subject.title}: {count_verdicts(results, texts)}")
    if details and not with_details:
        console.print("--traceback prints pytest's report of each failure, with the logs of its ranks")


class ContractCase(NamedTuple):
    """One contract, and the attributes of its test class."""

    contract: str  # StrategyContract, ...
    settings: Mapping[str, Any]  # strings, numbers and tuples, which Python reads as repr writes them

    def source(self) -> str:
        lines = [f"    {key} = {value!r}" for key, value in self.settings.items()]
        head = f"from scalebench.testing import {self.contract} as _{self.contract}"
        return "\n".join([head, "", f"class Test{self.contract}(_{self.contract}):", *lines, ""])


class ContractResult(NamedTuple):
    """The outcome of one test of a contract."""

    test: str  # "losses equal the baselines"
    verdict: str
    reason: str = ""  # one line
    detail: str = ""  # pytest's report of a failure


class ResultListener:
    """A plugin of pytest that keeps the outcome of each test."""

    def __init__(self) -> None:
        self.results: dict[str, ContractResult] = {}  # by pytest's id of the test

    def pytest_runtest_logreport(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        text = report.longreprtext
        verdict = FAILS if report.failed else SKIPPED if report.skipped else HOLDS
        if verdict == HOLDS and report.when != "call":  # a failing teardown replaces what the test itself was
            return
        if isinstance(report.longrepr, tuple):  # of a skipped test: file, line, reason
            text = report.longrepr[2]
        elif (crash := getattr(report.longrepr, "reprcrash", None)) is not None:
            text = crash.message.removeprefix("AssertionError: ").removeprefix("Failed: ")
        reason = next((line.strip() for line in text.removeprefix("Skipped: ").splitlines() if line.strip()), "")
        name = report.nodeid.rpartition("::")[2].removeprefix("test_").replace("_", " ")
        self.results[report.nodeid] = ContractResult(
            name, verdict, "" if verdict == HOLDS else reason, report.longreprtext if report.failed else ""
        )

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.pytest_runtest_logreport(report)


def run_contracts(cases: list[ContractCase], folder: Path) -> list[ContractResult]:
    """Run the tests of these contracts with files in `folder`. Raise nothing but KeyboardInterrupt."""
    import pytest

    (folder / "pytest.ini").write_text(PYTEST_SETTINGS, encoding="utf-8")
    for case in cases:
        (folder / f"test_{next(_numbers)}.py").write_text(case.source(), encoding="utf-8")
    listener = ResultListener()
    folders = ["-c", str(folder / "pytest.ini"), f"--rootdir={folder}", f"--confcutdir={folder}"]
    with pytest.MonkeyPatch.context() as patch:
        for name in PYTEST_VARIABLES:
            patch.delenv(name, raising=False)
        status = pytest.main([*folders, f"--basetemp={folder / 'runs'}", *WITHOUT_PLUGINS, str(folder)], [listener])
    if status == pytest.ExitCode.INTERRUPTED:
        raise KeyboardInterrupt
    if status == pytest.ExitCode.INTERNAL_ERROR or not listener.results:
        return [*listener.results.values(), ContractResult("pytest", FAILS, f"it ended with status {int(status)}")]
    return list(listener.results.values())
