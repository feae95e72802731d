"""Batches of pictures that are decoded during training, in worker processes ahead of the batch that is trained.

The workers of a process share a ring of pictures in memory with it. Tasks (where in the ring, how many pictures, which
epoch) are messages in one socket that all workers read, so that the next idle one takes the next task. What happens to
a picture depends on (seed, epoch, row) alone, never on the worker.
"""

from __future__ import annotations

import json
import mmap
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scalebench.core import exit_with_parent
from scalebench.core.errors import InputError
from scalebench.core.process import build_python_command
from scalebench.workloads.datasets import images
from scalebench.workloads.source import Batch, BatchRows

AHEAD_BATCHES = 2  # finished or in work besides the one that is trained, as many as PyTorch's DataLoader has
MAX_AHEAD_BATCHES = 63  # of very small ones, to occupy many workers
MAX_TASKS = 128  # these small messages wait in a socket, which holds about 270 of them
CENTERED = -1  # in the place of an epoch: the central square, for validation
MAX_ERROR_BYTES = 2000
END_LIMIT_S = 5.0
_TASK = struct.Struct("=qqqq")  # number of the batch, first place in the ring, pictures, epoch


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
            decode_rows(self.pictures, names, batch.rows, batch.epoch, pixels)
            yield self._make_batch(batch, pixels)

    def _read_ahead(self, batches: Iterator[BatchRows]) -> Generator[Batch, None, None]:
        first = next(batches, None)
        if first is None:
            return
        size, workers = len(first.rows), self.pictures.workers
        ahead = min(max(AHEAD_BATCHES, -(-2 * workers // size)), MAX_AHEAD_BATCHES)
        with closing(DecoderPool(self.pictures, (ahead + 1) * size, MAX_TASKS // (ahead + 1))) as pool:
            queue: deque[BatchRows] = deque()
            for batch in chain([first], batches):
                while len(queue) > ahead or not pool.has_room(len(batch.rows)):
                    yield self._make_batch(queue.popleft(), pool.collect())
                pool.submit(batch)
                queue.append(batch)
            while queue:
                yield self._make_batch(queue.popleft(), pool.collect())

    def _make_batch(self, batch: BatchRows, pixels: NDArray[np.uint8]) -> Batch:
        inputs = images.to_dtype(pixels, self.pictures.dtype)
        return Batch(inputs, np.take(self.targets, batch.rows), batch.global_samples)


def decode_rows(
    pictures: Pictures, names: NDArray[np.bytes_], rows: NDArray[np.int64], epoch: int | None, out: NDArray[np.uint8]
) -> None:
    """Decode the pictures of the rows into `out`."""
    crops = pictures.draw_crops(rows, epoch)
    for place, row in enumerate(rows.tolist()):
        out[place] = images.decode(pictures.path(names, row), pictures.side, None if crops is None else crops[place])


@dataclass
class RingBatch:
    """A batch that has been submitted to the workers."""

    first: int  # picture in the ring, counted from its creation on
    size: int
    open_tasks: int


class Worker(NamedTuple):
    """A worker process, and the socket on which it reports finished tasks."""

    process: subprocess.Popen[bytes]
    results: socket.socket


class Ring:
    """Rows and pixels of `size` pictures in memory that is shared with the workers."""

    def __init__(self, descriptor: int, size: int, side: int) -> None:
        memory = mmap.mmap(descriptor, ring_bytes(size, side))
        self.rows = np.frombuffer(memory, np.int64, size)
        self.pixels = np.frombuffer(memory, np.uint8, offset=8 * size).reshape(size, side, side, 3)


def ring_bytes(size: int, side: int) -> int:
    return size * (8 + side * side * 3)


class DecoderPool:
    """Worker processes that decode batches in the order in which these are submitted, into a ring of `size` pictures.

    The kernel ends the workers when the thread ends that created the pool.
    """

    def __init__(self, pictures: Pictures, size: int, max_tasks: int) -> None:
        """A batch is cut into eight tasks for each worker, so that all end at nearly one time, and into `max_tasks` at
        most."""
        self._size, self._max_tasks = size, min(max_tasks, 8 * pictures.workers)
        memory = os.memfd_create("scalebench-pictures")
        os.truncate(memory, ring_bytes(size, pictures.side))
        self._ring = Ring(memory, size, pictures.side)
        # Each message of such a socket goes to one reader, as it was sent.
        self._tasks, tasks = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._results = selectors.DefaultSelector()
        self._workers: list[Worker] = []
        settings = {"pictures": asdict(pictures), "size": size, "parent": os.getpid(), "memory": memory}
        with closing(tasks):
            for _ in range(pictures.workers):
                self._start_worker(settings | {"tasks": tasks.fileno()})
        os.close(memory)
        self._batches: deque[RingBatch] = deque()
        self._open: dict[int, RingBatch] = {}
        self._end = self._number = 0

    def _start_worker(self, settings: dict[str, Any]) -> None:
        results, worker_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with closing(worker_end):
            descriptors = (settings["tasks"], settings["memory"], worker_end.fileno())
            text = json.dumps(settings | {"results": worker_end.fileno()})
            command = build_python_command("-c", f"from {__name__} import main; main()", text)
            process = subprocess.Popen(command, pass_fds=descriptors, stdin=subprocess.DEVNULL)
        self._workers.append(Worker(process, results))
        self._results.register(results, selectors.EVENT_READ, self._workers[-1])

    def has_room(self, count: int) -> bool:
        """Return whether the ring has room for so many more pictures."""
        begin = self._batches[0].first if self._batches else self._end
        return self._end + count - begin <= self._size

    def submit(self, batch: BatchRows) -> None:
        """Have the workers decode a batch, for which the ring has room."""
        count, first = len(batch.rows), self._end
        places = (first + np.arange(count)) % self._size
        self._ring.rows[places] = batch.rows
        parts = np.array_split(places, min(count, self._max_tasks))
        spans = [span for part in parts for span in np.split(part, np.flatnonzero(part[1:] == 0) + 1)]
        ring_batch = RingBatch(first, count, len(spans))
        self._batches.append(ring_batch)
        self._open[self._number] = ring_batch
        epoch = CENTERED if batch.epoch is None else batch.epoch
        with suppress(BrokenPipeError):  # all workers have ended, which `collect` reports
            for span in spans:
                self._tasks.send(_TASK.pack(self._number, span[0], len(span), epoch))
        self._number, self._end = self._number + 1, first + count

    def collect(self) -> NDArray[np.uint8]:
        """Wait for the oldest batch, and return its pictures."""
        batch = self._batches[0]
        while batch.open_tasks:
            for key, _ in self._results.select():
                self._read_result(key.data)
        self._batches.popleft()
        return self._ring.pixels[(batch.first + np.arange(batch.size)) % self._size]

    def _read_result(self, worker: Worker) -> None:
        try:
            message = worker.results.recv(8 + MAX_ERROR_BYTES)
        except ConnectionResetError:
            message = b""
        if not message:
            status = worker.process.wait()
            how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with exit status {status}"
            raise RuntimeError(f"a process that decodes pictures (dataset.workers={len(self._workers)}) {how}")
        if len(message) > 8:
            raise InputError(message[8:].decode(errors="replace"))
        number = int.from_bytes(message, sys.byteorder)
        self._open[number].open_tasks -= 1
        if not self._open[number].open_tasks:
            del self._open[number]

    def close(self) -> None:
        """End the workers: each ends by itself when the socket of tasks is closed."""
        self._tasks.close()
        self._results.close()
        for worker in self._workers:
            worker.results.close()
        for worker in self._workers:
            with suppress(subprocess.TimeoutExpired):
                worker.process.wait(END_LIMIT_S)
            worker.process.kill()
            worker.process.wait()


def work(settings: dict[str, Any]) -> None:
    """Decode what the tasks say until there are no more."""
    pictures = Pictures(**settings["pictures"])
    names, ring = pictures.load_names(), Ring(settings["memory"], settings["size"], pictures.side)
    tasks, results = (socket.socket(fileno=settings[name]) for name in ("tasks", "results"))
    while message := tasks.recv(_TASK.size):
        number, first, count, epoch = _TASK.unpack(message)
        reply, span = number.to_bytes(8, sys.byteorder), slice(first, first + count)
        try:
            decode_rows(pictures, names, ring.rows[span], None if epoch == CENTERED else epoch, ring.pixels[span])
        except InputError as error:
            reply += str(error).encode()[:MAX_ERROR_BYTES]
        results.send(reply)


def main() -> None:
    """Run a worker, with its settings as the only argument."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the launcher's, which ends the run
    settings = json.loads(sys.argv[1])
    exit_with_parent.tie_to_parent(settings["parent"], signal.SIGKILL)
    with suppress(BrokenPipeError, ConnectionResetError):  # the reader was closed
        work(settings)
