"""`scalebench check NAME [KEY=VALUE ...] [--faults]`: does a strategy, a model or a data set keep its contract?

Exit status 0: it does; 1: something does not hold, or nothing could be run here.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from scalebench import configs, registry, resolve
from scalebench.compose import compose_config
from scalebench.config_errors import FORESEEN, explain
from scalebench.spec import InputError, RunSpec
from scalebench.suggest import no_such
from scalebench.testing.words import DATA_ONLY, of_dataset
from scalebench.verbs.asked import FAILS, HOLDS, NOT_ASKED, Answer, Case, ask

KINDS = {"strategy": "strategy", "model": "model", "dataset": "data set"}  # and what they are called
OWN = {"strategy": ("-",), "model": ("model.torch=", "model.keras="), "dataset": ("dataset.builder=",)}
USAGE = "usage: scalebench check NAME [KEY=VALUE ...] [--faults]"
IN_YAML = "yaml "  # questions that begin so look at words, and start no process


@dataclass(frozen=True)
class Subject:
    """What is to be checked, and the words that go with it."""

    kind: str  # of KINDS
    name: str
    overrides: tuple[str, ...]
    faults: bool

    @property
    def told(self) -> str:
        """A user's own goes by its functions."""
        functions = [word.partition("=")[2] for word in self.overrides if word.startswith(OWN[self.kind])]
        return " ".join(functions) if functions and self.name == "custom" else self.name


def main(arguments: list[str]) -> int:
    subject = read(arguments)
    cases = contracts(subject)
    print(f"checking {KINDS[subject.kind]} {subject.told}", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="scalebench-check-") as folder:
        answers = ask(cases, Path(folder))
    show(subject, answers)
    ran = any(answer.verdict == HOLDS and not answer.question.startswith(IN_YAML) for answer in answers)
    return 0 if ran and not any(answer.verdict == FAILS for answer in answers) else 1


def read(arguments: list[str]) -> Subject:
    """InputError for a name that is none, or several things."""
    words = [word for word in arguments if word != "--faults"]
    overrides = [word for word in words if "=" in word and not word.startswith("-")]
    names = [word for word in words if word not in overrides]
    if len(names) > 1 or any(name.startswith("-") for name in names):
        raise InputError(f"check takes one name, not '{' '.join(names)}'; {USAGE}")
    if names:
        kind, name = _kind_of(names[0]), names[0]
    else:
        kind, name = _named_by(overrides)
        overrides = [word for word in overrides if word != f"{kind}={name}"]
    if "--faults" in arguments and kind != "strategy":
        raise InputError(f"--faults is for strategies, and {name} is a {KINDS[kind]}")
    return Subject(kind, name, tuple(overrides), "--faults" in arguments)


def _kind_of(name: str) -> str:
    known = {"strategy": registry.table().keys() | configs.options("strategy").keys()}
    known |= {kind: configs.options(kind).keys() for kind in ("model", "dataset")}
    kinds = [kind for kind, names in known.items() if name in names]
    if not kinds:
        raise InputError(no_such("strategy, model or data set", name, {n for names in known.values() for n in names}))
    if len(kinds) > 1:
        told = " and ".join(f"a {KINDS[kind]}" for kind in kinds)
        raise InputError(f"'{name}' is {told}: say {' or '.join(f'{kind}={name}' for kind in kinds)}")
    return kinds[0]


def _named_by(overrides: list[str]) -> tuple[str, str]:
    """The strategy where one is chosen, else the model, else the data set."""
    chosen = dict(word.split("=", 1) for word in overrides)
    for kind in KINDS:
        if kind in chosen:
            return kind, chosen[kind]
    raise InputError(f"check what? {USAGE}")


def contracts(subject: Subject) -> list[Case]:
    """The classes to ask. InputError where the words do not make a run."""
    if subject.kind == "dataset":
        resolved([*of_dataset(subject.name, subject.overrides), *DATA_ONLY])
        return [Case("DatasetContract", {"dataset": subject.name, "overrides": subject.overrides})]
    if subject.kind == "model":
        resolved(["strategy=null", f"model={subject.name}", "gpus=1", *subject.overrides])
        return [Case("ModelContract", {"model": subject.name, "overrides": subject.overrides})]
    others = tuple(word for word in subject.overrides if not word.startswith("gpus="))
    spec = resolved([f"strategy={subject.name}", *subject.overrides])
    asked = [word for word in subject.overrides if word.startswith("gpus=")]
    most = spec.config.strategy.max_gpus
    gpus = spec.gpus if asked else min(2, most or 2)
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
    """The table, and below it, once, all that pytest tells of each failure."""
    table = Table(KINDS[subject.kind], subject.told, "", box=box.SIMPLE_HEAD)
    for answer in answers:
        table.add_row(answer.question, answer.verdict, answer.reason)
    console = Console(markup=False, highlight=False)
    console.width = console.width if console.is_terminal else 400  # a line for each question
    console.print(table)
    for detail in dict.fromkeys(answer.detail for answer in answers if answer.detail):
        console.print(detail, soft_wrap=True)
    counts = {verdict: sum(answer.verdict == verdict for answer in answers) for verdict in (HOLDS, FAILS, NOT_ASKED)}
    words = {HOLDS: "hold", FAILS: "do not hold", NOT_ASKED: "not asked"}
    console.print(f"{subject.told}: " + ", ".join(f"{count} {words[verdict]}" for verdict, count in counts.items()))
