"""The probes: where the time of an update goes, measured after the headline figures. Layer 2.

They spoil weights and memory peaks, so they come last and leave no loss. Every rank takes the same way through them;
what a strategy cannot tell is left out with its reason.

Training under conditions that take turns, block by block: what differs between them is what they differ in. Layer 2.

Blocks that follow each other share whatever else the machine does, so that their difference is surer than that of two
measurements one after the other.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from scalebench.core.result import ProbeRecord
from scalebench.core.run_folder import rank_trace_name
from scalebench.core.spec import RunSpec
from scalebench.measure import bandwidth, collectives
from scalebench.measure.timed_loop import Series, Stage, TimedLoop, one_iterator
from scalebench.measure.timing import Clock, how_many, timed_blocks, warm_up
from scalebench.strategies.base import PARTS, LossPart, NotMeasured, Strategy, probes_of
from scalebench.workloads.source import Source


@dataclass(frozen=True)
class Condition:
    """How the updates of a block are made."""

    name: str
    exchange: bool = True
    fresh: bool = True  # each batch from the feed; else one batch over and over


class SwitchedLoop:
    """A Loop of `rounds` times one block of each condition, every second round in reverse against slow drifts.

    The first update of a block is not timed: it may still carry what the block before left, and what a switch costs.
    """

    def __init__(
        self,
        strategy: Strategy,
        batches: Iterator[Any],
        conditions: Sequence[Condition],
        steps: int,
        rounds: int,
        clock: Clock = time.perf_counter,
        report: Callable[[], None] = lambda: None,
    ) -> None:
        """`steps` are timed in each block; `report` is called between blocks."""
        self._strategy, self._batches, self._steps = strategy, batches, steps
        self._clock, self._report = clock, report
        self._switches = any(not condition.exchange for condition in conditions)
        turns = [conditions, conditions[::-1]]
        self._plan = [condition for number in range(rounds) for condition in turns[number % 2]]
        self.seconds: dict[str, list[float]] = {condition.name: [] for condition in conditions}
        self.held: Any = None  # the batch drawn last
        self._done, self._start_s = 0, 0.0

    def __iter__(self) -> Iterator[Any]:
        self._begin(0)
        for drawn in itertools.count():  # counted by itself: trainers may draw ahead of their updates
            block = drawn // (self._steps + 1)
            if self.held is None or (block < len(self._plan) and self._plan[block].fresh):
                self.held = next(self._batches)
            yield self.held
            if self._over:
                return

    def done(self, part: LossPart | None) -> bool:
        """One update was issued. True when the loop is over."""
        block, within = divmod(self._done, self._steps + 1)
        self._done += 1
        if within == 0:
            self._strategy.synchronize()
            self._start_s = self._clock()
        elif within == self._steps:
            self._strategy.synchronize()
            self.seconds[self._plan[block].name].append(self._clock() - self._start_s)
            if not self._over:
                self._begin(block + 1)
        return self._over

    @property
    def _over(self) -> bool:
        return self._done >= len(self._plan) * (self._steps + 1)

    def _begin(self, block: int) -> None:
        self._report()
        if self._switches:  # a strategy may have no switch
            probes_of(self._strategy).set_gradient_sync(self._plan[block].exchange)
        self._strategy.broadcast(0.0)  # nobody goes on before all have come


ALONE = "one device has nobody to exchange with"
APART = "replicas that exchange nothing do not wait for each other"
ROUNDS = (4, 100)  # at least and at most: of blocks under each condition
OF_MANY_UPDATES = ("exposed", "data", "imbalance", *PARTS)
BLOCKS = (8, 64)
SINGLE_UPDATES = (8, 2000)
PROFILED_UPDATES = (2, 5)
MOST_REPEATS = 100_000


class Probing:
    """Takes one rank through all probes."""

    def __init__(
        self,
        spec: RunSpec,
        strategy: Strategy,
        step_s: float,
        message_bytes: list[int],
        report: Callable[[], None],
        clock: Clock = time.perf_counter,
    ) -> None:
        """`step_s` and `message_bytes` are those of the training, as this rank knows them; `report` is called between
        probes, for whoever waits for a sign of life."""
        self.spec, self.strategy, self.settings, self.clock = spec, strategy, spec.config.measure, clock
        self.step_s = strategy.broadcast(step_s)
        self.probes, self.messages, self.report = probes_of(strategy), message_bytes, report
        self.found = ProbeRecord()
        self.batch: Any = None

    def run(self, train: Source, folder: Path) -> None:
        """The probes of an update, all of them. `folder` is the run's, for files that are kept."""
        slow = self.step_s > self.settings.probe_s
        with closing(one_iterator(self.strategy.feed(train))) as batches:
            switches = self._try("exposed", self._switch_off)
            if slow:
                self._leave_out(next(batches))
            else:
                self._switched(batches, switches)
                self._straggling(batches, switches)
        self._isolated()
        if not slow:
            if switches:
                self.probes.set_gradient_sync(False)
            self._parts()
            if switches:
                self.probes.set_gradient_sync(True)
        self._try("copy", self._copy)
        self._try("profile", partial(self._profile, folder))

    def _leave_out(self, batch: Any) -> None:
        """What takes dozens of updates, where these are slow: nobody asked for so many minutes."""
        self.batch = batch
        why = f"an update takes {self.step_s:.3g} s, longer than measure.probe_s: raise that to have its parts measured"
        alone = self.found.reasons.get("exposed", why)
        self.found.reasons |= dict.fromkeys(OF_MANY_UPDATES, why) | {"exposed": alone, "imbalance": alone}

    def on_request(self) -> None:
        """What only the settings ask for."""
        if self.settings.collectives:
            found = collectives.measure(self.strategy, self.settings, self.clock, self.report)
            self.found.collectives, reasons = found
            self.found.reasons |= reasons
        if self.settings.bandwidth:
            self.found.bandwidth, reasons = bandwidth.measure(self.strategy, self.settings, self.clock, self.report)
            self.found.reasons |= reasons

    def _try(self, quantity: str, probe: Callable[[], object]) -> bool:
        self.report()
        try:
            probe()
        except NotMeasured as reason:
            self.found.reasons[quantity] = str(reason)
            return False
        return True

    def _switch_off(self) -> None:
        if self.spec.gpus == 1:
            raise NotMeasured(ALONE)
        if not self.spec.config.strategy.lockstep:
            raise NotMeasured(APART)
        self.probes.set_gradient_sync(False)
        self.probes.set_gradient_sync(True)

    def _switched(self, batches: Iterator[Any], switches: bool) -> None:
        conditions = [Condition("on"), Condition("off", exchange=False)] if switches else [Condition("on")]
        if self.probes.reads_in_step:
            self.found.reasons["data"] = "samples are read within the update, by other processes"
        else:
            conditions.append(Condition("fixed", exchange=not switches, fresh=False))
        steps = how_many(self.settings.block_s, self.step_s, 1, MOST_REPEATS)
        round_s = len(conditions) * (steps + 1) * self.step_s
        rounds = how_many(self.settings.probe_s, round_s, *ROUNDS)
        loop = SwitchedLoop(self.strategy, batches, conditions, steps, rounds, self.clock, self.report)
        self.strategy.train(loop)
        if switches:
            self.probes.set_gradient_sync(True)
        self.batch = loop.held
        self.found.steps = steps
        for condition in conditions:
            setattr(self.found, f"{condition.name}_s", loop.seconds[condition.name])

    def _straggling(self, batches: Iterator[Any], switches: bool) -> None:
        """Single updates without an exchange, which all ranks begin together; the first does not count."""
        updates = how_many(self.settings.probe_s / 2, self.step_s, *SINGLE_UPDATES) + 1
        if len(self.strategy.place.devices) > 1:
            self._try("imbalance", partial(self._local_steps, updates))
        elif not switches:
            self.found.reasons["imbalance"] = self.found.reasons["exposed"]
        else:

            def decide(series: Series) -> bool:
                self.report()
                self.strategy.broadcast(0.0)
                return len(series.seconds) >= updates

            stage = Stage("straggling", lambda before: 1, decide)
            self.probes.set_gradient_sync(False)
            self.strategy.train(TimedLoop(self.strategy, batches, [stage], clock=self.clock))
            self.probes.set_gradient_sync(True)
            self.found.local_step_s = [stage.series.seconds[1:]]

    def _local_steps(self, updates: int) -> None:
        found = []
        for _ in range(updates):
            self.strategy.broadcast(0.0)
            found.append(self.probes.local_step(self.batch))
        self.found.local_step_s = [list(of_device) for of_device in zip(*found[1:], strict=True)]

    def _isolated(self) -> None:
        reason = self.found.reasons.get("exposed")
        if reason in (ALONE, APART):
            self.found.reasons["isolated"] = str(reason)
        elif not self.messages:
            self.found.reasons["isolated"] = str(self.probes.not_measured("does not know the sizes of its messages"))
        else:
            self._try("isolated", self._exchange_alone)

    def _exchange_alone(self) -> None:
        exchange = partial(self.probes.run_isolated_sync, self.messages)
        self.found.isolated_sync_repeats, self.found.isolated_sync_s = self._repeated(exchange)

    def _copy(self) -> None:
        self.found.copy_repeats, self.found.copy_s = self._repeated(partial(self.probes.copy_batch, self.batch))

    def _repeated(self, action: Callable[[], None]) -> tuple[int, list[float]]:
        """(calls in each block, seconds of each block)."""
        once_s = warm_up(self.strategy, action, self.clock)
        repeats = how_many(self.settings.block_s, once_s, 1, MOST_REPEATS)
        blocks = how_many(self.settings.probe_s / 2, repeats * once_s, *BLOCKS)
        return repeats, timed_blocks(self.strategy, action, repeats, blocks, self.clock)

    def _parts(self) -> None:
        """Each part holds the ones before; they take turns."""
        parts = []
        for part in PARTS:
            action = partial(self.probes.partial_step, self.batch, part)
            if self._try(part, partial(warm_up, self.strategy, action, self.clock)):
                parts.append((part, action))
        steps = how_many(self.settings.block_s, self.step_s, 1, MOST_REPEATS)
        rounds = how_many(self.settings.probe_s, len(PARTS) * steps * self.step_s, *ROUNDS)
        self.found.part_steps = steps if parts else None
        for _ in range(rounds):
            self.report()
            for part, action in parts:
                series: list[float] = getattr(self.found, f"{part}_s")
                series += timed_blocks(self.strategy, action, steps, 1, self.clock)

    def _profile(self, folder: Path) -> None:
        updates = how_many(self.settings.probe_s, self.step_s, *PROFILED_UPDATES)
        trace = rank_trace_name(self.strategy.place.rank) if self.settings.trace else None
        self.strategy.broadcast(0.0)
        self.found.profile = self.probes.profile(updates, folder / trace if trace else None)
        self.found.trace = trace
