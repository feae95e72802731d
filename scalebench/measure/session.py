"""The phases of one rank: setup, warm-up, measure, evaluate, probes, close.

Probes spoil weights and memory peaks, so they come last and leave no loss. The record is on disk before evaluation and
before the first probe: whatever fails there, also the process itself, takes no measured throughput away.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
import traceback
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import TypeVar, cast

from scalebench.core.errors import InputError, describe_exception
from scalebench.core.result import RankRecord, TimelineRecord
from scalebench.core.run_folder import TIMELINE_FILE, rank_record_path, turn_path, warm_up_path, write_rank_file
from scalebench.core.spec import NO_VALIDATION_SAMPLES, RunSpec, has_stop
from scalebench.measure.clock_sync import measure_clock_offset_s
from scalebench.measure.probes import ProbeRunner
from scalebench.measure.progress import READY, ProgressFile, rss_peak_bytes
from scalebench.measure.stopping_rule import MIN_REPEAT_BLOCKS, Warmup, create_measure_phase, create_training_phase
from scalebench.measure.timed_loop import BlockSeries, LoopPhase, TimedLoop, closable_iterator
from scalebench.measure.timing import Clock
from scalebench.measure.train_to_target import DivergenceCheck, TrainingRun
from scalebench.measure.turns import Gate, SlotPhase
from scalebench.strategies.base import NotMeasured, Strategy, WrongGroup
from scalebench.workloads import datasets
from scalebench.workloads.source import Source

T = TypeVar("T")
READY_INTERVAL_S = 0.02
TIMELINE_STEPS = 20  # enough for a mean, few enough for a large network on a slow machine
NO_TIMELINE_FILE = "measure.timeline=true keeps the timeline, of more steps"


class WrongBackend(RuntimeError):
    """Another backend than the requested one carried the gradients: a failed run, whatever it measured."""


class Session:
    """Takes one strategy through its phases, and fills the rank's record on the way."""

    def __init__(
        self,
        spec: RunSpec,
        strategy: Strategy,
        record: RankRecord,
        progress: ProgressFile,
        clock: Clock = time.perf_counter,
    ) -> None:
        self.spec, self.strategy, self.record, self.progress = spec, strategy, record, progress
        self._node = spec.places[record.rank].node
        self._gate = Gate(turn_path(progress.folder, self._node), progress) if spec.cohort is not None else None
        self._clock = clock  # for measurements; phases are marked by the time of day

    def run(self) -> None:
        """Run all phases but close. The record is filled as far as the session got, also where it raises."""
        settings = self.spec.repeat_settings
        self._enter("setup")
        replica, replicas = self.strategy.shard()
        train: Source | None = None  # a program of the user's has samples of its own
        validation: Source | None = None
        if self.strategy.has_program:
            self.strategy.sign_of_life = self.progress.keep_alive
        elif self.spec.config.dataset.loader is None:  # the strategy draws from the user's by itself
            train, validation = datasets.open_sources(self.spec, replica, replicas, on_copied=self._report_setup)
            self.record.train_samples, self.record.steps_per_epoch = train.samples, train.steps_per_epoch
        self.strategy.setup()
        self._check_group()
        self.record.left_out = self.strategy.left_out()
        self.record.params, self.record.flops_per_sample = self.strategy.num_params(), self.strategy.flops_per_sample()
        self.record.model_remarks = self.strategy.model_remarks()
        self.record.learning_rate = self.strategy.learning_rate()
        self.record.clock_offset_s = measure_clock_offset_s(self.spec, self.record.rank, self.strategy.broadcast)
        has_end = train is not None and has_stop(self.spec.config.train.stop)
        training = self._create_training(train, validation) if has_end and train is not None else None
        observer = training or DivergenceCheck(self.spec.config.model)
        if self.spec.held:
            self._await_warm_up()
        self._measure(train, training, observer)
        if self.strategy.has_program:  # now it has shown what it has
            self.record.params, self.record.model_remarks = self.strategy.num_params(), self.strategy.model_remarks()
            self.record.script, self.record.versions = self.strategy.script_record(), self.strategy.versions()
        self.record.threads = self.strategy.threads_used() or self.record.threads
        self.record.peak_memory_bytes = self.strategy.peak_memory_bytes()
        self.record.reserved_memory_bytes = self.strategy.reserved_memory_bytes()
        self.record.allocator_retries = self.strategy.allocator_retries()
        self.record.state_bytes = self._observe("state_bytes", self.strategy.state_bytes) or []
        if training is not None:
            self.record.peak_memory_bytes = training.peak_memory_bytes or self.record.peak_memory_bytes
            self.record.metrics = training.curve[-1].metrics
        elif settings.evaluate and validation is not None:
            save_headline(self.record, self.progress)  # evaluation may need more memory than training
            self._enter("evaluate")
            metrics = self.strategy.evaluate(validation)
            observer.check_metrics(metrics)
            self.record.metrics = metrics
        save_headline(self.record, self.progress)
        self._enter("probes")
        self._run_probes(train)
        self._enter("close")

    def _await_warm_up(self) -> None:
        """Wait until the first step, in which libraries load and code is compiled, disturbs no other run."""
        self.progress.enter_phase(READY)
        while not warm_up_path(self.progress.folder, self._node).exists():
            time.sleep(READY_INTERVAL_S)
            self._report_setup()

    def _check_group(self) -> None:
        """Raise WrongGroup on each rank that rank 0 does not reach, as where each process is in a group of its own."""
        rank, root = self.record.rank, int(self.strategy.broadcast(float(self.record.rank)))
        if self.spec.processes > 1 and root != 0:
            name = self.spec.config.strategy.name
            raise WrongGroup(f"{name}: the broadcast of rank 0 reached rank {rank} as that of rank {root}")

    def _create_training(self, train: Source, validation: Source | None) -> TrainingRun:
        if self.spec.config.train.stop.target is not None and validation is None:
            raise InputError(NO_VALIDATION_SAMPLES)
        subset = datasets.open_training_subset(self.spec, *self.strategy.shard()) if validation is not None else None
        return TrainingRun(self.spec, self.strategy, train, (validation, subset), self._report_training)

    def _measure(self, train: Source | None, training: TrainingRun | None, observer: DivergenceCheck) -> None:
        settings = self.spec.repeat_settings
        synchronous = not self.spec.config.strategy.independent
        # A warm-up that is not over distorts every repeat in the same direction. More repeats do not average that out,
        # so the end of the warm-up is found with the requested precision, and not with that of one repeat.
        warmup = Warmup(self.strategy, self.spec.config.measure, synchronous, self._report_warmup, self._clock)
        measure = create_measure_phase(self.strategy, settings, synchronous, self._report, self._clock)
        if self._gate is not None:
            slots = SlotPhase(self.strategy, settings, synchronous, self._gate, self._report, self._clock)
            measure = slots.phase
        if training is not None:  # it ends at its stop, and not when throughput is precise enough
            measure = create_training_phase(
                self.strategy, settings, training.steps_between_points, training.stop.seconds
            )
        if self.strategy.has_program:  # the first block may begin within a step
            measure.discarded_blocks = 1
        phases = [warmup.phase, measure]
        try:
            with closing(closable_iterator(self.strategy.feed(cast("Source", train)))) as batches:
                loop = TimedLoop(self.strategy, batches, phases, self._on_phase, clock=self._clock, observer=observer)
                self.strategy.train(loop)
        finally:  # the curve of a training that failed shows how that came about
            if training is not None:
                self.record.curve, self.record.stopped_by = training.curve, training.stopped_by
                self.record.first_step_s = training.first_step_s
        has_enough = self.strategy.has_program and len(measure.series.seconds) >= MIN_REPEAT_BLOCKS
        if not loop.over and not has_enough:
            raise self.strategy.explain_early_end(observer.steps)
        self.record.steady_after_steps = warmup.steady_after_steps
        self.record.warmup_block_steps = warmup.phase.series.steps
        self.record.warmup_block_s = warmup.phase.series.seconds
        self.record.warmup_losses = warmup.phase.series.losses
        self.record.last_loss_sum = sum(loss_sum for loss_sum, _ in observer.last_steps)
        self.record.last_loss_samples = sum(samples for _, samples in observer.last_steps)
        self.record.block_steps = measure.series.steps
        self.record.block_s = measure.series.seconds
        self.record.block_samples = measure.series.samples
        self.record.block_losses = measure.series.losses
        self.record.block_started_at_s = measure.series.started_at_s
        self.record.block_rounds = measure.series.rounds
        if self.strategy.has_program:
            self.record.block_pauses = measure.series.pauses
        if train is None:
            self.record.block_data_s = measure.series.data_s

    def _on_phase(self, phase: LoopPhase) -> None:
        self._enter(phase.name, phase.limit_s)
        self.strategy.begin_phase(phase.name)

    def _run_probes(self, train: Source | None) -> None:
        """Measure where the time of a step goes, and observe how the steps really ran.

        Everything that is timed comes before the profiler: PyTorch's leaves hooks (CUPTI) behind that make each launch
        of a kernel slower. Backend and settings are read from the session of the profile where there is one.
        """
        record, settings = self.record, self.spec.repeat_settings
        record.message_bytes = self._observe("message_bytes", self.strategy.message_sizes) or []
        runner = None
        if settings.probes or settings.collectives or settings.bandwidth:
            runner = self._create_probe_runner()
            record.probes = runner.record
            if settings.probes:
                runner.run_step_probes(cast("Source", train))
            runner.run_requested_probes()
        record.stages = self._observe("stages", self.strategy.stages) or []
        record.versions = self._observe("versions", self.strategy.versions) or {}
        record.timeline = self._observe_phases(settings.timeline)
        if runner is not None and settings.probes:
            runner.run_profile(self.progress.folder)
        record.backend_used = self._observe("backend_used", self.strategy.backend_used)
        self._check_backend()
        record.settings_used = self._observe("settings_used", self.strategy.settings_used) or {}

    def _observe(self, quantity: str, read: Callable[[], T]) -> T | None:
        """Return what `read` returns; None where it raises, with the error in the record."""
        try:
            return read()
        except Exception as error:
            traceback.print_exc()
            self.record.probe_failures[quantity] = describe_exception(error)
            return None

    def _create_probe_runner(self) -> ProbeRunner:
        record = self.record
        blocks, steps = record.block_s, record.block_steps or 1
        if not blocks:  # a training that was over within warm-up; its first step compiles
            blocks, steps = record.warmup_block_s[1:] or record.warmup_block_s, 1
        step_s = sum(blocks) / (len(blocks) * steps)
        report = partial(self.progress.enter_phase, "probes")
        return ProbeRunner(self.spec, self.strategy, step_s, record, report, self._clock)

    def _observe_phases(self, keep: bool) -> TimelineRecord | None:
        """Return the phases of gradient synchronization; with `keep` those of more steps, with their timeline. Without
        it, a strategy without phases has no record instead of a reason."""
        try:
            if keep:
                phases_s = self.strategy.record_timeline(self.progress.folder / TIMELINE_FILE, TIMELINE_STEPS)
                return TimelineRecord(TIMELINE_FILE, None, TIMELINE_STEPS, **phases_s)
            steps, phases_s = self.strategy.sync_phases()
            return TimelineRecord(None, NO_TIMELINE_FILE, steps, **phases_s)
        except NotMeasured as reason:
            return TimelineRecord(reason=str(reason)) if keep else None
        except Exception as error:
            traceback.print_exc()
            failure = self.record.probe_failures["timeline"] = describe_exception(error)
            return TimelineRecord(reason=failure)

    def _check_backend(self) -> None:
        requested, used = self.spec.config.strategy.backend, self.record.backend_used
        # One device has no other to synchronize with, and a program that has ended was not observed.
        if used is None and (self.spec.gpus == 1 or self.strategy.has_ended):
            return
        if "backend_used" in self.record.probe_failures:  # nobody knows: a null, and a flag on the row
            return
        lacks_any = requested == "auto" and used is None
        if lacks_any and self.strategy.has_program:
            name = self.spec.config.model.name
            raise WrongBackend(
                f"the steps of {name} exchange nothing: is its model wrapped in DistributedDataParallel?"
            )
        if lacks_any or requested not in (None, "auto", used):
            wanted = "any backend" if lacks_any else requested
            raise WrongBackend(
                f"{self.spec.config.strategy.name} requested {wanted}, but the gradients were carried by "
                f"{used or 'nothing'}"
            )

    def _enter(self, phase: str, limit_s: float | None = None) -> None:
        self.record.marks_s.setdefault(phase, time.time())  # setup may have begun with the framework's import
        self.progress.enter_phase(phase, limit_s)

    def _report_setup(self) -> None:
        """Give a sign of life in setup, where a rank that reports nothing for long would be taken for a hung one."""
        self.progress.update(0, 0, 0.0)

    def _report_training(self, training: TrainingRun) -> None:
        epoch, metric = training.steps / training.train.steps_per_epoch, self.spec.config.model.metric
        value = training.curve[-1].metrics.get(metric) if training.curve else None
        text = None if value is None else f"{metric} {value:.3g}"
        step_s = training.train_s / training.steps if training.steps else None
        self.progress.update(training.steps, training.samples, training.train_s, epoch, text, step_s)

    def _report_warmup(self, series: BlockSeries) -> None:
        """Report without the time of the first step, in which libraries load, cuDNN tunes and code is compiled."""
        if len(series.seconds) > 1:
            return self._report(series)
        self.progress.update(series.steps, sum(series.samples), sum(series.seconds))

    def _report(self, series: BlockSeries) -> None:
        steps, step_s = len(series.seconds) * series.steps, series.seconds[-1] / series.steps
        self.progress.update(steps, sum(series.samples), sum(series.seconds), step_s=step_s)


def save_headline(record: RankRecord, progress: ProgressFile) -> None:
    """Write the record as far as it is, with status ok. The one at the end replaces it, also after a failure."""
    headline = dataclasses.replace(record, marks_s=dict(record.marks_s))
    complete_record(headline, progress)
    with contextlib.suppress(OSError):
        write_rank_file(rank_record_path(progress.folder, record.rank), headline)


def complete_record(record: RankRecord, progress: ProgressFile) -> None:
    """Add the facts that are known only at the end of a process."""
    record.marks_s["end"] = time.time()
    record.rss_peak_bytes = rss_peak_bytes()
    record.rss_anon_peak_bytes = progress.rss_anon_peak_bytes
    times = os.times()
    record.cpu_s = times.user + times.system
