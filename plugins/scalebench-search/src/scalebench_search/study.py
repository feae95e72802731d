"""The trials of a search: optuna proposes them and keeps them in a journal in the sweep's folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scalebench.core.errors import InputError
from scalebench_search.objective import TO_TARGET, SearchSettings, objective_value
from scalebench_search.search_space import SearchSpace

JOURNAL = "search.journal"
STUDY = "search"
NO_OPTUNA = "a search needs optuna: pip install optuna"
DIVERGED = "Diverged:"  # in the reason of a run whose loss is not finite
# A setting that does not work here is worse than any value. Other failures may be the machine's fault, and say nothing
# about the setting.
DOES_NOT_WORK = ("oom", "timeout", "unsupported")
OPEN = "open"  # state of a trial that was cancelled: it is repeated when the search is resumed


@dataclass(frozen=True)
class Proposal:
    """A trial to run; `number` is the name of its folder."""

    number: int
    overrides: list[str]


@dataclass(frozen=True)
class TrialOutcome:
    """The outcome of a trial, as the study records it."""

    state: str  # complete | pruned | fail | open
    value: float | None = None
    status: str = "ok"  # of the result
    reason: str = ""  # why there is no value


@dataclass(frozen=True)
class Trial:
    """A finished trial."""

    number: int
    state: str
    value: float | None
    overrides: list[str]
    status: str
    reason: str
    run: int  # number of the run; that of an earlier trial with the same settings, if there is one


@dataclass
class Study:
    """Proposes and records the trials of a search.

    A search proposes the same values after the same results, also when it is resumed: each trial draws its own random
    numbers, from the seed and its number.
    """

    settings: SearchSettings
    space: SearchSpace
    more_is_better: bool
    label: str  # of the objective, for people
    identity: dict[str, str]  # must be equal for a search to be resumed
    journal: Path | None = None  # None: kept in memory only, for a dry run
    _open: list[Proposal] = field(default_factory=list)

    def __post_init__(self) -> None:
        optuna = import_optuna()
        direction = "maximize" if self.more_is_better else "minimize"
        try:
            storage = None if self.journal is None else _storage(self.journal)
            self.study = optuna.create_study(
                storage=storage, study_name=STUDY, direction=direction, load_if_exists=True
            )
        except Exception as error:
            raise InputError(f"{self.journal} is not a record of a search ({error}); remove it") from error
        self._check_identity()
        for frozen in self._frozen():
            if frozen.state.is_finished():
                continue
            if set(frozen.params) == set(self.space.searched):
                self._open.append(Proposal(frozen.number, self.space.overrides(frozen.params)))
            else:  # the program was killed while it was proposed
                self._record(frozen, TrialOutcome("fail", status="failed", reason="never begun"))

    def propose(self, limit: int) -> list[Proposal]:
        """Return the next trials, at most `limit` with consecutive numbers; none when the search is over."""
        batch: list[Proposal] = []
        while len(batch) < limit:
            proposed = self._open.pop(0) if self._open else self._ask()
            if proposed is None:
                break
            if batch and proposed.number != batch[-1].number + 1:
                self._open.insert(0, proposed)
                break
            batch.append(proposed)
        return batch

    def put_back(self, trials: list[Proposal]) -> None:
        """Propose these trials again, before any other."""
        self._open[:0] = trials

    def record(self, number: int, outcome: TrialOutcome) -> None:
        """Record the outcome of a trial; a cancelled trial stays open."""
        if outcome.state != OPEN:
            self._record(self._frozen()[number], outcome)

    def trials(self) -> list[Trial]:
        """Return the finished trials, the best first, those without a value last."""
        finished = [_trial(frozen, self.space) for frozen in self._frozen() if frozen.state.is_finished()]
        sign = -1.0 if self.more_is_better else 1.0
        with_value = [trial for trial in finished if trial.value is not None]
        rest = [trial for trial in finished if trial.value is None]
        return sorted(with_value, key=lambda trial: (sign * (trial.value or 0.0), trial.number)) + rest

    @property
    def best(self) -> Trial | None:
        """Return the best trial; None while no trial has a value."""
        return next((trial for trial in self.trials() if trial.value is not None), None)

    def _ask(self) -> Proposal | None:
        while len(self._frozen()) < self.settings.n_trials:
            number = len(self._frozen())
            self.study.sampler = _sampler(self.settings, number)
            trial = self.study.ask(self.space.searched)
            overrides = self.space.overrides(trial.params)
            trial.set_user_attr("overrides", overrides)
            twin = next((t for t in self._frozen()[:number] if t.user_attrs.get("overrides") == overrides), None)
            if twin is None:
                return Proposal(trial.number, overrides)
            self._repeat(trial, twin)
        return None

    def _repeat(self, trial: Any, twin: Any) -> None:
        """Record for a trial the outcome of an earlier one with the same settings, without running it again."""
        attributes = twin.user_attrs
        run = attributes.get("run", twin.number)
        trial.set_user_attr("run", run)
        state = twin.state.name.lower() if twin.state.is_finished() else "fail"
        why = attributes.get("reason") or f"as trial {run}"
        self._record(self._frozen()[trial.number], TrialOutcome(state, twin.value, attributes.get("status", "ok"), why))

    def _record(self, frozen: Any, outcome: TrialOutcome) -> None:
        optuna = import_optuna()
        trial = optuna.trial.Trial(self.study, frozen._trial_id)
        trial.set_user_attr("status", outcome.status)
        trial.set_user_attr("reason", outcome.reason)
        state = optuna.trial.TrialState[outcome.state.upper()]
        self.study.tell(frozen.number, outcome.value if outcome.state == "complete" else None, state)

    def _frozen(self) -> list[Any]:
        return list(self.study.get_trials(deepcopy=False))

    def _check_identity(self) -> None:
        """Raise InputError where the journal is of another search, whose trials cannot be compared with new ones."""
        before = self.study.user_attrs
        for name, value in self.identity.items():
            if before.get(name, value) != value:
                raise InputError(
                    f"the search in {self.journal} was another one: its {name} was {before[name]}, and is {value} now; "
                    "choose another hydra.sweep.dir"
                )
            if name not in before:
                self.study.set_user_attr(name, value)


def classify_outcome(row: Mapping[str, Any], objective: str) -> TrialOutcome:
    """Return the outcome of a trial from its row of `scalebench.load`."""
    status, reason = row["status"], row["reason"] if isinstance(row["reason"], str) else ""
    if status == "cancelled":
        return TrialOutcome(OPEN)
    if status == "ok":
        value = objective_value(row, objective)
        why = "the target was not reached" if objective in TO_TARGET else f"no {objective}"
        return TrialOutcome("complete", value) if value is not None else TrialOutcome("pruned", reason=why)
    is_answer = status in DOES_NOT_WORK or DIVERGED in reason
    return TrialOutcome("pruned" if is_answer else "fail", status=status, reason=reason)


def import_optuna() -> Any:
    """Import optuna, with its messages off. Raise InputError where it is not installed."""
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
    """Repair the journal of a program that was killed while it wrote: optuna refuses half a line once another one
    follows, and waits for the lock. The caller holds the lock on the folder."""
    journal.with_name(f"{journal.name}.lock").unlink(missing_ok=True)
    if journal.exists():
        content = journal.read_bytes()
        os.truncate(journal, content.rfind(b"\n") + 1)


def _sampler(settings: SearchSettings, number: int) -> Any:
    """A sampler for one trial: the state of an earlier program's sampler is not kept, and its numbers would repeat."""
    import numpy as np
    from optuna import samplers

    seed = int(np.random.SeedSequence([settings.seed, number]).generate_state(1)[0])
    if settings.sampler == "random":
        return samplers.RandomSampler(seed=seed)
    return samplers.TPESampler(n_startup_trials=settings.startup_trials, seed=seed)


def _trial(frozen: Any, space: SearchSpace) -> Trial:
    attributes = frozen.user_attrs
    complete = set(frozen.params) == set(space.searched)
    return Trial(
        frozen.number,
        frozen.state.name.lower(),
        frozen.value if frozen.state.name == "COMPLETE" else None,
        space.overrides(frozen.params) if complete else [],
        attributes.get("status", ""),
        attributes.get("reason", ""),
        attributes.get("run", frozen.number),
    )
