"""Strategies of each adapter family in a cohort: they train as by themselves, and one that fails ends alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from scalebench.config.compose import compose_config
from scalebench.config.resolve import resolve
from scalebench.core.json_files import read_json, write_json
from scalebench.core.result import RankRecord, Result, read_result
from scalebench.core.run_folder import turn_path
from scalebench.core.spec import RunSpec
from scalebench.measure.progress import read_progress
from scalebench.runner.parent import run_spec
from scalebench.sweeps.cohort import Cohort, CohortRun
from scalebench.testing.fault_contract import EXPECTED_OUTCOMES
from scalebench.testing.fault_worker import FAULT_FILE
from scalebench.workloads import datasets
from tests.builders.runs import wait_until

pytestmark = pytest.mark.real
FAMILIES = (
    "ddp_gloo",
    *(
        pytest.param(name, marks=pytest.mark.slow)
        for name in ("lightning_ddp_gloo", "horovod_gloo", "horovod_mpi", "mirrored", "multiworker_ring",
                     "parameter_server", "fsdp_gloo", "pipeline_1f1b")
    ),
)  # fmt: skip
# One step a block, so that each loss belongs to a step whose number is known.
SETTINGS = (
    "dataset.size=400", "train.batch_per_device=10", "train.dropout=false", "measure.probes=false", "measure.repeats=1",
    "measure.monitor=false", "measure.warmup_steps=5", "measure.warmup_max_steps=32", "measure.block_s=0.000001",
    "measure.slot_s=0.1", "measure.min_s=1", "measure.max_s=1.5", "measure.hang_s=20", "measure.target=0.5",
)  # fmt: skip
MIN_COMPARED_STEPS = 15
RANK_0_FAILS = {"parameter_server": 0, "mirrored": 0}  # the rank that fails, where it is not rank 1


def make_spec(strategy: str, gpus: int, tmp_path: Path, *overrides: str) -> RunSpec:
    cache = f"dataset.cache={tmp_path / 'data'}"
    spec = resolve(compose_config([f"strategy={strategy}", f"gpus={gpus}", *SETTINGS, cache, *overrides]))
    datasets.prepare(spec.config)
    return spec


def run_cohort(specs: list[RunSpec], folder: Path, **options: Any) -> list[Result]:
    cohort = Cohort(
        [CohortRun(n, spec, folder / str(n)) for n, spec in enumerate(specs)], lambda progress: None, **options
    )
    return [result for _, result in cohort.run()]


def losses_by_step(rank: RankRecord) -> dict[int, float | None]:
    """Return the loss of each kept step by its number; the first block of each slot is not kept."""
    assert (rank.warmup_block_steps, rank.block_steps) == (1, 1)
    losses = dict(enumerate(rank.warmup_losses))
    for number, loss in enumerate(rank.block_losses):
        discarded = len(set(rank.block_rounds[: number + 1]))
        losses[len(rank.warmup_losses) + number + discarded] = loss
    return losses


def turns_of(folder: Path) -> int:
    return int(read_json(turn_path(folder))["number"]) if turn_path(folder).exists() else 0


@pytest.mark.parametrize("strategy", FAMILIES)
def test_it_trains_in_turns_as_by_itself(strategy: str, tmp_path: Path) -> None:
    spec = make_spec(strategy, 2, tmp_path, "measure.hang_s=60")  # TensorFlow starts slowly on a busy machine
    results = run_cohort([make_spec("simulated", 1, tmp_path), spec, spec], tmp_path)
    assert [result.status for result in results] == ["ok"] * 3, [result.reason for result in results]
    alone = run_spec(spec, tmp_path / "alone")
    assert alone.status == "ok"
    if strategy == "parameter_server":  # its workers apply their gradients in any order
        return
    for result in results[1:]:
        assert len(set(result.ranks[0].block_rounds)) >= 2
        for rank, rank_alone in zip(result.ranks, alone.ranks, strict=True):
            losses, expected = losses_by_step(rank), losses_by_step(rank_alone)
            steps = [n for n in losses if n in expected and losses[n] is not None and n > len(rank.warmup_losses)]
            if any(losses[n] is not None for n in losses):
                assert len(steps) >= MIN_COMPARED_STEPS
            np.testing.assert_allclose([losses[n] for n in steps], [expected[n] for n in steps], rtol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", FAMILIES)
def test_a_fault_ends_its_run_alone(strategy: str, tmp_path: Path) -> None:
    """One run each that raises, hangs stopped, runs out of memory, and loses a rank while it is parked."""
    long = ("measure.target=0.0001", "measure.max_s=12")  # long enough for the faults
    spec, rank = make_spec(strategy, 2, tmp_path, *long), RANK_0_FAILS.get(strategy, 1)
    faults = {2: "raise", 3: "stop", 4: "oom"}
    for number in range(1, 6):
        (tmp_path / str(number)).mkdir()
        fault = {"fault": faults.get(number, "none"), "rank": rank, "batch": 45 if number in faults else -1}
        write_json(tmp_path / str(number) / FAULT_FILE, fault)
    (tmp_path / "0").mkdir()
    write_json(tmp_path / "0" / FAULT_FILE, {"fault": "none", "rank": 0, "batch": -1})

    def kill_parked() -> None:
        folder = tmp_path / "5"
        wait_until(lambda: turns_of(folder) >= 2, limit_s=240)
        progress = read_progress(folder, rank)
        assert progress is not None
        wait_until(lambda: psutil.Process(progress.pid).status() == psutil.STATUS_STOPPED)
        os.kill(progress.pid, signal.SIGKILL)

    killer = threading.Thread(target=kill_parked, daemon=True)
    killer.start()
    specs = [make_spec("simulated", 1, tmp_path, *long), *[spec] * 5]
    results = run_cohort(specs, tmp_path, module="scalebench.testing.fault_worker")
    killer.join()
    expected = [*(["ok"] * 2), *(EXPECTED_OUTCOMES[fault][0] for fault in faults.values() if fault != "oom"), "failed"]
    assert [result.status for result in results] == expected, [result.reason for result in results]
    assert "SIGKILL" in (results[-1].reason or "")
    assert not (tmp_path / "4").exists(), "a run without enough memory beside the others is left for later"


@pytest.mark.slow
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("strategy", FAMILIES)
def test_no_process_survives_the_program(strategy: str, sign: signal.Signals, tmp_path: Path) -> None:
    sweep = tmp_path / "sweep"
    command = [
        sys.executable, "-m", "scalebench", "--multirun", f"strategy=simulated,{strategy}", "gpus=2", *SETTINGS,
        "measure.max_s=60", "measure.min_s=60", "baseline=none", "sweep.report=false", f"hydra.sweep.dir={sweep}",
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as program:
        wait_until(lambda: min(turns_of(sweep / name) for name in "01") >= 2, limit_s=90)
        processes = psutil.Process(program.pid).children(recursive=True)
        program.send_signal(sign)
        program.wait(60)
    _, alive = psutil.wait_procs(processes, timeout=20)
    assert not alive
    statuses = [read_result(path).status for path in sweep.glob("*/result.json")]
    assert statuses == ([] if sign == signal.SIGKILL else ["cancelled"] * 2)
