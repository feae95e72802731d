"""Decoding pictures of 224 px with worker processes, against torch.utils.data.DataLoader with the same transforms.

Target: at least 0.95 of its pictures/s, and the cores of all workers busy. Both read the same JPEG files of 500 x 375
px with Pillow, crop and flip them in as many processes, and give batches of bytes; they alternate, each time with new
processes, of which the first batches are left out. On a busy machine compare CPU seconds.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
import torch
from PIL import Image

from benchmarks.spread import format_ratios
from scalebench.workloads.datasets import images
from scalebench.workloads.datasets.picture_reader import PictureReader, Pictures
from scalebench.workloads.source import Source

TURNS = int(os.environ.get("BENCHMARK_TURNS", "7"))
PICTURES, BATCH, SIDE, WORKERS = 192, 32, 224, 2
WARMUP_BATCHES, BATCHES = 4, 20
NAMES = np.array([f"{number}.JPEG".encode() for number in range(PICTURES)])


class Turn(NamedTuple):
    seconds: float
    cpu_s: float  # of this process and its workers


class DecodedPictures(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """The same pictures and crops for a DataLoader; an item is (epoch, row)."""

    def __init__(self, pictures: Pictures) -> None:
        self._pictures = pictures

    def __getitem__(self, item: tuple[int, int]) -> tuple[torch.Tensor, int]:
        epoch, row = item
        crop = images.draw_crops(self._pictures.seed, epoch, np.array([row]))[0]
        pixels = images.decode(f"{self._pictures.root}/{NAMES[row].decode()}", SIDE, crop)
        return torch.from_numpy(pixels.copy()), row % 10


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        pictures = make_pictures(Path(folder))
        turns: dict[str, list[tuple[float, float]]] = {"DataLoader": [], "scalebench": []}
        for _ in range(TURNS):
            turns["DataLoader"].append(measure(lambda: load_with_torch(pictures)))
            turns["scalebench"].append(measure(lambda: read_ahead(pictures)))
    count = BATCHES * BATCH
    for name, measured in turns.items():
        seconds, cpu_s = np.array(measured).T
        busy = np.median(cpu_s / seconds)
        print(f"{name}: {count / np.median(seconds):.0f} pictures/s, {busy:.2f} cores busy, "
              f"{1e3 * np.median(cpu_s) / count:.2f} ms of CPU a picture")  # fmt: skip
    for index, label in enumerate(("pictures/s", "pictures per CPU second")):
        loader_s, reader_s = (np.array([turn[index] for turn in turns[name]]) for name in turns)
        print(f"{label}, scalebench over DataLoader: {format_ratios(loader_s, reader_s)}", flush=True)


def make_pictures(folder: Path) -> Pictures:
    """Write smooth random pictures, which compress about as photographs do."""
    rng = np.random.default_rng(0)
    for name in NAMES:
        small = Image.fromarray(rng.integers(0, 255, (47, 63, 3), dtype=np.uint8))
        small.resize((500, 375), Image.Resampling.BICUBIC).save(folder / name.decode(), quality=90)
    return Pictures(str(folder), SIDE, "uint8", 0, True, WORKERS)


def load_with_torch(pictures: Pictures) -> Iterator[Any]:
    order = ((epoch, row) for epoch in itertools.count() for row in np.random.default_rng(epoch).permutation(PICTURES))
    sampler = torch.utils.data.BatchSampler(order, BATCH, drop_last=True)
    loader = torch.utils.data.DataLoader(DecodedPictures(pictures), batch_sampler=sampler, num_workers=WORKERS)
    yield from loader


def read_ahead(pictures: Pictures) -> Iterator[Any]:
    targets = np.arange(PICTURES) % 10
    reader = PictureReader(pictures, NAMES, targets)
    source = Source(targets, targets, global_batch=BATCH, seed=0, replica=0, replicas=1, reader=reader)
    for batch in source:
        yield torch.from_numpy(batch.inputs), torch.from_numpy(batch.targets)


def measure(create: Callable[[], Iterator[Any]]) -> Turn:
    with closing(create()) as batches:  # type: ignore[type-var]
        for _ in range(WARMUP_BATCHES):
            next(batches)
        begin_s, begin_cpu_s = time.perf_counter(), used_cpu_s()
        for _ in range(BATCHES):
            next(batches)
        return Turn(time.perf_counter() - begin_s, used_cpu_s() - begin_cpu_s)


def used_cpu_s() -> float:
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    return sum(sum(process.cpu_times()[:2]) for process in processes)


if __name__ == "__main__":
    main()
