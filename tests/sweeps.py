"""Folders of sweeps made by hand, with known figures: for reports, comparisons and everything else above the frame."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scalebench.monitor_records import Monitor
from scalebench.probe_records import Probes
from scalebench.results import Quality, Result, Sync, write_result
from tests.helpers import rank, record, simulated_config
from tests.report.probed_run import OPERATIONS, probes

BATCH = 10  # samples a device
BARE_S = 0.01  # of an update of the bare baseline
EFFICIENCY = {"ddp_gloo": 0.9, "horovod_gloo": 0.8, "lightning_ddp_gloo": 0.7}  # what is kept at each doubling
BASELINES = {"mirrored": "bare_tensorflow", "simulated": "simulated"}


def step_s(strategy: str, gpus: int) -> float:
    """Of an update: the bare one's, longer by what the strategy loses at one device (5 %) and at each doubling."""
    if strategy.startswith("bare_"):
        return BARE_S
    doublings = gpus.bit_length() - 1
    return BARE_S / 0.95 / EFFICIENCY.get(strategy, 0.85) ** doublings


def run(
    strategy: str, gpus: int, repeat: int = 0, noise: float = 0.01, blocks: int = 32, minute: int = 0, **changes: Any
) -> Result:
    """One ok run; blocks of two updates whose times scatter by `noise`, alike at each call. `changes` as for record."""
    chance = random.Random(f"{strategy} {gpus} {repeat} {sorted(map(str, changes))}")
    mean_s = 2 * step_s(strategy, gpus)
    seconds = [mean_s * (1 + noise * chance.uniform(-1, 1)) for _ in range(blocks)]
    losses = [1.0 / (1 + number) for number in range(blocks)]
    memory = {"rss_peak_bytes": 512_000_000, "peak_memory_bytes": [None]}
    ranks = [
        rank(k, seconds, block_losses=losses, probes=_probes(strategy, gpus), warmup_found_steps=4,
             warmup_block_steps=1, warmup_block_s=[0.1] * 4 + [0.01] * 12, **memory)
        for k in range(gpus)
    ]  # fmt: skip
    alone = gpus == 1 or strategy.startswith("bare_")
    made = {
        "sync": Sync() if alone else Sync(message_bytes=[400_000, 213_764]),
        "monitor": Monitor(gpu_util_mean=0.5 + 0.05 * gpus, gpu_power_w_mean=100.0 * gpus, energy_j=300.0 * gpus,
                           energy_from="counter", sm_clock_mhz_min=1400.0, cpu_util_mean=0.9),
        "quality": Quality(final_loss=losses[-1], metric_name="mse", metric=0.01),
        "started_at": f"2026-01-01T{repeat:02d}:{minute:02d}:00.000+00:00",
        "run_id": f"{strategy}-{gpus}-{repeat}",
    }  # fmt: skip
    baseline = strategy if strategy.startswith("bare_") else BASELINES.get(strategy, "bare_torch")
    return record(strategy, gpus, ranks=ranks, baseline=baseline, repeat=repeat, **{**made, **changes})


def sweep(
    folder: Path,
    strategies: Sequence[str] = ("bare_torch", "ddp_gloo", "horovod_gloo"),
    gpus: Sequence[int] = (1, 2, 4),
    repeats: int = 1,
    **changes: Any,
) -> list[Result]:
    """A folder a run, numbered; a bare strategy on one device only. What was written."""
    wanted = [
        (strategy, count, repeat)
        for repeat in range(repeats)
        for strategy in strategies
        for count in (gpus if not strategy.startswith("bare_") else gpus[:1])
    ]
    found = [run(*each, minute=number % 60, **changes) for number, each in enumerate(wanted)]
    write(folder, found)
    return found


def write(folder: Path, found: Sequence[Result]) -> None:
    """Each as <folder>/<n>/result.json, after those that are there."""
    first = len(list(folder.glob("*/result.json")))
    for number, result in enumerate(found, first):
        (folder / str(number)).mkdir(parents=True)
        write_result(result, folder / str(number))


def failed(strategy: str = "ddp_gloo", gpus: int = 8, status: str = "failed", **changes: Any) -> Result:
    """A run that went wrong; its log is rank0.log, which the caller writes."""
    return record(strategy, gpus, None, status=status, run_id=f"{strategy}-{gpus}-{status}", **changes)


def strong(batch: int, gpus: int) -> dict[str, Any]:
    """Fields of Config for strong scaling: a global batch of `batch`."""
    config = simulated_config()
    return {"scaling": "strong", "train": dataclasses.replace(config.train, global_batch=batch,
                                                              batch_per_device=batch // gpus)}  # fmt: skip


def _probes(strategy: str, gpus: int) -> Probes:
    """Half of what is lost over devices is exposed sync, a tenth of the bare update is data."""
    if gpus == 1 or strategy.startswith("bare_"):
        return Probes(reasons={"exposed": "one device has nobody to exchange with"}, steps=2,
                      on_s=[2 * step_s(strategy, 1)] * 8, fixed_s=[1.8 * step_s(strategy, 1)] * 8)  # fmt: skip
    on_s, one_s = step_s(strategy, gpus), step_s(strategy, 1)
    off_s = on_s - (on_s - one_s) / 2
    wobble = [1 + 0.001 * (-1) ** number for number in range(8)]
    return dataclasses.replace(
        probes(),
        steps=2,
        on_s=[2 * on_s * w for w in wobble],
        off_s=[2 * off_s for _ in wobble],
        fixed_s=[2 * (off_s - BARE_S / 10) for _ in wobble],
        profile=dataclasses.replace(probes().profile, operations=OPERATIONS[:2]) if probes().profile else None,
    )
