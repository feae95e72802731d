"""The probes: where the time of a step goes, measured after the headline figures.

They spoil weights and memory peaks, so they come last and leave no loss. Every rank goes through them in the same
order; what a strategy cannot measure is left out with its reason, and so is a probe that raises.

Steps with and without gradient synchronization are trained in interleaved blocks (A/B): blocks that follow each other
share whatever else the machine does, so that their difference is more certain than that of two measurements one after
the other.
"""

from __future__ import annotations

import itertools
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from scalebench.core.errors import describe_exception
from scalebench.core.probe_record import ProbeRecord
from scalebench.core.result import RankRecord
from scalebench.core.run_folder import rank_trace_name
from scalebench.core.spec import MeasureSpec, RunSpec
from scalebench.measure.collectives import ONE_DEVICE, measure_bandwidth, measure_collectives
from scalebench.measure.timed_loop import BlockSeries, LoopPhase, TimedLoop, closable_iterator
from scalebench.measure.timing import (
    MAX_REPEATS,
    Clock,
    choose_block_s,
    repeats_within,
    time_blocks,
    time_warm_call,
)
from scalebench.strategies.base import PARTS, NotMeasured, Strategy
from scalebench.workloads.source import Source

NO_SYNC = "replicas that exchange nothing do not wait for each other"
MANY_STEP_PROBES = ("exposed", "data", "imbalance", *PARTS)  # each takes dozens of steps
MIN_TRAINED_ROUNDS = 3  # without a pause of a user's program
# (minimum, maximum) of
ROUND_BOUNDS = (4, 100)  # blocks of each variant
REPEATED_BLOCK_BOUNDS = (8, 64)  # blocks of an action by itself
SINGLE_STEP_BOUNDS = (8, 2000)  # steps for the imbalance
PROFILED_STEP_BOUNDS = (2, 5)


@dataclass(frozen=True)
class Variant:
    """A way to train the steps of a block, named as the field of ProbeRecord that its seconds go to."""

    name: str
    sync: bool = True
    new_batches: bool = True  # each batch from the feed; else its first one, which is full, over and over


class InterleavedBlocks:
    """`rounds` times one block of each variant, as phases of a loop; every second round is reversed, against drifts.

    Before each block is one of a single step, which does not count: it may still be affected by the block before, and
    by the switch. Ranks begin them together.
    """

    def __init__(
        self,
        strategy: Strategy,
        batches: Iterator[Any],
        variants: Sequence[Variant],
        steps: int,
        rounds: int,
        clock: Clock = time.perf_counter,
        report: Callable[[], None] = lambda: None,
    ) -> None:
        """`steps` are timed in each block; `report` is called between blocks."""
        self._strategy, self._variants, self._report = strategy, variants, report
        self._switches_sync = any(not variant.sync for variant in variants)  # not every strategy can
        self._blocks = [each for number in range(rounds) for each in (variants[::-1] if number % 2 else variants)]
        self._phases = [LoopPhase(variant.name, lambda before: steps, lambda series: True) for variant in self._blocks]
        if strategy.has_program:
            self._phases[-1].decide = self._meet
        begins = [LoopPhase("switch", partial(self._begin, each), lambda series: True) for each in self._blocks]
        phases = [*itertools.chain(*zip(begins, self._phases, strict=True))]
        self.loop = TimedLoop(strategy, self._draw(batches, steps), phases, clock=clock)
        self.first_batch: Any = None
        self._has_pause: list[bool] = []  # of each block that is over: whether rank 0 saw evaluation or saving

    def _draw(self, batches: Iterator[Any], steps: int) -> Iterator[Any]:
        self.first_batch = next(batches)
        yield self.first_batch
        for drawn in itertools.count(1):  # a count of its own: trainers may draw batches ahead of their steps
            block = drawn // (steps + 1)
            is_new = block < len(self._blocks) and self._blocks[block].new_batches
            yield next(batches) if is_new else self.first_batch

    def _begin(self, variant: Variant, before: BlockSeries | None) -> int:
        self._report()
        if self._switches_sync:
            self._strategy.set_gradient_sync(variant.sync)
        self._meet(before)
        return 1

    def _meet(self, before: BlockSeries | None) -> bool:
        """Wait for all ranks, and note whether rank 0 saw a pause in the block before."""
        has_pause = self._strategy.broadcast(float(before is not None and any(before.pauses))) > 0
        self._has_pause += [] if before is None else [has_pause]
        return True

    def seconds(self, variant: Variant) -> list[float]:
        """Return those of each block of a variant, without rounds that have a pause unless hardly any are left."""
        count = len(self._variants)
        paused = {number // count for number, has_pause in enumerate(self._has_pause) if has_pause}
        blocks = [(number // count, phase.series.seconds[0]) for number, phase in enumerate(self._phases)
                  if self._blocks[number] is variant and phase.series.seconds]  # fmt: skip
        trained = [seconds for number, seconds in blocks if number not in paused]
        return trained if len(trained) >= MIN_TRAINED_ROUNDS else [seconds for _, seconds in blocks]


class ProbeRunner:
    """Takes one rank through all probes, and fills their record."""

    def __init__(
        self,
        spec: RunSpec,
        strategy: Strategy,
        step_s: float,
        rank: RankRecord,
        report: Callable[[], None],
        clock: Clock = time.perf_counter,
    ) -> None:
        """`step_s` is that of the training, as this rank measured it; `rank` has the sizes of its messages, and gets
        the errors of probes; `report` is called between probes, as a sign of life."""
        self.spec, self.strategy, self.settings, self.clock = spec, strategy, spec.config.measure, clock
        self.step_s = strategy.broadcast(step_s)
        self.message_bytes, self.report = rank.message_bytes, report
        self._failures = rank.probe_failures
        self.record = ProbeRecord()
        self.batch: Any = None

    def run_step_probes(self, train: Source) -> None:
        """Run all probes that time a step or a part of one. Where steps are slow, those of dozens of steps are left
        out: they would take many minutes."""
        reasons, is_slow = self.record.reasons, self.step_s > self.settings.probe_s
        with closing(closable_iterator(self.strategy.feed(train))) as batches:
            can_switch = self._try("exposed", self._try_sync_switch)
            if is_slow:
                self.batch = next(batches)
                slow = f"a step takes {self.step_s:.3g} s, longer than measure.probe_s: "
                slow += "raise that to have its parts measured"
                without_sync = reasons.get("exposed", slow)
                reasons |= dict.fromkeys(MANY_STEP_PROBES, slow)
                reasons |= {"exposed": without_sync, "imbalance": without_sync}
            else:
                if not self._try("data", partial(self._probe_variants, batches, can_switch)):
                    reasons.setdefault("exposed", reasons["data"])
                self._try("imbalance", partial(self._probe_imbalance, batches, can_switch))
        if reasons.get("exposed") in (ONE_DEVICE, NO_SYNC):
            reasons["isolated"] = reasons["exposed"]
        elif not self.message_bytes:
            reasons["isolated"] = str(self.strategy.not_measured("does not know the sizes of its messages"))
        else:
            sync = partial(self.strategy.run_isolated_sync, self.message_bytes)
            self._try("isolated", partial(self._time_repeated, "isolated_sync", sync))
        if not is_slow:
            with self._sync_off(can_switch):
                if not self._try("forward", self._probe_parts):
                    # Series that broke off are not equally long on all ranks.
                    reasons |= dict.fromkeys(PARTS, reasons["forward"])
                    self.record.forward_s, self.record.backward_s, self.record.optimizer_s = [], [], []
        self._try("copy", partial(self._time_repeated, "copy", partial(self.strategy.copy_batch, self.batch)))

    def run_profile(self, folder: Path) -> None:
        """Profile some steps. `folder` is the run's, for files that are kept."""
        self._try("profile", partial(self._profile, folder))

    def run_requested_probes(self) -> None:
        """Run the probes that are off unless the settings request them."""
        share = replace(self.settings, probe_s=self.settings.probe_s / self.spec.repeats)  # measured in every repeat
        if self.spec.repeat_settings.collectives:
            self._try("collectives", partial(self._measure_requested, "collectives", measure_collectives, share))
        if self.spec.repeat_settings.bandwidth:
            self._try("bandwidth", partial(self._measure_requested, "bandwidth", measure_bandwidth, self.settings))

    def _measure_requested(self, name: str, measure: Callable[..., Any], settings: MeasureSpec) -> None:
        measured, reasons = measure(self.strategy, settings, self.clock, self.report)
        setattr(self.record, name, measured)
        self.record.reasons |= reasons

    @contextmanager
    def _sync_off(self, can_switch: bool) -> Iterator[None]:
        """Switch gradient synchronization off within the context, if the strategy can."""
        if can_switch:
            self.strategy.set_gradient_sync(False)
        try:
            yield
        finally:
            if can_switch:
                self.strategy.set_gradient_sync(True)

    def _try(self, quantity: str, probe: Callable[[], object]) -> bool:
        """Return whether the probe succeeded; else its reason is in the record."""
        self.report()
        try:
            probe()
        except NotMeasured as reason:
            self.record.reasons[quantity] = str(reason)
            return False
        except Exception as error:
            traceback.print_exc()
            self.record.reasons[quantity] = self._failures[quantity] = describe_exception(error)
            return False
        return True

    def _try_sync_switch(self) -> None:
        if self.spec.gpus == 1:
            raise NotMeasured(ONE_DEVICE)
        if self.spec.config.strategy.independent:
            raise NotMeasured(NO_SYNC)
        with self._sync_off(True):
            pass

    def _probe_variants(self, batches: Iterator[Any], can_switch: bool) -> None:
        variants = [Variant("sync_on")]
        if can_switch:
            variants.append(Variant("sync_off", sync=False))
        if (reason := self.strategy.why_new_batches()) is not None:
            self.record.reasons["data"] = reason
        else:
            variants.append(Variant("fixed_batch", sync=not can_switch, new_batches=False))
        steps = self._block_repeats(self.step_s)
        round_s = len(variants) * (steps + 1) * self.step_s
        rounds = repeats_within(self.settings.probe_s, round_s, *ROUND_BOUNDS)
        blocks = InterleavedBlocks(self.strategy, batches, variants, steps, rounds, self.clock, self.report)
        try:
            self.strategy.train(blocks.loop)
        finally:
            self.batch = blocks.first_batch
            if can_switch:
                self.strategy.set_gradient_sync(True)
        self.record.steps = steps
        for variant in variants:
            setattr(self.record, f"{variant.name}_s", blocks.seconds(variant))

    def _probe_imbalance(self, batches: Iterator[Any], can_switch: bool) -> None:
        """Time single steps without synchronization, which all ranks begin together; the first does not count."""
        steps = repeats_within(self.settings.probe_s / 2, self.step_s, *SINGLE_STEP_BOUNDS) + 1
        if len(self.strategy.place.devices) > 1:
            with self._sync_off(can_switch):
                self._try("imbalance", partial(self._time_local_steps, steps))
        elif not can_switch:
            self.record.reasons["imbalance"] = self.record.reasons["exposed"]
        else:

            def decide(series: BlockSeries) -> bool:
                self.report()
                self.strategy.broadcast(0.0)
                return len(series.seconds) >= steps

            phase = LoopPhase("imbalance", lambda before: 1, decide)
            with self._sync_off(True):
                self.strategy.train(TimedLoop(self.strategy, batches, [phase], clock=self.clock))
            self.record.local_step_s = [phase.series.seconds[1:]]

    def _time_local_steps(self, steps: int) -> None:
        seconds = []
        for _ in range(steps):
            self.strategy.broadcast(0.0)
            seconds.append(self.strategy.local_step(self.batch))
        self.record.local_step_s = [list(of_device) for of_device in zip(*seconds[1:], strict=True)]

    def _time_repeated(self, name: str, action: Callable[[], None]) -> None:
        """Record the calls in each block of an action by itself, and the seconds of each block."""
        once_s = time_warm_call(self.strategy, action, self.clock)
        repeats = self._block_repeats(once_s)
        blocks = repeats_within(self.settings.probe_s / 2, repeats * once_s, *REPEATED_BLOCK_BOUNDS)
        seconds = time_blocks(self.strategy, action, repeats, blocks, self.clock)
        setattr(self.record, f"{name}_repeats", repeats)
        setattr(self.record, f"{name}_s", seconds)

    def _block_repeats(self, once_s: float) -> int:
        """Return the repeats in a block of an action that takes `once_s`. On a GPU, whose blocks are long, the fewest
        blocks of all probes would otherwise take several times as long as measure.probe_s."""
        block_s = choose_block_s(self.spec.device, once_s, self.settings.block_s)
        block_s = min(block_s, max(self.settings.block_s, self.settings.probe_s / REPEATED_BLOCK_BOUNDS[0]))
        return repeats_within(block_s, once_s, 1, MAX_REPEATS)

    def _probe_parts(self) -> None:
        """Time the parts of a step, in interleaved blocks; each part includes the ones before it."""
        parts = []
        for part in PARTS:
            action = partial(self.strategy.partial_step, self.batch, part)
            if self._try(part, partial(time_warm_call, self.strategy, action, self.clock)):
                parts.append((part, action))
        steps = self._block_repeats(self.step_s)
        rounds = repeats_within(self.settings.probe_s, len(PARTS) * steps * self.step_s, *ROUND_BOUNDS)
        self.record.part_steps = steps if parts else None
        for _ in range(rounds):
            self.report()
            for part, action in parts:
                series: list[float] = getattr(self.record, f"{part}_s")
                series += time_blocks(self.strategy, action, steps, 1, self.clock)

    def _profile(self, folder: Path) -> None:
        steps = repeats_within(self.settings.probe_s, self.step_s, *PROFILED_STEP_BOUNDS)
        trace = rank_trace_name(self.strategy.place.rank) if self.settings.trace else None
        self.strategy.broadcast(0.0)
        self.record.profile = self.strategy.profile(steps, folder / trace if trace else None)
        self.record.trace = trace
