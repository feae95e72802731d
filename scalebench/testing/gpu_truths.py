"""The truths of `scalebench check --gpu`: figures of scalebench beside what they must be, and a verdict on each.

The figures come from ranks (gpu_worker, which has the judgements), from the contract's ranks, and from runs of the
program as users start them.
"""

from __future__ import annotations

import dataclasses
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scalebench.analysis.load import load
from scalebench.core.json_files import read_record
from scalebench.core.machine.gpus import detect_gpus, read_gpu_room
from scalebench.core.process import build_python_command
from scalebench.core.spec import RunSpec
from scalebench.testing.gpu_worker import FAIL, NOT_POSSIBLE, Truth, judge, judge_seconds
from scalebench.testing.launch import UNEVEN_WORKLOAD, Refused, launch_checks, run_worker_module
from scalebench.testing.strategy_contract import ROUNDING_RTOL

SIMULATED_STEP_S = 0.1
MAX_RUN_S = 300.0
MAX_LOG_CHARS = 2000
SHORT_RUN = ("measure=quick", "measure.probes=false", "measure.evaluate=false", "measure.repeats=1")
# Steps of it keep a GPU busy for so long that the host, and with it the wrapper, is hidden, with the largest batch that
# fits into a memory of so many GiB; the data stay in memory.
GPU_BOUND = ("model=resnet50", "dataset.feed=fixed", "measure.warmup_max_s=2", "measure.max_s=4")
GPU_BOUND_BATCHES = {20: 128, 10: 64, 0: 32}


def judge_losses(actual: Sequence[float], expected: Sequence[float], tolerance: float) -> Truth:
    """Compare the losses of the same steps."""
    if len(actual) != len(expected) or not actual or not np.isfinite([*actual, *expected]).all():
        return Truth("one_gpu", FAIL, f"{len(actual)} losses, expected {len(expected)}, all of them finite numbers")
    worst = max(range(len(actual)), key=lambda step: abs(actual[step] / expected[step] - 1))
    line = judge("one_gpu", actual[worst], expected[worst], lambda loss: f"{loss:.6g}", tolerance)
    within = f"within {tolerance:.2%}" if tolerance >= 1e-4 else f"within {tolerance:g}"
    text = (
        f"losses of {len(actual)} steps; the farthest is {actual[worst]:.6g}, expected {expected[worst]:.6g} {within}"
    )
    return dataclasses.replace(line, text=text)


def try_truths(names: Sequence[str], observe: Callable[[], list[Truth]]) -> list[Truth]:
    """Return the lines of `observe`; where it cannot run or raises, one with that reason for each of `names`."""
    try:
        return observe()
    except (pytest.skip.Exception, Refused) as reason:  # the run is impossible here
        return [Truth(name, NOT_POSSIBLE, str(reason)) for name in names]
    except (Exception, pytest.fail.Exception) as error:
        text = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        return [Truth(name, FAIL, text, detail=str(error)[-MAX_LOG_CHARS:]) for name in names]


def observe_rank(strategy: str, gpus: int, names: Sequence[str], folder: Path, *more: str) -> list[Truth]:
    """Run the truths of a rank with a strategy. `more` are further overrides."""
    overrides = [f"strategy={strategy}", f"gpus={gpus}", "measure=quick", "measure.hang_s=120", *more]
    failure = ""
    try:
        run_worker_module(overrides, folder, "scalebench.testing.gpu_worker")
    except pytest.fail.Exception as error:
        failure = str(error)
    except Refused as reason:
        if "device" not in names:
            raise
        others = [Truth(name, NOT_POSSIBLE, str(reason)) for name in names if name != "device"]
        return [Truth("device", FAIL, str(reason)), *others]
    path = folder / "truths0.json"
    if not path.exists():
        raise RuntimeError(failure or "rank 0 left no record")
    lines = {line.name: line for line in read_record(path, list[Truth])}
    not_reached = failure.partition("\n")[0] or "it was not reached"
    lines = {name: lines.get(name, Truth(name, FAIL, not_reached)) for name in names}
    return [dataclasses.replace(line, detail=failure[-MAX_LOG_CHARS:]) if line.verdict == FAIL else line
            for line in lines.values()]  # fmt: skip


def put_on_first_device(spec: RunSpec) -> RunSpec:
    """Return the run with all its ranks on the first device, though there may be no other."""
    places = [dataclasses.replace(place, devices=[0]) for place in spec.places]
    return dataclasses.replace(spec, places=places, unsupported=None)


def observe_two_ranks_on_one_gpu(folder: Path, *more: str) -> list[Truth]:
    """Train with two ranks on the first GPU over Gloo, and without a group; their losses are the same."""
    modes = {gpu.compute_mode for gpu in detect_gpus().gpus} - {None, "default"}
    if modes:
        pytest.skip(f"a GPU lets one process in: its compute mode is {', '.join(sorted(map(str, modes)))}")
    same = [*UNEVEN_WORKLOAD, *more, f"dataset.cache={folder / 'data'}"]
    bare = launch_checks([*same, "strategy=bare_torch", "gpus=1"], folder / "bare")
    # Room for two devices on this node, of which there may be one.
    room = [] if "hardware=cpu" in more else ["hardware.gpus_per_node=2"]
    two = launch_checks([*same, "strategy=ddp_gloo", "gpus=2", *room], folder / "two", put_on_first_device)
    tolerance = two.spec.config.strategy.tolerance or ROUNDING_RTOL
    return [judge_losses(two.losses(), bare.losses(), tolerance)]


def run_program(arguments: Sequence[str], folder: Path) -> list[dict[str, Any]]:
    """Run scalebench as a user does; return the rows of its runs. Raise RuntimeError with the end of its output."""
    command = build_python_command("-m", "scalebench", *arguments, *SHORT_RUN, f"dataset.cache={folder / 'data'}")
    command += [f"hydra.{'sweep' if '--multirun' in arguments else 'run'}.dir={folder / 'runs'}"]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=MAX_RUN_S
    )
    if not (folder / "runs").is_dir():
        raise RuntimeError(f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}")
    rows: list[dict[str, Any]] = load(folder / "runs").to_dict("records")
    for row in rows:
        if row["status"] == "unsupported":
            pytest.skip(str(row["reason"]))
        if row["status"] != "ok":
            raise RuntimeError(f"{row['strategy']}: {row['status']}, {row['reason']}\n{done.stdout}\n{done.stderr}")
    return rows


def observe_simulated_step(folder: Path) -> list[Truth]:
    """Let the whole program measure steps that sleep; this needs no GPU."""
    folder.mkdir()
    step = f"strategy.options.step_s={SIMULATED_STEP_S}"
    (row,) = run_program(["strategy=simulated", "hardware=cpu", "gpus=1", step], folder)
    return [judge_seconds("program", row["step_s"], SIMULATED_STEP_S)]


def choose_gpu_bound(total_bytes: int | None) -> list[str]:
    """Return a workload whose steps are limited by a GPU with so much memory."""
    gib = (total_bytes or 0) / 2**30
    batch = next(batch for at_least, batch in GPU_BOUND_BATCHES.items() if gib >= at_least)
    return [*GPU_BOUND, f"train.batch_per_device={batch}", f"dataset.size={4 * batch}"]


def observe_bare_and_ddp(folder: Path, workload: Sequence[str] = ()) -> list[Truth]:
    """Compare the framework with its wrapper on one device, in turns: there is nothing to synchronize. The workload is
    one that keeps the smallest GPU busy, or this one."""
    folder.mkdir()
    workload = workload or choose_gpu_bound(min((room.total_bytes or 0 for room in read_gpu_room()), default=0))
    strategies = ["--multirun", "strategy=bare_torch,ddp", "gpus=1", "baseline=none", *workload]
    rates = {row["strategy"]: row["throughput_samples_per_s"] for row in run_program(strategies, folder)}
    return [judge("bare", rates.get("ddp"), rates.get("bare_torch"), lambda rate: f"{rate:,.0f} samples/s")]
