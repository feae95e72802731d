"""The trials of a search: proposed by optuna, kept in its journal in the sweep's folder. Layer 4."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scalebench.measure.course import Diverged
from scalebench.results import Result
from scalebench.search.objective import TO_TARGET, value_of
from scalebench.search.settings import SearchConf
from scalebench.search.space import Space
from scalebench.spec import InputError

JOURNAL = "search.journal"
STUDY = "search"
NO_OPTUNA = "a search needs optuna: pip install 'scalebench[search]'"
# A setting that does not work here is an answer, and worse than any figure. Whatever else goes wrong may be the
# machine's fault, and says nothing of the setting.
ANSWERS = ("oom", "timeout", "unsupported")
OPEN = "open"  # of a trial that somebody has cancelled: it is done again when the search goes on


@dataclass(frozen=True)
class Proposed:
    """A trial to be run; `number` is the name of its folder."""

    number: int
    words: list[str]


@dataclass(frozen=True)
class Verdict:
    state: str  # complete | pruned | fail | open
    value: float | None = None
    status: str = "ok"  # of the row
    reason: str = ""  # why there is no value


@dataclass(frozen=True)
class Trial:
    """One that is known of, for people."""

    number: int
    state: str
    value: float | None
    words: list[str]
    status: str
    reason: str
    run: int  # whose row it is: of an earlier trial, where that had the same settings


@dataclass
class Search:
    """The same search, resumed or not, proposes the same values after the same results: each trial has random numbers
    of its own, by the seed and its number."""

    conf: SearchConf
    space: Space
    more_is_better: bool
    label: str  # of the objective, for people
    about: dict[str, str]  # what has to be alike when a search goes on
    journal: Path | None = None  # null: forgotten at the end, for a dry run
    _open: list[Proposed] = field(default_factory=list)

    def __post_init__(self) -> None:
        optuna = import_optuna()
        direction = "maximize" if self.more_is_better else "minimize"
        try:
            storage = None if self.journal is None else _storage(self.journal)
            self.study = optuna.create_study(
                storage=storage, study_name=STUDY, direction=direction, load_if_exists=True
            )
        except Exception as error:
            raise InputError(f"{self.journal} is no record of a search ({error}); remove it") from error
        self._check_alike()
        for frozen in self._frozen():
            if frozen.state.is_finished():
                continue
            if set(frozen.params) == set(self.space.searched):
                self._open.append(Proposed(frozen.number, self.space.words(frozen.params)))
            else:  # the program was killed while it was proposed
                self._tell(frozen, Verdict("fail", status="failed", reason="never begun"))

    def batch(self, most: int) -> list[Proposed]:
        """The next trials, of numbers in a row and at most so many; none where the search is over."""
        found: list[Proposed] = []
        while len(found) < most:
            proposed = self._open.pop(0) if self._open else self._ask()
            if proposed is None:
                break
            if found and proposed.number != found[-1].number + 1:
                self._open.insert(0, proposed)
                break
            found.append(proposed)
        return found

    def put_back(self, trials: list[Proposed]) -> None:
        """They are the next ones."""
        self._open[:0] = trials

    def tell(self, number: int, verdict: Verdict) -> None:
        if verdict.state != OPEN:
            self._tell(self._frozen()[number], verdict)

    def trials(self) -> list[Trial]:
        """The best first; those without a value at the end."""
        found = [_told(frozen, self.space) for frozen in self._frozen() if frozen.state.is_finished()]
        sign = -1.0 if self.more_is_better else 1.0
        with_value = [trial for trial in found if trial.value is not None]
        rest = [trial for trial in found if trial.value is None]
        return sorted(with_value, key=lambda trial: (sign * (trial.value or 0.0), trial.number)) + rest

    @property
    def best(self) -> Trial | None:
        """None: no trial has a value yet."""
        return next((trial for trial in self.trials() if trial.value is not None), None)

    def _ask(self) -> Proposed | None:
        while len(self._frozen()) < self.conf.n_trials:
            number = len(self._frozen())
            self.study.sampler = _sampler(self.conf, number)
            trial = self.study.ask(self.space.searched)
            words = self.space.words(trial.params)
            trial.set_user_attr("words", words)
            twin = next((t for t in self._frozen()[:number] if t.user_attrs.get("words") == words), None)
            if twin is None:
                return Proposed(trial.number, words)
            self._repeat(trial, twin)
        return None

    def _repeat(self, trial: Any, twin: Any) -> None:
        """Settings that were tried before are not run again."""
        attributes = twin.user_attrs
        run = attributes.get("run", twin.number)
        trial.set_user_attr("run", run)
        state = twin.state.name.lower() if twin.state.is_finished() else "fail"
        why = attributes.get("reason") or f"as trial {run}"
        self._tell(self._frozen()[trial.number], Verdict(state, twin.value, attributes.get("status", "ok"), why))

    def _tell(self, frozen: Any, verdict: Verdict) -> None:
        optuna = import_optuna()
        trial = optuna.trial.Trial(self.study, frozen._trial_id)
        trial.set_user_attr("status", verdict.status)
        trial.set_user_attr("reason", verdict.reason)
        state = optuna.trial.TrialState[verdict.state.upper()]
        self.study.tell(frozen.number, verdict.value if verdict.state == "complete" else None, state)

    def _frozen(self) -> list[Any]:
        return list(self.study.get_trials(deepcopy=False))

    def _check_alike(self) -> None:
        """InputError where the journal is of another search: its trials would be compared with what they are not."""
        before = self.study.user_attrs
        for name, value in self.about.items():
            if before.get(name, value) != value:
                raise InputError(
                    f"the search in {self.journal} was another one: its {name} was {before[name]}, and is {value} now; "
                    "choose another hydra.sweep.dir"
                )
            if name not in before:
                self.study.set_user_attr(name, value)


def verdict_of(result: Result, folder: Path, objective: str) -> Verdict:
    """What a search learns from the row of a trial."""
    reason = result.reason or ""
    if result.status == "cancelled":
        return Verdict(OPEN)
    if result.status == "ok":
        value = value_of(result, folder, objective)
        why = "the target was not reached" if objective in TO_TARGET else f"no {objective}"
        return Verdict("complete", value) if value is not None else Verdict("pruned", reason=why)
    answers = result.status in ANSWERS or f"{Diverged.__name__}:" in reason
    return Verdict("pruned" if answers else "fail", status=result.status, reason=reason)


def import_optuna() -> Any:
    """InputError where it is not installed."""
    try:
        import optuna
    except ImportError as error:
        raise InputError(NO_OPTUNA) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _storage(journal: Path) -> Any:
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    mend(journal)
    return JournalStorage(JournalFileBackend(str(journal)))


def mend(journal: Path) -> None:
    """After a program that was killed while it wrote: optuna would refuse half a line once there is another after it,
    and wait for the lock. Whoever calls this holds the folder."""
    journal.with_name(f"{journal.name}.lock").unlink(missing_ok=True)
    if journal.exists():
        content = journal.read_bytes()
        os.truncate(journal, content.rfind(b"\n") + 1)


def _sampler(conf: SearchConf, number: int) -> Any:
    """Of one trial: the numbers of an earlier program's sampler are not kept, and would come again."""
    import numpy as np
    from optuna import samplers

    seed = int(np.random.SeedSequence([conf.seed, number]).generate_state(1)[0])
    if conf.sampler == "random":
        return samplers.RandomSampler(seed=seed)
    return samplers.TPESampler(n_startup_trials=conf.startup_trials, seed=seed)


def _told(frozen: Any, space: Space) -> Trial:
    told = frozen.user_attrs
    whole = set(frozen.params) == set(space.searched)
    return Trial(
        frozen.number,
        frozen.state.name.lower(),
        frozen.value if frozen.state.name == "COMPLETE" else None,
        space.words(frozen.params) if whole else [],
        told.get("status", ""),
        told.get("reason", ""),
        told.get("run", frozen.number),
    )
