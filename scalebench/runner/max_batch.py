"""measure.search=max_batch: the largest batch per device that fits into memory, by trying. Layer 3.

Out of memory is an answer here. Each try is a launch of its own in try_<batch>/ of the run's folder, since what a
framework still holds of the try before would spoil the next.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scalebench.core.result import BatchTried, MaxBatch, RankRecord
from scalebench.core.run_folder import MPIRUN_LOG, SPEC_FILE, SRUN_LOG, TRY_SPEC_FILE, rank_log_name, try_folder
from scalebench.core.spec import Config, RunSpec, StopSpec, write_spec
from scalebench.runner import memory_limit
from scalebench.runner.collect import RunOutcome, read_ranks
from scalebench.runner.launchers.supervise import OnProgress
from scalebench.workloads import datasets
from scalebench.workloads.datasets import cache

SEARCH = "max_batch"
FINENESS = 16  # the answer is within this part of itself, and exact below this
# A try measures nothing but throughput.
OFF: dict[str, Any] = dict.fromkeys("evaluate probes monitor trace collectives bandwidth timeline".split(), False)
MAX_REASON_LENGTH = 200

Attempt = Callable[[RunSpec, Path, OnProgress], RunOutcome]


class _SearchEnded(Exception):
    """The search cannot go on."""

    def __init__(self, outcome: RunOutcome) -> None:
        super().__init__(outcome.reason)
        self.outcome = outcome


def unsupported_reason(spec: RunSpec) -> str | None:
    """Return why there can be no search, or no limit of memory, in this run; None where there can be."""
    config, limit = spec.config, spec.config.measure.memory_limit_bytes
    if limit is not None and spec.device != "cpu":
        return "measure.memory_limit_bytes is for processes on the CPU, and a GPU has its own memory; leave it out"
    searches = config.measure.search == SEARCH
    if searches and config.scaling == "strong":
        return "measure.search=max_batch is for a batch per device, and scaling=strong keeps the global one"
    if searches and config.strategy.launcher == "by_hand":
        return (
            "measure.search=max_batch starts its ranks many times over: strategy.launcher=by_hand would ask each time"
        )
    if searches and limit is None and config.hardware.hosts:
        return "what memory other hosts have is not known here; say measure.memory_limit_bytes, for each process"
    return memory_limit.unsupported_reason() if spec.device == "cpu" and (searches or limit is not None) else None


class Search:
    """The tries of one run, with their results so far, also where the search is cut short.

    `spec` is the run as it is recorded: as it was requested, with the batch of the try in `where` whose ranks it has.
    """

    def __init__(self, spec: RunSpec, folder: Path) -> None:
        self.spec, self.where = spec, folder
        self._requested, self._folder = spec, folder
        self._on_node = max(Counter(place.node for place in spec.places).values())
        limit = spec.config.measure.memory_limit_bytes
        limit = None if spec.device != "cpu" else limit or memory_limit.share_bytes(self._on_node)
        self.found = MaxBatch(None, limit, "memory", [])
        self._outcomes: dict[int, RunOutcome] = {}
        self._deadline_s = time.monotonic() + spec.config.measure.timeout_s

    def run(self, attempt: Attempt, on_progress: OnProgress) -> RunOutcome:
        """Try until the largest batch is known. Not ok where not even one sample fits, and where a try went wrong in
        another way: then its status is that of the run."""
        started_s = time.monotonic()
        train, most = self._requested.config.train, max_samples(self._requested.config, self._requested.gpus)
        try:
            batch = largest_batch(
                train.batch_per_device, most, train.accumulate, lambda b: self._fits(b, attempt, on_progress)
            )
            outcome = self._answer(batch, most, train.accumulate)
        except _SearchEnded as over:
            outcome = over.outcome
        return dataclasses.replace(outcome, wall_s=time.monotonic() - started_s)

    def _fits(self, batch: int, attempt: Attempt, on_progress: OnProgress) -> bool:
        if self._left_s <= 0 and not self._requested.config.debug:
            raise _SearchEnded(self._late(f"before {batch} was tried"))
        progress = self._with_batch(batch, on_progress)
        self._record(batch)
        outcome = self._with_memory_reason(self._launch(batch, self.found.limit_bytes, self.where, attempt, progress))
        if outcome.status in ("failed", "timeout") and self.found.limit_bytes is not None and self._left_s > 0:
            outcome = self._with_more(batch, outcome, attempt, progress)
        if outcome.status == "timeout" and self._left_s <= 0:
            raise _SearchEnded(dataclasses.replace(self._late(f"while {batch} was tried"), rank=outcome.rank))
        if outcome.status not in ("ok", "oom"):
            raise _SearchEnded(dataclasses.replace(outcome, reason=f"batch {batch} per device: {outcome.reason}"))
        self._outcomes[batch] = outcome
        ranks = [rank for rank in read_ranks(self.where, self._requested.processes) if rank is not None]
        self.found.tried.append(_tried(batch, outcome, ranks))
        return outcome.status == "ok"

    def _with_more(self, batch: int, before: RunOutcome, attempt: Attempt, on_progress: OnProgress) -> RunOutcome:
        """Try again with more memory what failed without mentioning it, as by SIGSEGV of a library that checks no null
        pointer: where that goes well, or is out of memory by its own report, the lack of memory was the reason."""
        assert self.found.limit_bytes is not None
        more = memory_limit.more_bytes(self.found.limit_bytes, self._on_node)
        if more <= self.found.limit_bytes:
            return before
        first, self.where = self.where, try_folder(self._folder, batch, more_memory=True)
        after = self._with_memory_reason(self._launch(batch, more, self.where, attempt, on_progress))
        self.where = first
        if after.status not in ("ok", "oom"):
            return before
        then = "it goes well" if after.status == "ok" else "it is out of memory in words"
        reason = f"out of memory: {before.reason}; with {more / 1e9:.3g} GB a process {then}"
        return dataclasses.replace(before, status="oom", reason=reason)

    def _launch(
        self, batch: int, limit_bytes: int | None, where: Path, attempt: Attempt, on_progress: OnProgress
    ) -> RunOutcome:
        tried = self._try_of(batch, limit_bytes)
        where.mkdir(exist_ok=True)
        write_spec(tried, where)
        try:
            return attempt(tried, where, on_progress)
        finally:
            os.replace(where / SPEC_FILE, where / TRY_SPEC_FILE)  # a try is no run whose result is missing

    @property
    def _left_s(self) -> float:
        return self._deadline_s - time.monotonic()

    def _record(self, batch: int) -> None:
        config = self._requested.config
        config = dataclasses.replace(config, train=dataclasses.replace(config.train, batch_per_device=batch))
        self.spec = dataclasses.replace(
            self._requested, config=config, batch_per_device=batch, global_batch=batch * self._requested.gpus
        )
        self.where = try_folder(self._folder, batch)

    def _try_of(self, batch: int, limit_bytes: int | None) -> RunSpec:
        """Return the spec of a try: a few steps at one learning rate, since neither matters to memory."""
        config = self._requested.config
        train = dataclasses.replace(
            config.train, batch_per_device=batch, stop=StopSpec(), schedule="constant", warmup_epochs=0.0,
            learning_rate_rule="none",
        )  # fmt: skip
        measure = dataclasses.replace(
            config.measure, search="none", memory_limit_bytes=limit_bytes, timeout_s=max(self._left_s, 1.0),
            **OFF,
        )  # fmt: skip
        config = dataclasses.replace(config, train=train, measure=measure)
        return dataclasses.replace(
            self._requested, config=config, batch_per_device=batch, global_batch=batch * self._requested.gpus
        )

    def _with_memory_reason(self, outcome: RunOutcome) -> RunOutcome:
        """A process that gets no memory may die, or hang, in code that reports it in its log alone."""
        if outcome.status not in ("failed", "timeout"):
            return outcome
        if memory_limit.OUT_OF_MEMORY.search(outcome.reason or ""):
            return dataclasses.replace(outcome, status="oom")
        names = [*map(rank_log_name, range(self._requested.processes)), MPIRUN_LOG, SRUN_LOG]
        for log in [self.where / name for name in names]:
            line = memory_limit.out_of_memory_line(log)
            if line is not None:
                reason = f"out of memory: {line[:MAX_REASON_LENGTH]} ({outcome.reason})"
                return dataclasses.replace(outcome, status="oom", reason=reason)
        return outcome

    def _answer(self, batch: int | None, most: int, least: int) -> RunOutcome:
        if batch is None:
            within = (
                "" if self.found.limit_bytes is None else f" within {self.found.limit_bytes / 1e9:.3g} GB a process"
            )
            few = "one sample" if least == 1 else f"{least} samples, one for each part of train.accumulate"
            last = self._outcomes[least]
            return dataclasses.replace(last, reason=f"not even {few} per device fits{within}: {last.reason}")
        self.found.batch_per_device = batch
        self.found.bounded_by = "data" if batch == most else "memory"
        self._record(batch)
        return self._outcomes[batch]

    def _late(self, when: str) -> RunOutcome:
        limit_s = self._requested.config.measure.timeout_s
        fits = max((each.batch_per_device for each in self.found.tried if each.status == "ok"), default=None)
        known = "" if fits is None else f"; {fits} per device fits"
        return RunOutcome("timeout", f"the search was not over after {limit_s:g} s (measure.timeout_s), {when}{known}")

    def _with_batch(self, batch: int, on_progress: OnProgress) -> OnProgress:
        head = f"try {len(self.found.tried) + 1}: batch {batch} per device"
        return lambda ranks: on_progress([dataclasses.replace(p, phase=f"{head}, {p.phase}") for p in ranks])


def largest_batch(start: int, most: int, least: int, fits: Callable[[int], bool]) -> int | None:
    """Return the largest batch from `least` to `most` that fits, to 1/16 of itself; None where not even `least` does.

    From `start` on the batch is doubled while it fits, or halved while it does not; then the range is bisected. If one
    batch does not fit, no larger one is assumed to fit.
    """
    low, high, batch = None, None, max(least, min(start, most))
    while True:
        if fits(batch):
            low = batch
        else:
            high = batch
        following = _next(low, high, least, most)
        if following is None:
            return low
        batch = following


def _next(low: int | None, high: int | None, least: int, most: int) -> int | None:
    """Return what to try where `low` fits and `high` does not; None where that is exact enough."""
    if high is None:
        assert low is not None  # one of them is known
        return None if low >= most else min(2 * low, most)
    if low is None:
        return None if high <= least else max(high // 2, least)
    return None if high - low <= max(1, low // FINENESS) else (low + high) // 2


def try_counts(config: Config, gpus: int) -> tuple[int, int]:
    """Return (fewest, most) launches of a search, for estimates: a data set that is read from files is not opened."""
    start = config.train.batch_per_device
    most = start if config.dataset.path is not None else max(start, _max_samples(config.dataset.size, config, gpus))
    up = max(1, (most - 1) // start + 1).bit_length()
    bisecting = min(FINENESS.bit_length(), most.bit_length())
    return 1, max(up, start.bit_length()) + bisecting


def max_samples(config: Config, gpus: int) -> int:
    """Return the samples of one device in the largest batch that the training samples give."""
    size = config.dataset.size
    if config.dataset.path is not None:
        folder: Path = datasets.prepare(config)
        size = len(cache.open_arrays(folder)[0])
    return _max_samples(size, config, gpus)


def _max_samples(size: int, config: Config, gpus: int) -> int:
    return datasets.count_train_samples(config.dataset, size) // gpus


def _tried(batch: int, outcome: RunOutcome, ranks: list[RankRecord]) -> BatchTried:
    peaks = [peak for rank in ranks for peak in rank.peak_memory_bytes if peak is not None]
    resident = [rank.rss_anon_peak_bytes for rank in ranks if rank.rss_anon_peak_bytes is not None]
    seconds = [sum(rank.block_s) for rank in ranks]
    samples = sum(sum(rank.block_samples) for rank in ranks)
    rate = samples / max(seconds) if outcome.status == "ok" and samples and max(seconds, default=0.0) > 0 else None
    return BatchTried(
        batch, outcome.status, outcome.reason, max(peaks, default=None), max(resident, default=None), rate
    )
