"""measure.search=max_batch: the largest batch per device that fits into memory, by trying.

Out of memory is a result here, not a failure. Each try is a launch of its own in try_<batch>/ of the run's folder,
since memory that a framework still holds from the try before would distort the next. Only where one process can try
them all (`batch_tries`) is the launch of the answer alone, which confirms it.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from scalebench.core.result import BatchTrial, MaxBatch, RankRecord
from scalebench.core.run_folder import (
    MPIRUN_LOG,
    SPEC_FILE,
    SRUN_LOG,
    TRY_SPEC_FILE,
    rank_log_name,
    rank_record_path,
    try_folder,
)
from scalebench.core.spec import Config, RunSpec, StopSpec, write_spec
from scalebench.measure.progress import TRIED, RankProgress
from scalebench.runner import batch_tries, memory_limit
from scalebench.runner.collect import RunOutcome, read_ranks
from scalebench.runner.launchers.supervise import OnProgress

MAX_BATCH_SEARCH = "max_batch"
# A try measures nothing but throughput, in a few steps at a constant learning rate, since neither affects memory.
MEASURED_OFF: dict[str, Any] = {"search": "none"} | dict.fromkeys(
    "evaluate probes monitor trace collectives bandwidth timeline".split(), False
)
CONSTANT_RATE = {"stop": StopSpec(), "schedule": "constant", "warmup_epochs": 0.0, "learning_rate_rule": "none"}
MAX_REASON_LENGTH = 200

Attempt = Callable[..., RunOutcome]  # of spec, folder, on_progress, and perhaps the module of its ranks


class _SearchEnded(Exception):
    """The search cannot go on."""

    def __init__(self, outcome: RunOutcome) -> None:
        super().__init__(outcome.reason)
        self.outcome = outcome


def search_unsupported_reason(spec: RunSpec) -> str | None:
    """Return why there can be no search, or no limit of memory, in this run; None where there can be."""
    config, limit = spec.config, spec.config.measure.memory_limit_bytes
    if limit is not None and spec.device != "cpu":
        return "measure.memory_limit_bytes is for processes on the CPU, and a GPU has its own memory; leave it out"
    searches = config.measure.search == MAX_BATCH_SEARCH
    if searches and config.scaling == "strong":
        return "measure.search=max_batch is for a batch per device, and scaling=strong keeps the global one"
    if searches and config.strategy.launcher == "by_hand":
        return (
            "measure.search=max_batch starts ranks many times, and with strategy.launcher=by_hand a person starts them"
        )
    if searches and limit is None and config.hardware.hosts:
        return "the memory of other hosts is unknown here; set measure.memory_limit_bytes, for each process"
    return memory_limit.limit_unsupported_reason() if spec.device == "cpu" and (searches or limit is not None) else None


class BatchSearch:
    """The tries of one run, with their results so far, also where the search ends early.

    `spec` is the run as it is recorded: as requested, but with the batch of the try in `rank_folder`, whose ranks the
    record has.
    """

    def __init__(self, spec: RunSpec, folder: Path, run_id: str | None = None) -> None:
        self.spec, self.rank_folder = spec, folder
        self._requested, self._folder, self._run_id = spec, folder, run_id
        self._on_node = max(Counter(place.node for place in spec.places).values())
        limit = spec.config.measure.memory_limit_bytes
        limit = None if spec.device != "cpu" else limit or memory_limit.limit_per_process_bytes(self._on_node)
        self.answer = MaxBatch(None, limit, "memory", [])
        self._outcomes: dict[int, RunOutcome] = {}
        self._deadline_s = time.monotonic() + spec.config.measure.timeout_s

    def run(self, attempt: Attempt, on_progress: OnProgress) -> RunOutcome:
        """Try until the largest batch is known. The outcome is not ok where not even one sample fits, and where a
        try fails in another way, whose status the run then has."""
        started_s = time.monotonic()
        config = self._requested.config
        train, maximum = config.train, batch_tries.max_samples_per_device(config, self._requested.gpus)
        tried: dict[int, bool] = {}  # batches that fit or do not, by the tries in one process
        if batch_tries.can_try_in_one_process(self._requested):
            tried = self._try_in_one_process(attempt, on_progress)

        def fits(batch: int) -> bool:
            if batch not in tried:
                tried[batch] = self._fits(batch, attempt, on_progress)
            return tried[batch]

        start, fewest = train.batch_per_device, train.accumulate
        try:
            while (last := batch_tries.largest_batch(start, maximum, fewest, fits) or fewest) not in self._outcomes:
                tried[last] = self._fits(last, attempt, on_progress)
            outcome = self._answer(last if tried[last] else None, maximum, fewest)
        except _SearchEnded as over:
            outcome = over.outcome
        return dataclasses.replace(outcome, wall_s=time.monotonic() - started_s)

    def _try_in_one_process(self, attempt: Attempt, on_progress: OnProgress) -> dict[int, bool]:
        """Have one process try batch after batch, and return which fit; those that it did not come to are missing."""
        tried: dict[int, bool] = {}

        def read(ranks: list[RankProgress]) -> None:
            on_progress(ranks)
            folders = {int(path.name.removeprefix("try_")): path for path in self._folder.glob("try_*")}
            records = [(batch, read_ranks(folders[batch], 1, self._run_id)[0]) for batch in folders.keys() - tried]
            ended = [(batch, record) for batch, record in records if record is not None]
            for batch, record in sorted(ended, key=lambda each: each[1].marks_s["launch"]):
                tried[batch] = record.status == "ok"
                self._record_try(batch, record, [record], on_progress)

        attempt(self._requested, self._folder, read, batch_tries.MODULE)
        read([])
        return tried

    def _fits(self, batch: int, attempt: Attempt, on_progress: OnProgress) -> bool:
        if self._left_s <= 0 and not self._requested.config.debug:
            raise _SearchEnded(self._timeout(f"before {batch} was tried"))
        head = f"try {len(self.answer.trials) + 1}: batch {batch} per device"

        def progress(ranks: list[RankProgress]) -> None:
            on_progress([dataclasses.replace(each, phase=f"{head}, {each.phase}") for each in ranks])

        self._use_batch(batch)
        outcome = self._with_memory_reason(
            self._launch(batch, self.answer.limit_bytes, self.rank_folder, attempt, progress)
        )
        if outcome.status in ("failed", "timeout") and self.answer.limit_bytes is not None and self._left_s > 0:
            outcome = self._with_more_memory(batch, outcome, attempt, progress)
        if outcome.status == "timeout" and self._left_s <= 0:
            raise _SearchEnded(dataclasses.replace(self._timeout(f"while {batch} was tried"), rank=outcome.rank))
        if outcome.status not in ("ok", "oom"):
            raise _SearchEnded(dataclasses.replace(outcome, reason=f"batch {batch} per device: {outcome.reason}"))
        self._outcomes[batch] = outcome
        records = read_ranks(self.rank_folder, self._requested.processes, self._run_id)
        ranks = [rank for rank in records if rank is not None]
        self._record_try(batch, outcome, ranks, on_progress)
        return outcome.status == "ok"

    def _record_try(
        self, batch: int, outcome: RunOutcome | RankRecord, ranks: Sequence[RankRecord], on_progress: OnProgress
    ) -> None:
        """Record a try by its status and the records of its ranks, and report it."""
        # The memory that the allocator reserved must fit, which is more than the tensors need. TensorFlow reports the
        # tensors alone.
        peaks = [
            peak
            for rank in ranks
            for peak in (*rank.reserved_memory_bytes, *rank.peak_memory_bytes)
            if peak is not None
        ]
        resident = [rank.rss_anon_peak_bytes for rank in ranks if rank.rss_anon_peak_bytes is not None]
        seconds, samples = [sum(rank.block_s) for rank in ranks], sum(sum(rank.block_samples) for rank in ranks)
        is_ok = outcome.status == "ok"
        rate = samples / max(seconds) if is_ok and samples and max(seconds, default=0.0) > 0 else None
        sizes = max(peaks, default=None), max(resident, default=None)
        self.answer.trials.append(BatchTrial(batch, outcome.status, outcome.reason, *sizes, rate))
        text = f"try {len(self.answer.trials)}: batch {batch} per device {'fits' if is_ok else 'does not fit'}"
        on_progress([RankProgress(0, os.getpid(), TRIED, time.time(), metric=text)])

    def _with_more_memory(
        self, batch: int, before: RunOutcome, attempt: Attempt, on_progress: OnProgress
    ) -> RunOutcome:
        """Repeat with more memory a try that failed without mentioning memory, as by SIGSEGV of a library that checks
        no null pointer: where that is ok, or reports to be out of memory, the lack of memory was the reason."""
        assert self.answer.limit_bytes is not None
        more = memory_limit.raised_limit_bytes(self.answer.limit_bytes, self._on_node)
        if more <= self.answer.limit_bytes:
            return before
        first_folder, self.rank_folder = self.rank_folder, try_folder(self._folder, batch, more_memory=True)
        after = self._with_memory_reason(self._launch(batch, more, self.rank_folder, attempt, on_progress))
        self.rank_folder = first_folder
        if after.status not in ("ok", "oom"):
            return before
        then = "it is ok" if after.status == "ok" else "it reports to be out of memory"
        reason = f"out of memory: {before.reason}; with {more / 1e9:.3g} GB per process {then}"
        return dataclasses.replace(before, status="oom", reason=reason)

    def _launch(
        self, batch: int, limit_bytes: int | None, folder: Path, attempt: Attempt, on_progress: OnProgress
    ) -> RunOutcome:
        limits = {"memory_limit_bytes": limit_bytes, "timeout_s": max(self._left_s, 1.0)}
        spec = batch_tries.change_batch(self._requested, batch, MEASURED_OFF | limits, **CONSTANT_RATE)
        folder.mkdir(exist_ok=True)
        rank_record_path(folder, 0).unlink(missing_ok=True)  # of a try in one process with others
        write_spec(spec, folder)
        try:
            return attempt(spec, folder, on_progress)
        finally:
            os.replace(folder / SPEC_FILE, folder / TRY_SPEC_FILE)  # else it would look like a run without a result

    @property
    def _left_s(self) -> float:
        return self._deadline_s - time.monotonic()

    def _use_batch(self, batch: int) -> None:
        self.spec = batch_tries.change_batch(self._requested, batch)
        self.rank_folder = try_folder(self._folder, batch)

    def _with_memory_reason(self, outcome: RunOutcome) -> RunOutcome:
        """Return the outcome as oom where a log mentions a lack of memory: a process without memory may die or hang in
        code that reports it nowhere else."""
        if outcome.status not in ("failed", "timeout"):
            return outcome
        if memory_limit.lacks_memory(outcome.reason or ""):
            return dataclasses.replace(outcome, status="oom", reason=f"out of memory: {outcome.reason}")
        names = [*map(rank_log_name, range(self._requested.processes)), MPIRUN_LOG, SRUN_LOG]
        for log in [self.rank_folder / name for name in names]:
            line = memory_limit.find_out_of_memory_line(log)
            if line is not None:
                reason = f"out of memory: {line[:MAX_REASON_LENGTH]} ({outcome.reason})"
                return dataclasses.replace(outcome, status="oom", reason=reason)
        return outcome

    def _answer(self, batch: int | None, maximum: int, minimum: int) -> RunOutcome:
        if batch is None:
            within = (
                "" if self.answer.limit_bytes is None else f" within {self.answer.limit_bytes / 1e9:.3g} GB per process"
            )
            few = "one sample" if minimum == 1 else f"{minimum} samples, one for each part of train.accumulate"
            last = self._outcomes[minimum]
            return dataclasses.replace(last, reason=f"not even {few} per device fits{within}: {last.reason}")
        self.answer.batch_per_device = batch
        self.answer.bounded_by = "data" if batch == maximum else "memory"
        self._use_batch(batch)
        return self._outcomes[batch]

    def _timeout(self, when: str) -> RunOutcome:
        limit_s = self._requested.config.measure.timeout_s
        fits = max((each.batch_per_device for each in self.answer.trials if each.status == "ok"), default=None)
        answer = "" if fits is None else f"; {fits} per device fits"
        return RunOutcome("timeout", f"the search was not over after {limit_s:g} s (measure.timeout_s), {when}{answer}")


def estimate_launches(spec: RunSpec) -> tuple[int, int]:
    """Return (fewest, most) launches of a search, for estimates."""
    in_one = batch_tries.can_try_in_one_process(spec)  # and one for the answer
    return (2, 2) if in_one else estimate_try_counts(spec.config, spec.gpus)


def estimate_try_counts(config: Config, gpus: int) -> tuple[int, int]:
    """Return (fewest, most) tries of a search, for estimates: a data set in files is not opened."""
    start = config.train.batch_per_device
    maximum = (
        start
        if config.dataset.path is not None
        else max(start, batch_tries.count_samples_per_device(config.dataset.size, config, gpus))
    )
    up = max(1, (maximum - 1) // start + 1).bit_length()
    bisecting = min(batch_tries.RESOLUTION.bit_length(), maximum.bit_length())
    return 1, max(up, start.bit_length()) + bisecting
