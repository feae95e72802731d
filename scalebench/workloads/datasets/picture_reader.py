"""Batches of pictures that are decoded from files under every framework, in worker processes ahead of the batch that is
used. What happens to a picture depends on (seed, epoch, row) alone, never on the worker."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Generator, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from scalebench.core import exit_with_parent
from scalebench.core.errors import InputError
from scalebench.workloads.datasets import images, tfrecord
from scalebench.workloads.source import Batch, BatchRows

AHEAD_BATCHES = 2  # finished or in work besides the one that is trained, as many as PyTorch's DataLoader has
TASKS_OF_A_WORKER = 4  # of one batch, so that all workers end with it at nearly one time


@dataclass(frozen=True)
class Pictures:
    """Pictures in files, and how they become samples."""

    root: str  # the folder of the files
    side: int
    dtype: str
    seed: int  # of the crops
    augment: bool  # random crops and flips in training; else the central square
    workers: int  # 0: this process decodes each batch when it is needed
    classes: int = 1000  # labels are 0 to one less
    records: bool = False  # the files are TFRecord files with several samples each

    def decode(
        self,
        pixels: NDArray[np.uint8],
        names: NDArray[Any],
        places: NDArray[np.int64],
        rows: NDArray[np.int64],
        epoch: int | None,
    ) -> NDArray[np.int64]:
        """Decode the samples of these rows into `pixels` (n, side, side, 3); return their classes. `names` are those of
        their files (bytes), `places` their classes, or of records where they begin. Raises InputError, with the file,
        for a damaged one."""
        crops = images.draw_crops(self.seed, epoch, rows) if self.augment and epoch is not None else [None] * len(rows)
        classes = places.copy()
        for number, (name, crop) in enumerate(zip(names.tolist(), crops, strict=True)):
            path, encoded = os.path.join(self.root, os.fsdecode(name)), None
            if self.records:
                encoded, classes[number] = tfrecord.read_example(path, int(places[number]), self.classes)
            pixels[number] = images.decode(path, self.side, crop, encoded)
        return classes

    def map_pixels(self, file: str, count: int, mode: Literal["r+", "w+"] = "r+") -> NDArray[np.uint8]:
        return np.asarray(np.memmap(file, np.uint8, mode, shape=(count, self.side, self.side, 3)))


class PictureReader:
    """Reads batches of pictures with Pillow. `names` and `places` of all samples are as for Pictures.decode."""

    def __init__(self, pictures: Pictures, names: NDArray[Any], places: NDArray[np.int64]) -> None:
        self.pictures, self._names, self._places = pictures, names, places

    def read(self, batches: Iterable[BatchRows]) -> Generator[Batch, None, None]:
        """Yield the batches in order, each in new arrays. Closing the generator ends the workers.

        Raises InputError for a damaged picture, and where a worker was killed.
        """
        images.load_pillow("imagenet_jpeg")  # here, so that its absence is one error and not one of each worker
        pictures, workers = self.pictures, self.pictures.workers
        if not workers:
            for batch in batches:
                pixels = np.empty((len(batch.rows), pictures.side, pictures.side, 3), np.uint8)
                yield self._make_batch(batch, pixels, [pictures.decode(pixels, *self._arguments(batch, batch.rows))])
            return
        pool = create_pool(workers)
        pending = deque[tuple[BatchRows, NDArray[np.uint8], int, list[Future[NDArray[np.int64]]]]]()

        def collect() -> Batch:
            batch, pixels, memory, tasks = pending.popleft()
            try:
                return self._make_batch(batch, pixels, [task.result() for task in tasks])
            finally:
                os.close(memory)

        try:
            for batch in batches:
                count = len(batch.rows)
                memory = os.memfd_create("scalebench-pictures")  # into which the workers decode
                file = f"/proc/{os.getpid()}/fd/{memory}"
                pixels, tasks = pictures.map_pixels(file, count, "w+"), []
                for part in np.array_split(np.arange(count), min(count, TASKS_OF_A_WORKER * workers)):
                    arguments = self._arguments(batch, batch.rows[part])
                    tasks.append(pool.submit(_decode_part, pictures, file, count, int(part[0]), *arguments))
                pending.append((batch, pixels, memory, tasks))
                if len(pending) > max(AHEAD_BATCHES, -(-2 * workers // count)):  # small batches occupy all workers, too
                    yield collect()
            while pending:
                yield collect()
        except BrokenProcessPool:
            raise InputError(
                f"a process that decodes pictures (dataset.workers={workers}) was killed: "
                "lower dataset.workers if it took too much memory"
            ) from None
        finally:
            pool.shutdown(cancel_futures=True)
            for _, _, memory, _ in pending:
                os.close(memory)

    def _arguments(self, batch: BatchRows, rows: NDArray[np.int64]) -> tuple[Any, ...]:
        return np.take(self._names, rows), np.take(self._places, rows), rows, batch.epoch

    def _make_batch(self, batch: BatchRows, pixels: NDArray[np.uint8], classes: list[NDArray[np.int64]]) -> Batch:
        return Batch(images.to_dtype(pixels, self.pictures.dtype), np.concatenate(classes), batch.global_samples)


def _decode_part(pictures: Pictures, file: str, count: int, first: int, *arguments: Any) -> NDArray[np.int64]:
    return pictures.decode(pictures.map_pixels(file, count)[first:], *arguments)


def create_pool(workers: int) -> ProcessPoolExecutor:
    """Return processes that leave Ctrl-C to this one, and that the kernel ends with the thread that submits to them."""
    # spawn instead of fork, since the caller may hold threads, locks or a CUDA context
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(workers, context, _prepare_worker, (os.getpid(),))


def _prepare_worker(parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    exit_with_parent.tie_to_parent(parent, signal.SIGKILL)
