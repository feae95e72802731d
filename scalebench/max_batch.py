"""measure.search=max_batch: the largest batch per device that fits into memory, found by trying. Layer 3.

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

from scalebench import memory_limit
from scalebench.batch_search import largest, most_samples
from scalebench.collect import Outcome, read_ranks
from scalebench.measure.progress import Progress
from scalebench.results import BatchTried, MaxBatch, RankRecord, Result
from scalebench.run_folder import MPIRUN_LOG, SPEC_FILE, SRUN_LOG, TRY_SPEC_FILE, rank_log_name, try_folder
from scalebench.spec import RunSpec, StopSpec, write_spec

SEARCH = "max_batch"
# No figures but throughput.
OFF: dict[str, Any] = dict.fromkeys("evaluate probes monitor trace collectives bandwidth timeline".split(), False)
WORDS_AT_MOST = 200

OnLook = Callable[[list[Progress]], None]
Attempt = Callable[[RunSpec, Path, OnLook], Outcome]


class _Over(Exception):
    """The search cannot go on."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.reason)
        self.outcome = outcome


def obstacle(spec: RunSpec) -> str | None:
    """Why there can be no search, or no limit of memory, in this run; None where there can be."""
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
    return memory_limit.obstacle() if spec.device == "cpu" and (searches or limit is not None) else None


class Search:
    """The tries of one run, and what is known of them at any time, also where the search is cut short.

    `spec` is the run as it is recorded: as it was asked for, with the batch of the try in `where` whose ranks it has.
    """

    def __init__(self, spec: RunSpec, folder: Path) -> None:
        self.spec, self.where = spec, folder
        self._asked, self._folder = spec, folder
        self._on_node = max(Counter(place.node for place in spec.places).values())
        asked = spec.config.measure.memory_limit_bytes
        limit = None if spec.device != "cpu" else asked or memory_limit.share_bytes(self._on_node)
        self.found = MaxBatch(None, limit, "memory", [])
        self._outcomes: dict[int, Outcome] = {}
        self._deadline_s = time.monotonic() + spec.config.measure.timeout_s

    def run(self, attempt: Attempt, on_look: OnLook) -> Outcome:
        """Try until the answer is known. Not ok where not even one sample fits, and where a try went wrong in another
        way: then its status is that of the run."""
        started_s = time.monotonic()
        train, most = self._asked.config.train, most_samples(self._asked.config, self._asked.gpus)
        try:
            found = largest(train.batch_per_device, most, train.accumulate, lambda b: self._fits(b, attempt, on_look))
            outcome = self._answer(found, most, train.accumulate)
        except _Over as over:
            outcome = over.outcome
        return dataclasses.replace(outcome, wall_s=time.monotonic() - started_s)

    def tell(self, result: Result) -> None:
        """Put the search into the record of the run, whose ranks are those of one try."""
        result.quality.max_batch = self.found
        if result.log is not None and self.where != self._folder:
            result.log = f"{self.where.name}/{result.log}"

    def _fits(self, batch: int, attempt: Attempt, on_look: OnLook) -> bool:
        if self._left_s <= 0 and not self._asked.config.debug:
            raise _Over(self._late(f"before {batch} was tried"))
        relayed = self._relayed(batch, on_look)
        self._record(batch)
        outcome = self._judged(self._launch(batch, self.found.limit_bytes, self.where, attempt, relayed))
        if outcome.status in ("failed", "timeout") and self.found.limit_bytes is not None and self._left_s > 0:
            outcome = self._with_more(batch, outcome, attempt, relayed)
        if outcome.status == "timeout" and self._left_s <= 0:
            raise _Over(dataclasses.replace(self._late(f"while {batch} was tried"), rank=outcome.rank))
        if outcome.status not in ("ok", "oom"):
            raise _Over(dataclasses.replace(outcome, reason=f"batch {batch} per device: {outcome.reason}"))
        self._outcomes[batch] = outcome
        ranks = [rank for rank in read_ranks(self.where, self._asked.processes) if rank is not None]
        self.found.tried.append(_tried(batch, outcome, ranks))
        return outcome.status == "ok"

    def _with_more(self, batch: int, before: Outcome, attempt: Attempt, on_look: OnLook) -> Outcome:
        """Of a try that failed without a word of memory, as by SIGSEGV of a library that looks at no null pointer: what
        goes well, or runs out of memory in words, where it has more has failed for the lack of it."""
        assert self.found.limit_bytes is not None
        more = memory_limit.more_bytes(self.found.limit_bytes, self._on_node)
        if more <= self.found.limit_bytes:
            return before
        first, self.where = self.where, try_folder(self._folder, batch, more_memory=True)
        after = self._judged(self._launch(batch, more, self.where, attempt, on_look))
        self.where = first
        if after.status not in ("ok", "oom"):
            return before
        then = "it goes well" if after.status == "ok" else "it is out of memory in words"
        reason = f"out of memory: {before.reason}; with {more / 1e9:.3g} GB a process {then}"
        return dataclasses.replace(before, status="oom", reason=reason)

    def _launch(self, batch: int, limit_bytes: int | None, where: Path, attempt: Attempt, on_look: OnLook) -> Outcome:
        tried = self._try_of(batch, limit_bytes)
        where.mkdir(exist_ok=True)
        write_spec(tried, where)
        try:
            return attempt(tried, where, on_look)
        finally:
            os.replace(where / SPEC_FILE, where / TRY_SPEC_FILE)  # no run whose row is missing

    @property
    def _left_s(self) -> float:
        return self._deadline_s - time.monotonic()

    def _record(self, batch: int) -> None:
        config = self._asked.config
        config = dataclasses.replace(config, train=dataclasses.replace(config.train, batch_per_device=batch))
        self.spec = dataclasses.replace(
            self._asked, config=config, batch_per_device=batch, global_batch=batch * self._asked.gpus
        )
        self.where = try_folder(self._folder, batch)

    def _try_of(self, batch: int, limit_bytes: int | None) -> RunSpec:
        """A few updates of it, at one learning rate: how that goes on is of no matter to memory."""
        config = self._asked.config
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
            self._asked, config=config, batch_per_device=batch, global_batch=batch * self._asked.gpus
        )

    def _judged(self, outcome: Outcome) -> Outcome:
        """A process that gets no memory may die, or hang, in code that has no other words than those in its log."""
        if outcome.status not in ("failed", "timeout"):
            return outcome
        if memory_limit.WORDS.search(outcome.reason or ""):
            return dataclasses.replace(outcome, status="oom")
        logs = [self.where / name for name in (*map(rank_log_name, range(self._asked.processes)), MPIRUN_LOG, SRUN_LOG)]
        for log in logs:
            words = memory_limit.last_words(log)
            if words is not None:
                reason = f"out of memory: {words[:WORDS_AT_MOST]} ({outcome.reason})"
                return dataclasses.replace(outcome, status="oom", reason=reason)
        return outcome

    def _answer(self, found: int | None, most: int, least: int) -> Outcome:
        if found is None:
            within = (
                "" if self.found.limit_bytes is None else f" within {self.found.limit_bytes / 1e9:.3g} GB a process"
            )
            few = "one sample" if least == 1 else f"{least} samples, one for each part of train.accumulate"
            last = self._outcomes[least]
            return dataclasses.replace(last, reason=f"not even {few} per device fits{within}: {last.reason}")
        self.found.batch_per_device = found
        self.found.bounded_by = "data" if found == most else "memory"
        self._record(found)
        return self._outcomes[found]

    def _late(self, when: str) -> Outcome:
        limit_s = self._asked.config.measure.timeout_s
        fits = max((each.batch_per_device for each in self.found.tried if each.status == "ok"), default=None)
        known = "" if fits is None else f"; {fits} per device fits"
        return Outcome("timeout", f"the search was not over after {limit_s:g} s (measure.timeout_s), {when}{known}")

    def _relayed(self, batch: int, on_look: OnLook) -> OnLook:
        head = f"try {len(self.found.tried) + 1}: batch {batch} per device"
        return lambda ranks: on_look([dataclasses.replace(p, phase=f"{head}, {p.phase}") for p in ranks])


def _tried(batch: int, outcome: Outcome, ranks: list[RankRecord]) -> BatchTried:
    peaks = [peak for rank in ranks for peak in rank.peak_memory_bytes if peak is not None]
    resident = [rank.rss_anon_peak_bytes for rank in ranks if rank.rss_anon_peak_bytes is not None]
    seconds = [sum(rank.block_s) for rank in ranks]
    samples = sum(sum(rank.block_samples) for rank in ranks)
    rate = samples / max(seconds) if outcome.status == "ok" and samples and max(seconds, default=0.0) > 0 else None
    return BatchTried(
        batch, outcome.status, outcome.reason, max(peaks, default=None), max(resident, default=None), rate
    )
