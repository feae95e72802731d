"""Runs and records for tests: simulated runs of the real program, and results made by hand with known figures."""

import contextlib
import dataclasses
import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import msgspec
import psutil

from scalebench.config.resolve import resolve
from scalebench.core import result
from scalebench.core.config_files import read_strategy_config
from scalebench.core.config_fingerprint import compute_fingerprint
from scalebench.core.machine.machine import Machine
from scalebench.core.result import SCHEMA_VERSION, RankRecord, Result
from scalebench.core.spec import Config, DatasetSpec, HardwareSpec, MeasureSpec, ModelSpec, StrategySpec, TrainSpec

S = TypeVar("S")
T = TypeVar("T")

MODEL = ModelSpec("materials_cnn", input_shape=[200, 3], target_shape=[2], batch_per_device=10)
# Over as soon as there are 64 blocks, or in a third of a second.
SHORT = MeasureSpec(
    warmup_steps=5, warmup_max_s=0.1, block_s=0.004, min_s=0.0, max_s=0.3, target=0.5, hang_s=60.0, timeout_s=120.0,
    probes=False, probe_s=0.1, monitor=False,
)  # fmt: skip
MACHINE = Machine(
    hostname="node", cpu_model="a processor", cpus=2, cpu_quota=None, cpus_physical=2, memory_bytes=2**33,
    numa_nodes=1, gpus=[], topology=None, driver_version=None, cuda_driver_version=None, os="Linux", python="3.11",
    versions={}, environment={}, git_commit=None, container=None,
)  # fmt: skip


def simulated_config(options=None, measure=None, size=64, **changes):
    """Make the config of a short simulated run; `changes` are fields of Config."""
    return Config(
        **{
            "model": MODEL,
            "dataset": DatasetSpec("materials", size=size),
            "strategy": StrategySpec("simulated", baseline="simulated", options=options or {}),
            "hardware": HardwareSpec("cpu", devices="cpu", gpus_per_node=2),
            "measure": dataclasses.replace(SHORT, **(measure or {})),
            "train": TrainSpec(batch_per_device=10),
            "gpus": 1,
            **changes,
        }
    )


def simulated_spec(gpus=1, options=None, measure=None, **changes):
    return resolve(simulated_config(options, measure, gpus=gpus, **changes))


def in_parallel(work, cases, at_once=6):
    """Return the result of `work` for each case; runs mostly sleep, so many of them share the cores."""
    cases = list(cases)
    with ThreadPoolExecutor(at_once) as pool:
        return dict(zip(cases, pool.map(work, cases), strict=True))


def wait_until(condition, limit_s=30.0):
    """Return the first true answer; AssertionError when there is none in time."""
    deadline_s, interval_s = time.monotonic() + limit_s, 0.01
    while not (answer := condition()):
        assert time.monotonic() < deadline_s, "the condition did not hold in time"
        time.sleep(interval_s)
        interval_s = min(1.2 * interval_s, 0.1)  # looking at all processes takes long
    return answer


def find_running(pids):
    """Return those of the processes that still run; zombies do not."""
    running = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            if psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
                running.append(pid)
    return running


def find_run_processes(folder):
    """Return the ranks and the monitor of the run in `folder`, whatever their parents are now. Forked ranks, whose
    command is that of their zygote, write their log there."""
    pids, modules = [], {b"scalebench.runner.worker", b"scalebench.measure.monitor"}
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it is gone, or of the kernel
            with open(f"/proc/{pid}/cmdline", "rb", 0) as file:
                command = file.read().split(b"\0")
            is_named = os.fsencode(folder) in command and modules & set(command)
            if is_named or os.path.dirname(os.readlink(f"/proc/{pid}/fd/1")) == str(folder):
                pids.append(int(pid))
    return find_running(pids)


class StepLosses:
    """An observer of a timed loop that keeps the mean loss of each step."""

    over = False

    def __init__(self):
        self.values = []

    def steps_left(self):
        return None

    def on_step(self):
        """Do nothing: losses are fetched at the ends of blocks."""

    def on_block(self, block):
        self.values += [loss_sum / samples for loss_sum, samples in block.parts]


def rank(number=0, seconds=None, samples=None, **changes):
    """Make the record of a rank with the `seconds` of its blocks of two steps."""
    seconds = seconds or []
    return RankRecord(
        **{
            "rank": number,
            "hostname": "node",
            "pid": 1000 + number,
            "block_steps": 2 if seconds else None,
            "block_s": seconds,
            "block_samples": [20] * len(seconds) if samples is None else samples,
            "block_losses": [0.5] * len(seconds),
            "train_samples": 1000 if seconds else None,
            "steps_per_epoch": 100 if seconds else None,
            **changes,
        }
    )


def record(
    strategy="ddp",
    gpus=1,
    block_s=0.1,
    run_id="",
    status="ok",
    ranks=None,
    baseline="bare_torch",
    independent=False,
    **changes,
):
    """Make a complete result whose blocks of two steps of 10 samples per device take `block_s`, within 1 %.

    `changes` are fields of Config, which are in the spec too, or of Result. Without `block_s` nothing was measured.
    """
    fields = {f.name for f in dataclasses.fields(Config)}
    config = simulated_config(gpus=gpus)
    file = read_strategy_config(strategy)  # empty for a name of the test's own
    facts = {key: file[key] for key in ("requires", "sync", "reduces_on", "max_gpus") if key in file}
    config.strategy = StrategySpec(strategy, framework="torch", baseline=baseline, independent=independent, **facts)
    config = dataclasses.replace(config, **{k: v for k, v in changes.items() if k in fields})
    if ranks is None:
        seconds = [] if block_s is None else [block_s * (1 + 0.01 * (-1) ** (i // 2)) for i in range(32)]
        ranks = [rank(k, seconds) for k in range(gpus if seconds else 0)]
    first = ranks[0] if ranks else None
    batch = config.train.batch_per_device
    made = {
        "schema_version": SCHEMA_VERSION,
        "run_id": run_id or f"{strategy}-{gpus}-{config.repeat}",
        "started_at": "2026-01-01T00:00:00.000+00:00",
        "status": status,
        "reason": None if status == "ok" else "failed as configured",
        "log": None if status == "ok" else "rank0.log",
        "fingerprint": compute_fingerprint(config, gpus, "cpu"),
        "spec": msgspec.to_builtins(config),
        "workload": result.Workload(
            config.model.name, 153441, 613764, 1e6, config.dataset.name, first.train_samples if first else None,
            first.steps_per_epoch if first else None, "host", "none", [200, 3], "float32", "default",
        ),
        "scale": result.Scale(
            strategy, "torch", "2.9", "gloo", "gloo", config.hardware.name, "cpu", gpus, 1, gpus, config.scaling,
            batch, batch * gpus, independent, config.repeat, config.seed, baseline,
        ),
        "phases": result.Phases(launch_s=0.5, measure_s=3.2, wall_s=5.0),
        "ranks": ranks,
        "sync": result.Sync(),
        "monitor": result.MonitorRecord(),
        "quality": result.Quality(learning_rate=config.train.learning_rate),
        "machine": MACHINE,
        "flags": [],
    }  # fmt: skip
    return Result(**{**made, **{k: v for k, v in changes.items() if k not in fields}})
