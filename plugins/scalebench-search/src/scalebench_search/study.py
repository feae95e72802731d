"""The trials of a search, which optuna proposes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from scalebench.core.errors import InputError
from scalebench_search.objective import TO_TARGET, SearchSettings, objective_value
from scalebench_search.search_space import SearchSpace

NO_OPTUNA = "a search needs optuna: pip install optuna"
DIVERGED = "Diverged:"  # in the reason of a run whose loss is not finite
# A setting that does not work here is worse than any value. Other failures may be the machine's fault, and say nothing
# about the setting.
DOES_NOT_WORK = ("oom", "timeout", "unsupported")
OPEN = "running"  # optuna's state of a trial without an outcome


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

    A search proposes the same values after the same results, since each trial draws its own random numbers, from the
    seed and its number. So one that is resumed begins anew, and its runs that are done before are not repeated.
    """

    settings: SearchSettings
    space: SearchSpace
    more_is_better: bool
    label: str  # of the objective, for people
    refuse: Callable[[Trial], Outcome | None] = lambda trial: None  # the outcome of settings that contradict each other
    trials: list[Trial] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.study = import_optuna().create_study(direction="maximize" if self.more_is_better else "minimize")

    def propose(self, limit: int) -> list[Trial]:
        """Return the next trials, at most `limit` with consecutive numbers; none when the search is over. One with the
        settings of an earlier trial has its outcome."""
        batch: list[Trial] = []
        while len(batch) < limit and (number := len(self.trials)) < self.settings.n_trials:
            self.study.sampler = _create_sampler(self.settings, number)
            trial = Trial(number, self.space.overrides(self.study.ask(self.space.searched).params))
            twin = next((each for each in self.trials if each.overrides == trial.overrides), None)
            self.trials.append(trial)
            if twin is None:
                outcome = self.refuse(trial)
            else:
                state = "fail" if twin.outcome.state == OPEN else twin.outcome.state
                reason = twin.outcome.reason or f"as trial {twin.run}"
                outcome = replace(twin.outcome, state=state, reason=reason, run=twin.run)
            if outcome is None:
                batch.append(trial)
                continue
            self.record(number, outcome)
            if batch:
                break
        return batch

    def record(self, number: int, outcome: Outcome) -> None:
        """Record the outcome of a trial; a cancelled trial stays open."""
        if outcome.state == OPEN:
            return
        self.trials[number] = replace(self.trials[number], outcome=outcome)
        state = import_optuna().trial.TrialState[outcome.state.upper()]
        self.study.tell(number, outcome.value if outcome.state == "complete" else None, state)

    def rank_trials(self) -> list[Trial]:
        """Return the finished trials, the best first, those without a value last."""
        sign = -1.0 if self.more_is_better else 1.0
        finished = [trial for trial in self.trials if trial.outcome.state != OPEN]
        return sorted(finished, key=lambda t: (t.outcome.value is None, sign * (t.outcome.value or 0.0), t.number))

    @property
    def best(self) -> Trial | None:
        """Return the best trial; None while no trial has a value."""
        return next((trial for trial in self.rank_trials() if trial.outcome.value is not None), None)


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


def _create_sampler(settings: SearchSettings, number: int) -> Any:
    """Create the sampler of one trial, which is the same in a search that is resumed."""
    import numpy as np
    from optuna import samplers

    seed = int(np.random.SeedSequence([settings.seed, number]).generate_state(1)[0])
    if settings.sampler == "random":
        return samplers.RandomSampler(seed=seed)
    return samplers.TPESampler(n_startup_trials=settings.startup_trials, seed=seed)
