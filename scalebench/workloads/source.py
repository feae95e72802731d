"""Seeded batches: the same ones, in the same order, under every framework and strategy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalebench.spec import InputError
from scalebench.workloads.batch import Batch
from scalebench.workloads.disk import DiskRows

FEEDS = ("host", "fixed", "disk")
Indices = NDArray[np.int64]


class Source:
    """One replica's part of every global batch of a dataset; iterating never ends.

    Each epoch is a new permutation drawn from (seed, epoch), the same on all replicas. Its
    consecutive slices of `global_batch` samples are the batches, and each replica takes a
    contiguous part of a slice; parts differ by at most one sample. The last batch of an epoch is
    smaller if it has to be; with fewer samples than `devices` it joins the batch before it. So every
    sample is seen once per epoch, and no part is empty. `devices` are those of all replicas: more than
    `replicas` where one of them deals its part out to several.

    `first` and `last` (exclusive) choose a range of samples, so that two sources can share a file.
    `feed`: host gathers rows from the arrays, memory-mapped or not; fixed gives the first batch
    again and again, the same arrays each time; disk reads every batch from the disk (the arrays
    must be memory-mapped .npy files). Raises InputError if replicas would get nothing, or if the
    feed is unknown or impossible here, ValueError if the arguments contradict each other.
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
        feed: str = "host",
        first: int = 0,
        last: int | None = None,
    ) -> None:
        last = len(inputs) if last is None else last
        if len(inputs) != len(targets) or not 0 <= first <= last <= len(inputs):
            raise ValueError(f"samples {first}..{last} of {len(inputs)} inputs, {len(targets)} targets")
        if not 0 <= replica < replicas:
            raise ValueError(f"replica {replica} of {replicas}")
        self.samples = last - first
        self.devices = replicas if devices is None else devices
        _check_enough(self.samples, global_batch, self.devices)
        if feed not in FEEDS:
            raise InputError(f"dataset.feed={feed} is unknown: take one of {', '.join(FEEDS)}")
        self.global_batch, self.seed, self.feed = global_batch, seed, feed
        self.replica, self.replicas = replica, replicas
        self.first = first
        self._arrays = inputs[first:last], targets[first:last]
        self._input_rows, self._target_rows = _reader(inputs, feed), _reader(targets, feed)
        self._order: tuple[int, Indices] | None = None  # the epoch drawn last, and its permutation
        self._fixed: Batch | None = None

    @property
    def updates_per_epoch(self) -> int:
        """Global batches per epoch."""
        full, rest = divmod(self.samples, self.global_batch)
        return full if rest < self.devices else full + 1

    def __iter__(self) -> Iterator[Batch]:
        """Batches for ever, epoch after epoch from 0."""
        epoch = 0
        while True:
            yield from self.epoch(epoch)
            epoch += 1

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """The `updates_per_epoch` batches of one epoch."""
        for update in range(self.updates_per_epoch):
            if self.feed == "fixed":
                yield self._first_batch()
            else:
                yield self._batch(epoch, update)

    def in_order(self) -> Iterator[Batch]:
        """Every sample once, unshuffled, for validation; batches with no sample for this replica left out."""
        for start in range(0, self.samples, self.global_batch):
            stop = min(start + self.global_batch, self.samples)
            part = _part(start, stop, self.replica, self.replicas)
            if part.start < part.stop:
                yield self._gather(np.arange(part.start, part.stop) + self.first, stop - start)

    def whole(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Inputs and targets of all samples of all replicas, in order, uncopied; row 0 is row `first` of the file."""
        return self._arrays

    def batch_indices(self, epoch: int, update: int) -> Indices:
        """Rows of the arrays that this replica reads for an update (0-based) of an epoch, in order.

        Over the replicas in sequence they are the rows of the global batch. IndexError past the epoch.
        """
        start, stop = self._span(update)
        return self._permutation(epoch)[_part(start, stop, self.replica, self.replicas)] + self.first

    def global_samples(self, update: int) -> int:
        """Samples of a whole global batch, by its place in the epoch."""
        start, stop = self._span(update)
        return stop - start

    def _span(self, update: int) -> tuple[int, int]:
        if not 0 <= update < self.updates_per_epoch:
            raise IndexError(f"update {update} of {self.updates_per_epoch} per epoch")
        start = update * self.global_batch
        is_last = update == self.updates_per_epoch - 1
        return start, self.samples if is_last else start + self.global_batch

    def _permutation(self, epoch: int) -> Indices:
        if self._order is None or self._order[0] != epoch:
            rng = np.random.default_rng(np.random.SeedSequence([self.seed, epoch]))
            self._order = epoch, rng.permutation(self.samples)
        return self._order[1]

    def _batch(self, epoch: int, update: int) -> Batch:
        return self._gather(self.batch_indices(epoch, update), self.global_samples(update))

    def _first_batch(self) -> Batch:
        if self._fixed is None:
            self._fixed = self._batch(0, 0)
        return self._fixed

    def _gather(self, rows: Indices, global_samples: int) -> Batch:
        return Batch(self._input_rows(rows), self._target_rows(rows), global_samples)


def _part(start: int, stop: int, replica: int, replicas: int) -> slice:
    """The replica's share of start .. stop; the first few replicas take what does not divide."""
    share, rest = divmod(stop - start, replicas)
    begin = start + replica * share + min(replica, rest)
    return slice(begin, begin + share + (replica < rest))


def _reader(array: NDArray[Any], feed: str) -> Callable[[Indices], NDArray[Any]]:
    """Rows by index, as a fresh array: the one before may still be in use."""
    if feed == "disk":
        return DiskRows(array)
    return partial(np.take, np.asarray(array), axis=0)  # asarray: a memmap would give memmaps


def _check_enough(samples: int, global_batch: int, devices: int) -> None:
    if samples < devices:
        raise InputError(f"the dataset has {samples} samples for {devices} replicas: raise dataset.size or lower gpus")
    if global_batch < devices:
        raise InputError(
            f"a global batch of {global_batch} samples leaves some of {devices} replicas without any: "
            "raise train.global_batch or lower gpus"
        )
