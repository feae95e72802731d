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
from scalebench_search import objective, summary
from scalebench_search.search_space import SearchSpace, parse_space
from scalebench_search.study import OPEN, Outcome, Study, Trial, classify_outcome, import_optuna


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
        self._settings = settings = objective.read_settings(self._unchecked_settings)
        import_optuna()
        space = self._parse_space(arguments)
        first = self._check_corners(space)
        label = objective.objective_label(settings.objective, first.config.model.metric)
        study = Study(settings, space, self._more_is_better(first), label, partial(self._refuse, space))
        if self._config.dry_run:
            return self._plan(study)
        folder = Path(str(self._config.hydra.sweep.dir))
        if not self._config.resume and any(folder.glob(f"*/{RESULT_FILE}")):
            raise InputError(f"{folder} has a search already; resume=true goes on with it, or choose another folder")
        folder.mkdir(parents=True, exist_ok=True)
        OmegaConf.save(self._config, folder / "multirun.yaml")
        self._session.begin_sweep([], folder)  # locks the folder
        self._session.at_end.append(
            lambda: summary.print_summary(study, folder, self._session.arguments, self._console)
        )
        return self._run(study, folder, self._session.max_concurrent_runs(first))

    def _parse_space(self, arguments: Sequence[str]) -> SearchSpace:
        of_file = [f"{key}={value}" for key, value in (self._settings.params or {}).items()]
        parser = OverridesParser.create(config_loader=self._context.config_loader)
        space = parse_space(parser.parse_overrides([*of_file, *arguments]))
        for word in space.fixed:
            if word.startswith("baseline=") and word != "baseline=none":
                raise InputError(f"{word}: the trials of a search are compared with each other, and not with baselines")
        fixed = [word for word in space.fixed if not word.startswith("baseline=")]
        space.fixed = ["measure.repeats=1", *fixed, "baseline=none"]  # a trial is one run, unless that is refused
        return space

    def _check_corners(self, space: SearchSpace) -> RunSpec:
        """Check all corners of the space and return the first. Raise InputError or a composition error."""
        corners: list[RunSpec] = [
            self._session.resolve_run([*space.fixed, *space.overrides(values)]) for values in space.corners()
        ]
        for spec in corners:
            objective.check_objective(self._settings.objective, spec.config)
            if spec.repeats > 1:
                raise InputError(f"measure.repeats={spec.repeats}: a trial is one run; repeat the best one afterwards")
            if self._more_is_better(spec) != self._more_is_better(corners[0]):
                raise InputError("models of different metrics are not choices of one search")
        return corners[0]

    def _more_is_better(self, spec: RunSpec) -> bool:
        return objective.more_is_better(self._settings.objective, spec.config.model.metric)

    def _plan(self, study: Study) -> Sequence[JobReturn]:
        """List the trials that the search begins with, before there is any result to learn from."""
        for key, text in study.space.texts.items():
            self._console.print_line(f"{key}: {text}")
        trials = study.propose(self._settings.n_trials)
        for trial in trials[: self._settings.startup_trials]:
            self._console.print_line(summary.describe_trial(study, trial))
        return self._launch(study, trials)

    def _launch(self, study: Study, trials: Sequence[Trial]) -> Sequence[JobReturn]:
        overrides = [[*study.space.fixed, *trial.overrides] for trial in trials]
        jobs: Sequence[JobReturn] = self._launcher.launch(overrides, initial_job_idx=trials[0].number)
        return jobs

    def _run(self, study: Study, folder: Path, batch_size: int) -> Sequence[JobReturn]:
        """Run batches of `batch_size` trials side by side, so that none can learn from another of its batch."""
        done: list[JobReturn] = []
        session = self._session
        while batch := study.propose(batch_size):
            for trial in batch:
                self._console.print_line(summary.describe_trial(study, trial))
            session.expected = len(session.done) + self._settings.n_trials - batch[0].number
            jobs = self._launch(study, batch)
            recorded = [self._record(study, job) for job in jobs]
            summary.write_files(study, folder, session.arguments)
            done += jobs
            if len(recorded) < len(batch) or not all(recorded):  # no time left, cancelled, or no result to read
                break
        summary.write_files(study, folder, session.arguments)
        return done

    def _refuse(self, space: SearchSpace, trial: Trial) -> Outcome | None:
        """Return the outcome of a trial whose settings contradict each other."""
        try:
            self._session.resolve_run([*space.fixed, *trial.overrides])
        except InputError as error:
            self._console.print_line(f"trial {trial.number}: {error}")
            return Outcome("pruned", status="refused", reason=str(error))
        return None

    def _record(self, study: Study, job: JobReturn) -> bool:
        """Record the result of a run in the study. Return whether there is one."""
        _ = job.return_value  # raises what the run raised
        hydra = job.hydra_cfg.hydra  # type: ignore[union-attr]
        folder = Path(hydra.runtime.output_dir)
        if not (folder / RESULT_FILE).exists():
            return False
        outcome = classify_outcome(scalebench.load(folder).iloc[0].to_dict(), self._settings.objective)
        study.record(int(hydra.job.num), outcome)
        return outcome.state != OPEN
