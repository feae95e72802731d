"""The phases of one rank: setup, warm-up, measure, evaluate, probes, close. Layer 2.

Probes spoil weights and memory peaks, so they come last and leave no loss.
"""

from __future__ import annotations

import os
import time
from contextlib import closing
from functools import partial

from scalebench.core.errors import InputError
from scalebench.core.result import RankRecord, Timeline
from scalebench.core.run_folder import TIMELINE_FILE
from scalebench.core.spec import NOTHING_TO_VALIDATE, RunSpec, goes_to_stop
from scalebench.measure import clock_sync, stopping_rule, train_to_target
from scalebench.measure.probes import Probing
from scalebench.measure.progress import ProgressFile, rss_peak_bytes
from scalebench.measure.timed_loop import Series, Stage, TimedLoop, one_iterator
from scalebench.measure.timing import Clock
from scalebench.strategies.base import NotMeasured, Strategy, probes_of
from scalebench.workloads import datasets
from scalebench.workloads.source import Source

TIMELINE_UPDATES = 20  # enough for a mean, few enough for a large network on a slow machine


class WrongBackend(RuntimeError):
    """What was requested is not what ran: a failed run, whatever it measured."""


class Session:
    """Takes one strategy through its phases and fills the rank's record as it goes."""

    def __init__(
        self,
        spec: RunSpec,
        strategy: Strategy,
        record: RankRecord,
        progress: ProgressFile,
        clock: Clock = time.perf_counter,
    ) -> None:
        self.spec, self.strategy, self.record, self.progress = spec, strategy, record, progress
        self.probes = probes_of(strategy)
        self._clock = clock  # of what is measured; phases go by the time of day

    def run(self) -> None:
        """All phases but close. Whatever goes wrong is raised, with the record filled up to there."""
        settings = self.spec.config.measure
        self._enter("setup")
        replica, replicas = self.strategy.shard()
        train, validation = datasets.open_sources(self.spec, replica, replicas, on_copied=self._still_alive)
        self.record.train_samples, self.record.steps_per_epoch = train.samples, train.steps_per_epoch
        self.strategy.setup()
        self.record.params = self.probes.num_params()
        self.record.clock_offset_s = clock_sync.measure(self.spec, self.record.rank, self.strategy.broadcast)
        training = self._training(train, validation) if goes_to_stop(self.spec.config.train.stop) else None
        self._measure(train, training)
        self.record.peak_memory_bytes = self.strategy.peak_memory_bytes()
        self.record.state_bytes = self.probes.state_bytes()
        if training is not None:
            self.record.peak_memory_bytes = training.peak_memory_bytes or self.record.peak_memory_bytes
            self.record.metrics = training.curve[-1].metrics
        elif settings.evaluate and validation is not None:
            self._enter("evaluate")
            self.record.metrics = self.strategy.evaluate(validation)
        self._enter("probes")
        self._look_back()
        self._probe(train)
        self._enter("close")

    def _training(self, train: Source, validation: Source | None) -> train_to_target.Training:
        """One that goes to a stop, with what its points are measured on."""
        if self.spec.config.train.stop.target is not None and validation is None:
            raise InputError(NOTHING_TO_VALIDATE)
        alike = datasets.open_training_subset(self.spec, *self.strategy.shard()) if validation is not None else None
        return train_to_target.Training(self.spec, self.strategy, train, (validation, alike), self._report_training)

    def _measure(self, train: Source, training: train_to_target.Training | None) -> None:
        settings = self.spec.config.measure
        lockstep = self.spec.config.strategy.lockstep
        warmup = stopping_rule.Warmup(self.strategy, settings, lockstep, self._report, self._clock)
        measuring = stopping_rule.measuring(self.strategy, settings, lockstep, self._report, self._clock)
        if training is not None:  # how long is not for the figures to say
            measuring = stopping_rule.until_over(self.strategy, settings, training.between, training.stop.seconds)
        stages, way = [warmup.stage, measuring], training or train_to_target.Finite()
        try:
            with closing(one_iterator(self.strategy.feed(train))) as batches:
                self.strategy.train(
                    TimedLoop(self.strategy, batches, stages, self._on_stage, clock=self._clock, course=way)
                )
        finally:  # the curve of a training that failed tells how it came to that
            if training is not None:
                self.record.curve, self.record.stopped_by = training.curve, training.stopped_by
                self.record.first_step_s = training.first_step_s
        self.record.steady_after_steps = warmup.found_steps
        self.record.warmup_block_steps = warmup.stage.series.steps
        self.record.warmup_block_s = warmup.stage.series.seconds
        self.record.warmup_losses = warmup.stage.series.losses
        self.record.block_steps = measuring.series.steps
        self.record.block_s = measuring.series.seconds
        self.record.block_samples = measuring.series.samples
        self.record.block_losses = measuring.series.losses

    def _on_stage(self, stage: Stage) -> None:
        self._enter(stage.name, stage.limit_s)

    def _look_back(self) -> None:
        """What the training really did."""
        self.record.message_bytes = self.probes.message_sizes()
        self.record.backend_used = self.strategy.backend_used()
        self.record.settings_used = self.probes.settings_used()
        self.record.stages = self.probes.stages()
        if self.spec.config.measure.timeline:
            self.record.timeline = self._timeline()
        self.record.versions = self.probes.versions()
        self._check_backend()

    def _probe(self, train: Source) -> None:
        """Where the time of an update goes; only once it is known that the updates were what they should be."""
        record, settings = self.record, self.spec.config.measure
        if not (settings.probes or settings.collectives or settings.bandwidth):
            return
        blocks, steps = record.block_s, record.block_steps or 1
        if not blocks:  # a training that was over within warm-up; its first update compiles
            blocks, steps = record.warmup_block_s[1:] or record.warmup_block_s, 1
        step_s = sum(blocks) / (len(blocks) * steps)
        report = partial(self.progress.phase, "probes")
        probing = Probing(self.spec, self.strategy, step_s, record.message_bytes, report, self._clock)
        if settings.probes:
            probing.run(train, self.progress.folder)
        probing.on_request()
        record.probes = probing.found

    def _timeline(self) -> Timeline:
        path = self.progress.folder / TIMELINE_FILE
        try:
            phases_s = self.probes.record_timeline(path, TIMELINE_UPDATES)
        except NotMeasured as reason:
            return Timeline(reason=str(reason))
        return Timeline(TIMELINE_FILE, None, TIMELINE_UPDATES, **phases_s)

    def _check_backend(self) -> None:
        requested, used = self.spec.config.strategy.backend, self.record.backend_used
        if used is None and self.spec.gpus == 1:  # some exchange nothing where there is nobody to exchange with
            return
        lost = requested == "auto" and used is None
        if lost or requested not in (None, "auto", used):
            asked = "some exchange" if lost else requested
            raise WrongBackend(
                f"{self.spec.config.strategy.name} asked for {asked}, but the gradients were carried by "
                f"{used or 'nothing'}"
            )

    def _enter(self, phase: str, limit_s: float | None = None) -> None:
        self.record.marks_s.setdefault(phase, time.time())  # setup may have begun with the framework's import
        self.progress.phase(phase, limit_s)

    def _still_alive(self) -> None:
        """In setup, for whoever takes a rank without news for one that hangs."""
        self.progress.update(0, 0, 0.0)

    def _report_training(self, training: train_to_target.Training) -> None:
        epoch, metric = training.updates / training.train.steps_per_epoch, self.spec.config.model.metric
        found = training.curve[-1].metrics.get(metric) if training.curve else None
        said = None if found is None else f"{metric} {found:.3g}"
        self.progress.update(training.updates, training.samples, training.train_s, epoch, said)

    def _report(self, series: Series) -> None:
        self.progress.update(len(series.seconds) * series.steps, sum(series.samples), sum(series.seconds))


def finish(record: RankRecord, progress: ProgressFile) -> None:
    """What is known only at the end of a process."""
    record.marks_s["end"] = time.time()
    record.rss_peak_bytes = rss_peak_bytes()
    record.rss_anon_peak_bytes = progress.rss_anon_peak_bytes
    times = os.times()
    record.cpu_s = times.user + times.system
