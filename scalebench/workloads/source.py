"""Seeded batches: the same samples in the same order under every framework and strategy, drawn ahead in a thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, count, islice, repeat
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from scalebench.core.errors import InputError
from scalebench.workloads.network import Shape

Indices = NDArray[np.int64]
T = TypeVar("T")
END: Any = object()  # what the thread of prefetch gives when the iterable is over


@dataclass(frozen=True)
class SampleShape:
    """The native shapes of a dataset, which a network without fixed shapes takes over."""

    input_shape: Shape  # of one sample, channels last
    target_shape: Shape  # (): one class number per sample
    classes: int | None = None  # None: the targets are quantities
    fields: str | None = None  # of samples that are records (workloads.records), for messages
    needs_loss: bool = False  # no loss of scalebench is for the targets: they are records, or there are none
    unusable_targets: str | None = None  # a number among them that no loss of scalebench can take, in words


@dataclass(frozen=True)
class Batch:
    """The part of one global batch that one process reads.

    `inputs` and `targets` have the samples along their first axis. `global_samples` is the size of the global batch
    over all processes, so that a strategy can weight its loss by samples / global_samples.
    """

    inputs: NDArray[Any]
    targets: NDArray[Any]
    global_samples: int

    @property
    def samples(self) -> int:
        """The number of samples in this part."""
        return len(self.inputs)


class BatchRows(NamedTuple):
    """The rows of a data set that one process reads for one batch."""

    rows: Indices
    global_samples: int
    epoch: int | None = None  # None: the batch is for validation


class Reader(Protocol):
    """Reads the samples of batches; it may read ahead, and ends what it started when the generator is closed."""

    def read(self, batches: Iterable[BatchRows]) -> Iterator[Batch]: ...


class ArrayReader:
    """Gathers the samples of a batch from arrays. Each batch is a new array: the previous one may still be in use."""

    def __init__(self, inputs: NDArray[Any], targets: NDArray[Any]) -> None:
        # Taking from a memmap would return memmaps.
        self._inputs, self._targets = np.asarray(inputs), np.asarray(targets)

    def read(self, batches: Iterable[BatchRows]) -> Iterator[Batch]:
        for rows, global_samples, _ in batches:
            yield Batch(np.take(self._inputs, rows, axis=0), np.take(self._targets, rows, axis=0), global_samples)


class Source:
    """Yields one replica's part of every global batch of a dataset, without end.

    Each epoch uses a new permutation of the samples, drawn from (seed, epoch) and equal on all replicas. Consecutive
    slices of `global_batch` samples are the global batches, and each replica takes a contiguous part of a slice; parts
    differ by at most one sample. The last batch of an epoch may be smaller; if it has fewer than `fewest` samples for
    each of `devices`, it is joined to the batch before it. So every sample is seen exactly once per epoch, and no part
    is empty. `devices` counts the devices of all replicas; it exceeds `replicas` where a replica splits its part over
    several devices.

    `first` and `last` (exclusive) select a range of samples, so that two sources can share one file. With `feed` fixed
    the first batch comes again and again, the same arrays each time. A `reader` replaces the gathering of rows, for
    samples that `inputs` only names. Without `shuffled` each epoch is in the order of the rows, for files that can only
    be read from their beginning.

    Raises InputError if a replica would get no samples, and ValueError if the arguments contradict each other.
    """

    def __init__(
        self,
        inputs: NDArray[Any],
        targets: NDArray[Any],
        *,
        global_batch: int,
        seed: int,
        replica: int,
        replicas: int,
        devices: int | None = None,
        fewest: int = 1,
        feed: str = "host",
        first: int = 0,
        last: int | None = None,
        reader: Reader | None = None,
        shuffled: bool = True,
    ) -> None:
        last = len(inputs) if last is None else last
        if len(inputs) != len(targets) or not 0 <= first <= last <= len(inputs):
            raise ValueError(f"samples {first}..{last} of {len(inputs)} inputs, {len(targets)} targets")
        if not 0 <= replica < replicas:
            raise ValueError(f"replica {replica} of {replicas}")
        self.samples = last - first
        self.devices = replicas if devices is None else devices
        if self.samples < self.devices:
            raise InputError(
                f"the dataset has {self.samples} samples for {self.devices} replicas: raise dataset.size or lower gpus"
            )
        if global_batch < self.devices:
            raise InputError(
                f"a global batch of {global_batch} samples leaves some of {self.devices} replicas without any: "
                "raise train.global_batch or lower gpus"
            )
        self._fewest_samples = self.devices * fewest
        self.global_batch, self.seed, self.feed = global_batch, seed, feed
        self.replica, self.replicas = replica, replicas
        self.first = first
        self._arrays = inputs[first:last], targets[first:last]
        self.reader = ArrayReader(inputs, targets) if reader is None else reader
        self._shuffled = shuffled
        self._permutation_cache: tuple[int, Indices] | None = None  # (epoch, permutation) drawn last
        self._fixed_batch: Batch | None = None

    @property
    def steps_per_epoch(self) -> int:
        """The number of global batches, and so of training steps, in one epoch."""
        full, rest = divmod(self.samples, self.global_batch)
        return full if full and rest < self._fewest_samples else full + 1

    def __iter__(self) -> Iterator[Batch]:
        """Yield batches without end, epoch after epoch, starting with epoch 0."""
        if self.feed == "fixed":
            return self._repeat_first()
        return self.reader.read(chain.from_iterable(map(self._epoch_rows, count())))

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """Yield the `steps_per_epoch` batches of one epoch."""
        if self.feed == "fixed":
            return islice(self._repeat_first(), self.steps_per_epoch)
        return self.reader.read(self._epoch_rows(epoch))

    def in_order(self, even: bool = False) -> Iterator[Batch]:
        """Yield every sample once, unshuffled, for validation, without batches that have no sample for this replica.

        With `even` all replicas have equally many batches: in place of one without samples comes one of the first
        sample, which has 0 `global_samples` and should not count.
        """
        return self.reader.read(self._rows_in_order(even))

    def arrays(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return inputs and targets of all samples of all replicas, in order and not copied; row 0 is row `first` of
        the file."""
        return self._arrays

    def batch_indices(self, epoch: int, update: int) -> Indices:
        """Return the rows of the arrays that this replica reads for step `update` (from 0) of an epoch, in order.

        Concatenated over the replicas they are the rows of the global batch. Raises IndexError past the epoch's end.
        """
        start, stop = self._span(update)
        return self._permutation(epoch)[slice_of_replica(start, stop, self.replica, self.replicas)] + self.first

    def global_samples(self, update: int) -> int:
        """Return the size of the global batch of step `update` of an epoch, over all replicas."""
        start, stop = self._span(update)
        return stop - start

    def _span(self, update: int) -> tuple[int, int]:
        if not 0 <= update < self.steps_per_epoch:
            raise IndexError(f"update {update} of {self.steps_per_epoch} per epoch")
        start = update * self.global_batch
        is_last = update == self.steps_per_epoch - 1
        return start, self.samples if is_last else start + self.global_batch

    def _permutation(self, epoch: int) -> Indices:
        if not self._shuffled:
            return np.arange(self.samples)
        if self._permutation_cache is None or self._permutation_cache[0] != epoch:
            rng = np.random.default_rng(np.random.SeedSequence([self.seed, epoch]))
            self._permutation_cache = epoch, rng.permutation(self.samples)
        return self._permutation_cache[1]

    def _epoch_rows(self, epoch: int) -> Iterator[BatchRows]:
        for update in range(self.steps_per_epoch):
            yield BatchRows(self.batch_indices(epoch, update), self.global_samples(update), epoch)

    def _rows_in_order(self, even: bool) -> Iterator[BatchRows]:
        for start in range(0, self.samples, self.global_batch):
            stop = min(start + self.global_batch, self.samples)
            part = slice_of_replica(start, stop, self.replica, self.replicas)
            if part.start < part.stop:
                yield BatchRows(np.arange(part.start, part.stop) + self.first, stop - start)
            elif even:
                yield BatchRows(np.array([self.first]), 0)

    def _repeat_first(self) -> Iterator[Batch]:
        if self._fixed_batch is None:
            self._fixed_batch = next(iter(self.reader.read(islice(self._epoch_rows(0), 1))))
        while True:
            yield self._fixed_batch


def slice_of_replica(start: int, stop: int, replica: int, replicas: int) -> slice:
    """Return one replica's contiguous part of start .. stop; the first replicas take the remainder, one sample each."""
    share, rest = divmod(stop - start, replicas)
    begin = start + replica * share + min(replica, rest)
    return slice(begin, begin + share + (replica < rest))


def prefetch(iterable: Iterable[T], depth: int = 2) -> Generator[T, None, None]:
    """Yield the items of `iterable`, which a background thread draws up to `depth` items ahead.

    An error of the iterable is raised here, after the items before it. The thread starts with the first `next` and
    ends when the iterable does, or when this generator is closed or garbage-collected; closing waits for the item that
    is being made. Raises ValueError, at the call, if depth is under 1.
    """
    if depth < 1:
        raise ValueError(f"depth={depth} must be at least 1")
    return _prefetch(iterable, depth)


def _prefetch(iterable: Iterable[T], depth: int) -> Generator[T, None, None]:
    items, ready = iter(iterable), deque[Future[T]]()
    pool = ThreadPoolExecutor(1, "prefetch")
    try:
        ready.extend(pool.submit(next, items, END) for _ in range(depth + 1))  # one of them is in the thread's hand
        while True:
            item = ready.popleft().result()
            if item is END:
                return
            ready.append(pool.submit(next, items, END))  # before the item is used
            yield item
            del item  # or one more batch would be alive than the queue holds
    finally:
        pool.shutdown(cancel_futures=True)


def feed_batches(
    source: Source,
    feed: str,
    prefetch_mode: str,
    place: Callable[[Batch], T],
    keep_resident: Callable[[], Callable[[Indices, int], T]],
) -> Generator[T, None, None]:
    """Yield the batches of `source`, in its order for any feed, as `place` copies them to devices; closing the
    generator ends its threads.

    With `dataset.feed` device, `keep_resident` copies the full training set to each device, since every epoch
    redistributes the samples, and what it returns picks (rows, global samples) there. With `dataset.prefetch` queue, a
    thread prepares batches in host memory; with device it also copies them, while the current step is running.
    """
    if feed == "device":
        pick = keep_resident()
        for epoch in count():
            for update in range(source.steps_per_epoch):
                yield pick(source.batch_indices(epoch, update) - source.first, source.global_samples(update))
    if feed == "fixed":
        yield from repeat(place(next(iter(source))))
    placed = _place_each(prefetch(source) if prefetch_mode == "queue" else iter(source), place)
    yield from prefetch(placed) if prefetch_mode == "device" else placed


def _place_each(batches: Iterator[Batch], place: Callable[[Batch], T]) -> Generator[T, None, None]:
    try:
        yield from map(place, batches)
    finally:
        if isinstance(batches, Generator):  # which may have a thread
            batches.close()
