"""The trials of a search: optuna proposes them and keeps them in a journal in the sweep's folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
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
OPEN = "running"  # optuna's state of a trial without an outcome, which is proposed again when the search is resumed


@dataclass(frozen=True)
class Outcome:
    """The outcome of a trial, as the study records it."""

    state: str = OPEN  # or complete | pruned | fail
    value: float | None = None
    status: str = "ok"  # of the result
    reason: str = ""  # why there is no value
    run: int | None = None  # the earlier trial with the same settings, whose outcome this is


@dataclass(frozen=True)
class Trial:
    """A trial; `number` is the name of its folder."""

    number: int
    overrides: list[str]
    outcome: Outcome = Outcome()

    @property
    def run(self) -> int:
        """The number of its run; that of an earlier trial with the same settings, if there is one."""
        return self.number if self.outcome.run is None else self.outcome.run


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

    def __post_init__(self) -> None:
        optuna = import_optuna()
        direction = "maximize" if self.more_is_better else "minimize"
        try:
            storage = None if self.journal is None else _open_storage(self.journal)
            self.study = optuna.create_study(
                storage=storage, study_name=STUDY, direction=direction, load_if_exists=True
            )
        except Exception as error:
            raise InputError(f"{self.journal} is not a record of a search ({error}); remove it") from error
        for name, value in self.identity.items():
            if (before := self.study.user_attrs.get(name, value)) != value:
                raise InputError(
                    f"the search in {self.journal} was another one: its {name} was {before}, and is {value} now; "
                    "choose another hydra.sweep.dir"
                )
            self.study.set_user_attr(name, value)
        for trial in self.list_trials():
            if trial.outcome.state == OPEN and not trial.overrides:  # the program was killed while it was proposed
                self.record(trial.number, Outcome("fail", status="failed", reason="never begun"))

    def list_trials(self) -> list[Trial]:
        """Return all trials in the order of their numbers, those without an outcome too."""
        trials, details = [], self.study.user_attrs
        for frozen in self.study.get_trials(deepcopy=False):
            state = frozen.state.name.lower()
            value = frozen.value if state == "complete" else None
            complete = set(frozen.params) == set(self.space.searched)
            overrides = self.space.overrides(frozen.params) if complete else []
            outcome = Outcome(state, value, **details.get(f"trial {frozen.number}", {}))
            trials.append(Trial(frozen.number, overrides, outcome))
        return trials

    def propose(self, limit: int) -> list[Trial]:
        """Return the next trials, at most `limit` with consecutive numbers; none when the search is over. Trials that
        have no outcome yet come first."""
        batch: list[Trial] = []
        waiting = [trial for trial in self.list_trials() if trial.outcome.state == OPEN]
        while len(batch) < limit:
            trial = waiting.pop(0) if waiting else self._ask()
            if trial is None or (batch and trial.number != batch[-1].number + 1):
                break
            batch.append(trial)
        return batch

    def record(self, number: int, outcome: Outcome) -> None:
        """Record the outcome of a trial; a cancelled trial stays open."""
        if outcome.state == OPEN:
            return
        details = {"status": outcome.status, "reason": outcome.reason, "run": outcome.run}
        self.study.set_user_attr(f"trial {number}", details)
        state = import_optuna().trial.TrialState[outcome.state.upper()]
        self.study.tell(number, outcome.value if outcome.state == "complete" else None, state)

    def rank_trials(self) -> list[Trial]:
        """Return the finished trials, the best first, those without a value last."""
        sign = -1.0 if self.more_is_better else 1.0
        finished = [trial for trial in self.list_trials() if trial.outcome.state != OPEN]
        return sorted(finished, key=lambda t: (t.outcome.value is None, sign * (t.outcome.value or 0.0), t.number))

    @property
    def best(self) -> Trial | None:
        """Return the best trial; None while no trial has a value."""
        return next((trial for trial in self.rank_trials() if trial.outcome.value is not None), None)

    def _ask(self) -> Trial | None:
        """Return a new trial; None at the end. One with the settings of an earlier trial has its outcome."""
        while (number := len(trials := self.list_trials())) < self.settings.n_trials:
            self.study.sampler = _create_sampler(self.settings, number)
            overrides = self.space.overrides(self.study.ask(self.space.searched).params)
            twin = next((trial for trial in trials if trial.overrides == overrides), None)
            if twin is None:
                return Trial(number, overrides)
            state = "fail" if twin.outcome.state == OPEN else twin.outcome.state
            reason = twin.outcome.reason or f"as trial {twin.run}"
            self.record(number, replace(twin.outcome, state=state, reason=reason, run=twin.run))
        return None


def classify_outcome(row: Mapping[str, Any], objective: str) -> Outcome:
    """Return the outcome of a trial from its row of `scalebench.load`."""
    status, reason = row["status"], row["reason"] if isinstance(row["reason"], str) else ""
    if status == "cancelled":
        return Outcome()
    if status == "ok":
        value = objective_value(row, objective)
        why = "the target was not reached" if objective in TO_TARGET else f"no {objective}"
        return Outcome("complete", value) if value is not None else Outcome("pruned", reason=why)
    is_answer = status in DOES_NOT_WORK or DIVERGED in reason
    return Outcome("pruned" if is_answer else "fail", status=status, reason=reason)


def import_optuna() -> Any:
    """Import optuna, with its messages off. Raise InputError where it is not installed."""
    try:
        import optuna
    except ImportError as error:
        raise InputError(NO_OPTUNA) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _open_storage(journal: Path) -> Any:
    """Open the journal, also of a program that was killed while it wrote: optuna refuses half a line once another one
    follows, and waits for the lock. The caller holds the lock on the folder."""
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    journal.with_name(f"{journal.name}.lock").unlink(missing_ok=True)
    if journal.exists():
        os.truncate(journal, journal.read_bytes().rfind(b"\n") + 1)
    return JournalStorage(JournalFileBackend(str(journal)))


def _create_sampler(settings: SearchSettings, number: int) -> Any:
    """Create the sampler of one trial: that of an earlier program is not kept, and its numbers would repeat."""
    import numpy as np
    from optuna import samplers

    seed = int(np.random.SeedSequence([settings.seed, number]).generate_state(1)[0])
    if settings.sampler == "random":
        return samplers.RandomSampler(seed=seed)
    return samplers.TPESampler(n_startup_trials=settings.startup_trials, seed=seed)
