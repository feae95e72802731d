"""Hydra callbacks: bad input is refused before a folder is made; a sweep ends with its table. Layer 4.

Hydra turns exceptions in callbacks into warnings; SystemExit passes through, so that is how these leave.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from scalebench import task
from scalebench.compose import to_config
from scalebench.config_errors import explain
from scalebench.resolve import resolve
from scalebench.run import refuse_results
from scalebench.spec import InputError


class Check(Callback):
    """Refuses a single run that makes no sense, before Hydra makes its folder; one with repeats is none."""

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        try:
            spec = resolve(to_config(config))
            if spec.config.measure.repeats > 1:
                raise task.AsSweep
            if not config.dry_run:
                if not config.resume:
                    refuse_results(Path(str(config.hydra.run.dir)))
                task.prepare_data([spec])
        except Exception as error:
            task.state.console.error(explain(error, []))
            raise SystemExit(2) from error

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        folder = Path(str(config.hydra.sweep.dir))
        task.state.sweep_dir = None if folder.exists() else folder
        task.state.new_parents = [parent for parent in folder.parents if not parent.exists()]


class Aggregate(Callback):
    """Leaves the sweep's tables and its report in its folder."""

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        if config.dry_run:
            return
        folder = Path(str(config.hydra.sweep.dir))
        try:
            if task.state.sweep is not None:
                task.state.sweep.end()
            task.end_sweep(folder)
        except Exception as error:
            known = isinstance(error, (InputError, OSError))
            task.state.console.error(f"{folder}: no report: {error if known else repr(error)}")
            raise SystemExit(1) from error
        if task.exit_status() != 0:
            raise SystemExit(1)
