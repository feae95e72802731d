"""The truths of `scalebench check --gpu`: figures of scalebench beside what they must be, and a verdict on each.

A judgement is a pure function of what was observed. The observations come from ranks (gpu_worker), from the contract's
ranks, and from runs of the program as users start them.
"""

from __future__ import annotations

import dataclasses
import math
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scalebench.analysis.collectives import bus_factor
from scalebench.analysis.load import load
from scalebench.core.json_files import read_json
from scalebench.core.machine.gpus import count_gpus, detect_gpus, read_gpu_room
from scalebench.core.process import build_python_command
from scalebench.core.spec import RunSpec
from scalebench.core.units import format_binary_bytes, format_bytes
from scalebench.testing.launch import UNEVEN_WORKLOAD, Refused, launch_checks, run_worker_module
from scalebench.testing.strategy_contract import ROUNDING_RTOL

PASS, FAIL, NOT_POSSIBLE = "pass", "fail", "not possible here"
# Relative. Both clocks of the timer are exact; a block ends with a synchronization, some 10 us after its last kernel. A
# busy host wakes the sleeping processes of `program` late.
TOLERANCES = {
    "timer": 0.02, "monitor": 0.03, "profiler": 0.05, "program": 0.1, "copy": 0.05, "all_reduce": 0.1, "bare": 0.05,
}  # fmt: skip
MIN_BANDWIDTH_BYTES = 2**20  # below, a single operation is mostly latency
FREED_BYTES = 2**26  # of memory that may be missing after it was full
SIMULATED_STEP_S = 0.1
MAX_RUN_S = 300.0
MAX_LOG_CHARS = 2000
SHORT_RUN = ("measure=quick", "measure.probes=false", "measure.evaluate=false", "measure.repeats=1")
# Steps of it keep a GPU busy for so long that the host, and with it the wrapper, is hidden, with the largest batch that
# fits into a memory of so many GiB; the data stay in memory.
GPU_BOUND = ("model=resnet50", "dataset.feed=fixed", "measure.warmup_max_s=2", "measure.max_s=4")
GPU_BOUND_BATCHES = {20: 128, 10: 64, 0: 32}
TITLES = {
    "device": "PyTorch sees the GPUs",
    "program": "a step of known length, through the whole program",
    "timer": "kernels of known length against the timer",
    "copy": "a copy of known bytes",
    "monitor": "steps with the monitor on and off",
    "memory": "recovery from out of memory",
    "profiler": "steps before and after the profiler",
    "all_reduce": "all-reduce against a plain loop",
    "bare": "bare_torch against ddp on one GPU",
    "one_gpu": "two ranks on one GPU over Gloo",
}
ONE_DEVICE_TRUTHS = ("timer", "copy", "monitor", "memory", "profiler")


@dataclass(frozen=True)
class Truth:
    """One line of the page. Figures are in the unit of `text`; None where there is no figure."""

    name: str
    verdict: str  # PASS, FAIL or NOT_POSSIBLE
    text: str  # the figures, or the reason
    measured: float | None = None
    expected: float | None = None
    tolerance: float | None = None  # relative
    detail: str = ""  # of a failure: the logs

    @property
    def title(self) -> str:
        """The name for people."""
        return TITLES.get(self.name, self.name)

    @property
    def answer(self) -> str:
        """Verdict and figures, or reason, in one line."""
        return f"{self.verdict}: {' '.join(self.text.split())}"


def judge(
    name: str,
    measured: float | None,
    expected: float | None,
    form: Callable[[float], str],
    tolerance: float | None = None,
) -> Truth:
    """Compare a figure with the expected one; `form` writes either. A figure that is missing or not finite fails.
    Without a tolerance it is that of TOLERANCES."""
    tolerance = TOLERANCES[name] if tolerance is None else tolerance
    values = (measured, expected)
    if any(value is None or not math.isfinite(value) or value <= 0 for value in values):
        return Truth(name, FAIL, f"no figure: measured {measured}, expected {expected}", *values, tolerance)
    assert measured is not None and expected is not None
    verdict = PASS if abs(measured / expected - 1) <= tolerance else FAIL
    text = f"{form(measured)}, expected {form(expected)} within {tolerance:.0%}"
    return Truth(name, verdict, text, measured, expected, tolerance)


def judge_device(facts: Mapping[str, Any] | None, gpus: int) -> Truth:
    """PyTorch has to see as many GPUs as NVML reports for this process."""
    if facts is None:
        return Truth("device", FAIL, f"PyTorch uses the CPU, and NVML reports {gpus} GPUs")
    text = f"{facts['count']} of {gpus}: {facts['name']}, compute capability {facts['capability']}"
    text += f", PyTorch {facts['torch']} for CUDA {facts['cuda']}"
    return Truth("device", PASS if facts["count"] == gpus else FAIL, text, facts["count"], gpus, 0.0)


def judge_seconds(name: str, observed: Mapping[str, Any]) -> Truth:
    """Compare the seconds of a kernel or a step, to no less than what the machine's own noise moves them by."""
    tolerance = max(TOLERANCES[name], observed.get("noise_share", 0.0))
    return judge(name, observed["measured_s"], observed["expected_s"], lambda s: f"{1e3 * s:.4g} ms", tolerance)


def judge_rates(name: str, size_bytes: float, *seconds: float | None) -> Truth:
    """Compare the rates of so many bytes in the seconds that were measured and expected."""
    measured, expected = (None if not each_s else size_bytes / each_s for each_s in seconds)
    return judge(name, measured, expected, lambda rate: f"{format_bytes(rate)}/s")


def judge_copy(observed: Mapping[str, Any]) -> Truth:
    """Compare the rates, of a copy whose bytes all have arrived."""
    if not observed["arrived"]:
        return Truth("copy", FAIL, f"the {observed['size_bytes']} bytes that arrived are others than those sent")
    return judge_rates("copy", observed["size_bytes"], observed["measured_s"], observed["expected_s"])


def judge_memory(observed: Mapping[str, Any]) -> Truth:
    """Running out of memory has to be an error called oom, after which steps run and the memory is free again."""
    status, before, after = observed["status"], observed["before_bytes"], observed["after_bytes"]
    if status != "oom":
        return Truth("memory", FAIL, f"a full memory gave {status or 'no error'} instead of the status oom")
    if before is not None and after < before - FREED_BYTES:
        text = f"{format_binary_bytes(after)} are free afterwards, and {format_binary_bytes(before)} were before"
        return Truth("memory", FAIL, text, after, before, FREED_BYTES / before)
    return Truth("memory", PASS, "status oom; steps run afterwards, and the memory is free again", after, before)


def judge_all_reduce(observed: Mapping[str, Any]) -> Truth:
    """Compare the bus bandwidth of all sizes above a mebibyte, which is limited by the link and not by its latency."""
    factor = bus_factor("all_reduce", observed["ranks"])
    sizes = {size: judge_rates("all_reduce", factor * size, *seconds) for size, *seconds in observed["sizes"]}
    judged = {size: line for size, line in sizes.items() if size >= MIN_BANDWIDTH_BYTES}
    if not judged:
        return Truth("all_reduce", FAIL, f"no size from {format_binary_bytes(MIN_BANDWIDTH_BYTES)} on")
    line = next((line for line in judged.values() if line.verdict == FAIL), judged[max(judged)])
    text = "; ".join(f"{format_binary_bytes(size)}: {line.text}" for size, line in sizes.items())
    return dataclasses.replace(line, text=f"bus bandwidth: {text}")


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


JUDGEMENTS: dict[str, Callable[[Mapping[str, Any]], Truth]] = {
    **{name: partial(judge_seconds, name) for name in ("timer", "monitor", "profiler")},
    "copy": judge_copy,
    "memory": judge_memory,
    "all_reduce": judge_all_reduce,
}


def try_truths(names: Sequence[str], observe: Callable[[], list[Truth]]) -> list[Truth]:
    """Return the lines of `observe`; where it cannot run or raises, one with that reason for each of `names`."""
    try:
        return observe()
    except (pytest.skip.Exception, Refused) as reason:  # the run is impossible here
        return [Truth(name, NOT_POSSIBLE, str(reason)) for name in names]
    except (Exception, pytest.fail.Exception) as error:
        text = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        return [Truth(name, FAIL, text, detail=str(error)[-MAX_LOG_CHARS:]) for name in names]


def judge_rank(measured: Mapping[str, Any], names: Sequence[str], failure: str = "") -> list[Truth]:
    """Judge what a rank has recorded; `failure` is the error of its process, if it failed."""
    lines = []
    for name in names:
        if name in measured["measured"]:
            lines.append(JUDGEMENTS[name](measured["measured"][name]))
        else:
            reason = measured["errors"].get(name) or failure.partition("\n")[0] or "it was not reached"
            lines.append(Truth(name, FAIL, reason, detail=failure[-MAX_LOG_CHARS:]))
    return lines


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
    measured = read_json(path)
    device = [judge_device(measured["device"], count_gpus())] if "device" in names else []
    return [*device, *judge_rank(measured, [name for name in names if name != "device"], failure)]


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
    seconds = {"measured_s": row["step_s"], "expected_s": SIMULATED_STEP_S}
    return [judge_seconds("program", seconds)]


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
