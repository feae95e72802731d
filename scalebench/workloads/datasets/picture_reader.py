"""Batches of pictures that are decoded during training, in worker processes ahead of the batch that is trained.

The workers of a process share a ring of pictures in memory with it, into which they decode. What happens to a picture
depends on (seed, epoch, row) alone, never on the worker.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from scalebench.core.errors import InputError
from scalebench.workloads.datasets import cache, images
from scalebench.workloads.source import Batch, BatchRows

AHEAD_BATCHES = 2  # finished or in work besides the one that is trained, as many as PyTorch's DataLoader has
MAX_AHEAD_BATCHES = 63  # of very small ones, to occupy many workers
TASKS_OF_A_WORKER = 4  # of one batch, so that all workers end with it at nearly one time


@dataclass(frozen=True)
class Pictures:
    """Pictures in files, and how they become samples."""

    names: str  # .npy file with the name of each sample's file, below `root`
    root: str
    side: int
    dtype: str
    seed: int  # of the crops
    augment: bool  # random crops and flips in training; else the central square
    workers: int  # 0: this process decodes each batch when it is needed
    classes: int = 1000  # labels are 0 to one less
    records: bool = False  # the files are TFRecord files with several samples each

    def load_names(self) -> NDArray[np.bytes_]:
        return np.lib.format.open_memmap(self.names, mode="r")

    def draw_crops(self, rows: NDArray[np.int64], epoch: int | None) -> NDArray[np.float64] | None:
        """Return the random crop of each row in the epoch; None: the central square of each."""
        return images.draw_crops(self.seed, epoch, rows) if self.augment and epoch is not None else None

    def path(self, names: NDArray[np.bytes_], row: int) -> str:
        return os.path.join(self.root, os.fsdecode(names[row]))


class PictureReader:
    """Reads batches of pictures with Pillow: the default reader of such a data set, for every framework."""

    def __init__(self, pictures: Pictures, targets: NDArray[np.int64]) -> None:
        self.pictures, self.targets = pictures, targets

    def read(self, batches: Iterable[BatchRows]) -> Generator[Batch, None, None]:
        """Yield the batches in order, each in new arrays. Closing the generator ends the workers.

        Raises InputError for a damaged picture, and RuntimeError where a worker was killed.
        """
        if self.pictures.records:
            raise InputError("TFRecord files are read by TensorFlow: choose one of its strategies")
        images.load_pillow("imagenet_jpeg")  # here, so that its absence is one error and not one of each worker
        if self.pictures.workers:
            return self._read_ahead(iter(batches))
        return self._read_one_by_one(batches)

    def _read_one_by_one(self, batches: Iterable[BatchRows]) -> Generator[Batch, None, None]:
        names = self.pictures.load_names()
        for batch in batches:
            pixels = np.empty((len(batch.rows), self.pictures.side, self.pictures.side, 3), np.uint8)
            _decode(self.pictures, names, pixels, batch.rows, range(len(pixels)), batch.epoch)
            yield self._make_batch(batch, pixels)

    def _read_ahead(self, batches: Iterator[BatchRows]) -> Generator[Batch, None, None]:
        first = next(batches, None)
        if first is None:
            return
        size, workers = len(first.rows), self.pictures.workers
        ahead = min(max(AHEAD_BATCHES, -(-2 * workers // size)), MAX_AHEAD_BATCHES)
        memory, places = os.memfd_create("scalebench-pictures"), (ahead + 1) * size
        file = f"/proc/{os.getpid()}/fd/{memory}"  # by which the workers open it, too
        ring = _map_ring(file, places, self.pictures.side, "w+")
        pool = cache.create_pool(workers, _prepare_worker, self.pictures, file, places)
        pending: deque[tuple[BatchRows, NDArray[np.int64], list[Future[None]]]] = deque()
        end = 0  # of what was submitted, in pictures since the beginning

        def collect() -> Batch:
            batch, taken, tasks = pending.popleft()
            for task in tasks:
                task.result()
            return self._make_batch(batch, ring[taken])

        try:
            for batch in chain([first], batches):
                count = len(batch.rows)
                while len(pending) > ahead or sum(len(other.rows) for other, *_ in pending) + count > places:
                    yield collect()
                taken = (end + np.arange(count)) % places
                parts = [np.array_split(a, min(count, TASKS_OF_A_WORKER * workers)) for a in (batch.rows, taken)]
                tasks = [pool.submit(cache.run_in_worker, *part, batch.epoch) for part in zip(*parts, strict=True)]
                pending.append((batch, taken, tasks))
                end += count
            while pending:
                yield collect()
        except BrokenProcessPool:
            raise RuntimeError(
                f"a process that decodes pictures (dataset.workers={workers}) was killed: "
                "lower dataset.workers if it took too much memory"
            ) from None
        finally:
            pool.shutdown(cancel_futures=True)
            os.close(memory)

    def _make_batch(self, batch: BatchRows, pixels: NDArray[np.uint8]) -> Batch:
        inputs = images.to_dtype(pixels, self.pictures.dtype)
        return Batch(inputs, np.take(self.targets, batch.rows), batch.global_samples)


def _decode(
    pictures: Pictures,
    names: NDArray[np.bytes_],
    out: NDArray[np.uint8],
    rows: NDArray[np.int64],
    places: Iterable[int],
    epoch: int | None,
) -> None:
    """Decode the pictures of the rows to their places in `out`."""
    crops = pictures.draw_crops(rows, epoch)
    for number, (row, place) in enumerate(zip(rows.tolist(), places, strict=True)):
        crop = None if crops is None else crops[number]
        out[place] = images.decode(pictures.path(names, row), pictures.side, crop)


def _map_ring(file: str, places: int, side: int, mode: Literal["r+", "w+"] = "r+") -> NDArray[np.uint8]:
    return np.memmap(file, np.uint8, mode, shape=(places, side, side, 3))


def _prepare_worker(pictures: Pictures, file: str, places: int) -> Callable[..., None]:
    return partial(_decode, pictures, pictures.load_names(), _map_ring(file, places, pictures.side))
