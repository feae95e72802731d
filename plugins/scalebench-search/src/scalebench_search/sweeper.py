"""Run a search: each trial is a run of the sweep, proposed after the results of those before it.

Scalebench's launcher runs the trials like the runs of any sweep, with the same results, folders and report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

import scalebench
from scalebench.core.errors import InputError
from scalebench.core.run_folder import RESULT_FILE
from scalebench.core.spec import RunSpec
from scalebench.sweeps.plan import SweepRun
from scalebench_search import objective, summary
from scalebench_search.search_space import SearchSpace, parse_space
from scalebench_search.study import JOURNAL, Proposal, Study, TrialOutcome, classify_outcome, import_optuna


class TrialRunner:
    """Proposes trials and has scalebench's launcher run them."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        *,
        hydra_context: HydraContext,
        task_function: TaskFunction,
        config: DictConfig,
    ) -> None:
        self._unchecked_settings, self._context, self._config = settings, hydra_context, config
        self._launcher: Any = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )
        self._session = self._launcher.session
        self._console = self._session.console

    def sweep(self, arguments: list[str]) -> Sequence[JobReturn]:
        self._settings = objective.read_settings(self._unchecked_settings)
        import_optuna()
        space = self._space(arguments)
        first = self._check_corners(space)
        label = objective.objective_label(self._settings.objective, first.config.model.metric)
        identity = self._identity(space, first)
        study = partial(Study, self._settings, space, self._more_is_better(first), label, identity)
        if self._config.dry_run:
            return self._plan(study())
        folder = Path(str(self._config.hydra.sweep.dir))
        if (folder / JOURNAL).exists() and not self._config.resume:
            raise InputError(f"{folder} has a search already; resume=true goes on with it, or choose another folder")
        self._refuse_shared_folder(space, first)
        folder.mkdir(parents=True, exist_ok=True)
        OmegaConf.save(self._config, folder / "multirun.yaml")
        self._session.begin_sweep([], folder)  # locks the folder
        begun = study(journal=folder / JOURNAL)
        self._session.at_end.append(
            lambda: summary.print_summary(begun, folder, self._session.arguments, self._console)
        )
        return self._run(begun, folder, self._session.max_concurrent_runs(first))

    def _space(self, arguments: Sequence[str]) -> SearchSpace:
        of_file = [f"{key}={value}" for key, value in (self._settings.params or {}).items()]
        parser = OverridesParser.create(config_loader=self._context.config_loader)
        space = parse_space(parser.parse_overrides([*of_file, *arguments]))
        for word in space.fixed:
            if word.startswith("baseline=") and word != "baseline=none":
                raise InputError(f"{word}: the trials of a search are compared with each other, and not with baselines")
        fixed = [word for word in space.fixed if not word.startswith("baseline=")]
        space.fixed = ["measure.repeats=1", *fixed, "baseline=none"]  # a trial is one run, unless that is refused
        return space

    def _resolve(self, space: SearchSpace, overrides: Sequence[str]) -> RunSpec:
        spec: RunSpec = self._session.resolve_run([*space.fixed, *overrides])
        return spec

    def _check_corners(self, space: SearchSpace) -> RunSpec:
        """Check all corners of the space and return the first. Raise InputError or a composition error."""
        corners = [self._resolve(space, space.overrides(values)) for values in space.corners()]
        for spec in corners:
            objective.check_objective(self._settings.objective, spec.config)
            if spec.repeats > 1:
                raise InputError(f"measure.repeats={spec.repeats}: a trial is one run; repeat the best one afterwards")
            if self._more_is_better(spec) != self._more_is_better(corners[0]):
                raise InputError("models of different metrics are no choices of one search")
        return corners[0]

    def _refuse_shared_folder(self, space: SearchSpace, first: RunSpec) -> None:
        """Raise InputError where two trials of the same values, which differ in their numbers, would share a folder."""
        words = [*space.fixed, *space.overrides(next(space.corners()))]
        count = min(2, self._settings.n_trials)
        self._session.set_folders([SweepRun(words, first, number=number) for number in range(count)])

    def _more_is_better(self, spec: RunSpec) -> bool:
        return objective.more_is_better(self._settings.objective, spec.config.model.metric)

    def _identity(self, space: SearchSpace, first: RunSpec) -> dict[str, str]:
        """Return what must be equal for a search to be resumed: trials of another one are not comparable."""
        settings = self._settings
        return {
            "space": " ".join(f"{key}={text}" for key, text in space.texts.items()),
            "objective": settings.objective,
            "sampler": f"{settings.sampler} seed={settings.seed} startup_trials={settings.startup_trials}",
            "configuration": first.fingerprint,
        }

    def _plan(self, study: Study) -> Sequence[JobReturn]:
        """List the trials that the search begins with, before there is any result to learn from."""
        for key, text in study.space.texts.items():
            self._console.print_line(f"{key}: {text}")
        first = [[*study.space.fixed, *trial.overrides] for trial in study.propose(self._settings.n_trials)]
        for number, overrides in enumerate(first[: self._settings.startup_trials]):
            self._console.print_line(summary.heading(study, number, overrides[len(study.space.fixed) :]))
        planned: Sequence[JobReturn] = self._launcher.launch(first, initial_job_idx=0)
        return planned

    def _run(self, study: Study, folder: Path, batch_size: int) -> Sequence[JobReturn]:
        """Run batches of `batch_size` trials side by side, so that none can learn from another of its batch."""
        done: list[JobReturn] = []
        session = self._session
        while batch := self._valid(study, study.propose(batch_size)):
            for trial in batch:
                self._console.print_line(summary.heading(study, trial.number, trial.overrides))
            remaining = self._settings.n_trials - batch[0].number
            session.expected = len(session.done) + remaining
            overrides = [[*study.space.fixed, *trial.overrides] for trial in batch]
            returned = self._launcher.launch(overrides, initial_job_idx=batch[0].number)
            recorded = [self._record(study, job) for job in returned]
            summary.write_files(study, folder, session.arguments)
            done += returned
            if len(recorded) < len(batch) or not all(recorded):  # no time was left, or a result cannot be written
                break
        summary.write_files(study, folder, session.arguments)
        return done

    def _valid(self, study: Study, batch: list[Proposal]) -> list[Proposal]:
        """Return the trials up to the first with contradicting settings; if that is the first one, those after it."""
        for position, trial in enumerate(batch):
            try:
                self._resolve(study.space, trial.overrides)
            except InputError as error:
                self._console.print_line(f"trial {trial.number}: {error}")
                study.record(trial.number, TrialOutcome("pruned", status="refused", reason=str(error)))
                study.put_back(batch[position + 1 :])
                return batch[:position] or self._valid(study, study.propose(len(batch)))
        return batch

    def _record(self, study: Study, job: JobReturn) -> bool:
        """Record the result of a run in the study. Return whether there is one."""
        _ = job.return_value  # raises what the run raised
        hydra = job.hydra_cfg.hydra  # type: ignore[union-attr]
        folder = Path(hydra.runtime.output_dir)
        if not (folder / RESULT_FILE).exists():
            return False
        row = scalebench.load(folder).iloc[0].to_dict()
        study.record(int(hydra.job.num), classify_outcome(row, self._settings.objective))
        return True
