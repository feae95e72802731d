"""A dataset made chunk by chunk: what makes it what it is, and how it gets into the cache on all cores."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalebench.spec import InputError
from scalebench.workloads import cache

Arrays = tuple[NDArray[Any], NDArray[Any]]
# Starting processes takes 0.3 s, in which one core makes and writes about this much (100,000 curves).
POOL_BYTES = 240_000_000


@dataclass(frozen=True)
class Recipe:
    """A dataset made in chunks; equal fields (`make`, `chunk` and `pool_bytes` aside) mean equal files.

    `make(start, count)` returns inputs (count, *input_shape) and targets (count, *target_shape); it
    must depend on its arguments alone, and must be importable by name, since other processes call
    it. It is asked for `chunk` samples at a time. Raise `version` when its output changes. `details`
    (what JSON can hold) are whatever else the output depends on.
    """

    name: str
    version: int
    samples: int
    seed: int
    input_shape: tuple[int, ...]
    target_shape: tuple[int, ...]
    chunk: int
    make: Callable[[int, int], Arrays]
    input_dtype: str = "float32"
    target_dtype: str = "float32"
    details: Mapping[str, Any] = field(default_factory=dict)
    pool_bytes: int = POOL_BYTES  # a dataset of so many is worth several processes

    @property
    def size_bytes(self) -> int:
        """Bytes of both arrays, headers aside."""
        sample_bytes = np.dtype(self.input_dtype).itemsize * math.prod(self.input_shape)
        sample_bytes += np.dtype(self.target_dtype).itemsize * math.prod(self.target_shape)
        return self.samples * sample_bytes

    def ensure(self, cache_dir: Path, workers: int | None = None) -> Path:
        """Folder of this dataset under `cache_dir`, made first if it is not there in good order.

        `workers`: processes that make it; None takes every core this process may use, or this
        process alone when the dataset is small. Raises InputError when it cannot be written.
        """
        identity = {
            "version": self.version,
            "samples": self.samples,
            "seed": self.seed,
            "inputs": [list(self.input_shape), self.input_dtype],
            "targets": [list(self.target_shape), self.target_dtype],
            **self.details,
        }
        write = partial(self.write, workers=workers)
        return cache.ensure(cache_dir, self.name, identity, self.size_bytes, write)

    def write(self, folder: Path, workers: int | None = None) -> None:
        """Make both arrays in `folder`; for `workers` see ensure. OSError when the disk is full."""
        inputs = cache.create(folder / cache.INPUTS, (self.samples, *self.input_shape), self.input_dtype)
        targets = cache.create(folder / cache.TARGETS, (self.samples, *self.target_shape), self.target_dtype)
        starts = range(0, self.samples, self.chunk)
        if workers is None:
            workers = _cores() if self.size_bytes >= self.pool_bytes else 1
        if workers == 1:
            for start in starts:
                self.fill(inputs, targets, start)
        else:
            self._fill_in_pool(folder, starts, min(workers, len(starts)))

    def fill(self, inputs: NDArray[Any], targets: NDArray[Any], start: int) -> None:
        """One chunk into its place in the arrays."""
        rows = slice(start, min(start + self.chunk, self.samples))
        inputs[rows], targets[rows] = self.make(start, rows.stop - start)

    def _fill_in_pool(self, folder: Path, starts: range, workers: int) -> None:
        # spawn, not fork: the caller may hold threads, locks or a CUDA context.
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_begin, initargs=(self, folder))
        try:
            jobs: list[Future[None]] = [pool.submit(_fill_files, start) for start in starts]
            for job in as_completed(jobs):
                job.result()
        except BrokenProcessPool:
            raise InputError(
                f"a process that makes dataset {self.name} in {folder.parent} was killed (out of memory?): "
                "lower dataset.size or set dataset.cache=/another/folder"
            ) from None
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _cores() -> int:
    """Cores this process may use, which pinning can make fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_worker: dict[str, Callable[[int], None]] = {}  # of a pool worker: what it does with a chunk's start


def _begin(recipe: Recipe, folder: Path) -> None:
    """Pool worker set-up. The recipe, which may name a million files, comes once and not with every chunk."""
    _end_with_parent()
    _worker["fill"] = partial(recipe.fill, *cache.open_arrays(folder, "r+"))


def _fill_files(start: int) -> None:
    """One chunk, straight into the files: no sample ever travels between processes."""
    _worker["fill"](start)


def _end_with_parent() -> None:
    """Ctrl-C is the parent's to handle, and a killed parent leaves no orphan.

    A pool worker holds both ends of its queue and so would wait for ever after its parent's death.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_exit_after, args=(parent.sentinel,), daemon=True).start()


def _exit_after(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)
