"""Hydra's sweeper for searches: each trial is a run of the sweep, proposed after what the ones before it gave. Layer 4.

The trials go through the launcher as the runs of any sweep do: same rows, same folders, same report at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from scalebench import on_cluster
from scalebench.jobs import to_config
from scalebench.resolve import resolve
from scalebench.results import RESULT_FILE, read_result
from scalebench.search import objective, settings, telling
from scalebench.search.space import Space, space_of
from scalebench.search.trials import JOURNAL, Proposed, Search, Verdict, import_optuna, verdict_of
from scalebench.spec import InputError, RunSpec


class SearchSweeper(Sweeper):
    """`hydra/sweeper=search`; its keys are those of SearchConf."""

    def __init__(self, params: DictConfig | None = None, **told: Any) -> None:
        self._conf = settings.SearchConf(params=dict(params or {}), **told)

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self._context, self._config = hydra_context, config
        self._launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )
        self._session = self._launcher.session

    def sweep(self, arguments: list[str]) -> Sequence[JobReturn]:
        settings.check(self._conf)
        import_optuna()
        space = self._space(arguments)
        first = self._checked(space)
        label = objective.label(self._conf.objective, first.config.model.metric)
        search = partial(Search, self._conf, space, self._more_is_better(first), label, self._about(space, first))
        if self._config.dry_run:
            return self._planned(search())
        folder = Path(str(self._config.hydra.sweep.dir))
        if (folder / JOURNAL).exists() and not self._config.resume:
            raise InputError(f"{folder} has a search already; resume=true goes on with it, or choose another folder")
        folder.mkdir(parents=True, exist_ok=True)
        OmegaConf.save(self._config, folder / "multirun.yaml")
        limits = self._config.sweep
        self._session.begin_sweep([], folder, limits.max_minutes, limits.report)  # the folder is ours from here on
        found = search(journal=folder / JOURNAL)
        self._session.at_end.append(lambda: telling.tell(found, folder, self._session.arguments, self._session.console))
        return self._run(found, folder, _at_once(first))

    def _space(self, arguments: Sequence[str]) -> Space:
        given = [f"{key}={value}" for key, value in (self._conf.params or {}).items()]
        parser = OverridesParser.create(config_loader=self._context.config_loader)
        space = space_of(parser.parse_overrides([*given, *arguments]))
        for word in space.fixed:
            if word.startswith("baseline=") and word != "baseline=none":
                raise InputError(f"{word}: the trials of a search are compared with each other, and not with baselines")
        space.fixed = [*(word for word in space.fixed if not word.startswith("baseline=")), "baseline=none"]
        return space

    def _resolved(self, space: Space, words: Sequence[str]) -> RunSpec:
        composed = self._context.config_loader.load_sweep_config(self._config, [*space.fixed, *words])
        return resolve(to_config(composed))

    def _checked(self, space: Space) -> RunSpec:
        """Its first corner. InputError or a composition error for the first one that makes no sense."""
        found = [self._resolved(space, space.words(values)) for values in space.corners()]
        for spec in found:
            objective.check(self._conf.objective, spec.config)
            if spec.config.measure.repeats > 1:
                raise InputError(
                    f"measure.repeats={spec.config.measure.repeats}: a trial is one run; repeat the best one afterwards"
                )
            if self._more_is_better(spec) != self._more_is_better(found[0]):
                raise InputError("models of different metrics are no choices of one search")
        return found[0]

    def _more_is_better(self, spec: RunSpec) -> bool:
        return objective.more_is_better(self._conf.objective, spec.config.model.metric)

    def _about(self, space: Space, first: RunSpec) -> dict[str, str]:
        searched = " ".join(f"{key}={text}" for key, text in space.texts.items())
        own = f"{self._conf.sampler} seed={self._conf.seed} startup_trials={self._conf.startup_trials}"
        return {
            "space": searched,
            "objective": self._conf.objective,
            "sampler": own,
            "configuration": first.fingerprint,
        }

    def _planned(self, search: Search) -> Sequence[JobReturn]:
        """What a dry run lists: the trials that it begins with, which nothing has taught yet."""
        for key, text in search.space.texts.items():
            self._session.console.line(f"{key}: {text}")
        first = [[*search.space.fixed, *trial.words] for trial in search.batch(self._conf.n_trials)]
        for number, words in enumerate(first[: self._conf.startup_trials]):
            self._session.console.line(telling.heading(search, number, words[len(search.space.fixed) :]))
        return self._launcher.launch(first, initial_job_idx=0)

    def _run(self, search: Search, folder: Path, at_once: int) -> Sequence[JobReturn]:
        done: list[JobReturn] = []
        while batch := self._sound(search, search.batch(at_once)):
            for trial in batch:
                self._session.console.line(telling.heading(search, trial.number, trial.words))
            to_come = self._conf.n_trials - batch[0].number
            self._session.planned = (
                len(self._session.done) + to_come - len(batch)
            )  # to which the launcher adds the batch
            words = [[*search.space.fixed, *trial.words] for trial in batch]
            returned = self._launcher.launch(words, initial_job_idx=batch[0].number)
            told = [self._told(search, job) for job in returned]
            telling.keep(search, folder, self._session.arguments)
            done += returned
            if len(told) < len(batch) or not all(told):  # no time was left for one, or its row cannot be written
                break
        telling.keep(search, folder, self._session.arguments)
        return done

    def _sound(self, search: Search, batch: list[Proposed]) -> list[Proposed]:
        """The trials up to the first that contradicts itself; where that is the first one, those after it."""
        for place, trial in enumerate(batch):
            try:
                self._resolved(search.space, trial.words)
            except InputError as error:
                self._session.console.line(f"trial {trial.number}: {error}")
                search.tell(trial.number, Verdict("pruned", status="refused", reason=str(error)))
                search.put_back(batch[place + 1 :])
                return batch[:place] or self._sound(search, search.batch(len(batch)))
        return batch

    def _told(self, search: Search, job: JobReturn) -> bool:
        """Whether the run left a row, from which the search has learnt then."""
        _ = job.return_value  # raises what the run raised
        hydra = job.hydra_cfg.hydra  # type: ignore[union-attr]
        folder = Path(hydra.runtime.output_dir)
        if not (folder / RESULT_FILE).exists():
            return False
        result = read_result(folder / RESULT_FILE)
        search.tell(int(hydra.job.num), verdict_of(result, folder, self._conf.objective))
        return True


def _at_once(spec: RunSpec) -> int:
    """Trials that run side by side, of which none can learn from another: as many jobs as may be in a queue."""
    return (spec.config.hardware.max_jobs or 1) if on_cluster.submits(spec) else 1
