"""FaultContract: a rank that dies or hangs ends the run in time, and leaves a result and no process.

One strategy of each adapter family passes it; strategy_contract.py shows how to use such a class.
"""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path
from typing import ClassVar

import psutil
import pytest

from scalebench.config.compose import compose_config
from scalebench.config.resolve import resolve
from scalebench.core.json_files import write_json
from scalebench.core.process import build_python_command
from scalebench.core.result import Result, read_result
from scalebench.core.run_folder import RESULT_FILE
from scalebench.measure.progress import read_progress
from scalebench.runner.parent import run_spec
from scalebench.testing.launch import UNEVEN_WORKLOAD
from scalebench.testing.strategy_worker import CheckPlan, plan_path
from scalebench.workloads import datasets

# fault -> (status, part of the reason)
EXPECTED_OUTCOMES = {
    "raise": ("failed", "rank {}: RuntimeError: failed as configured"),
    "exit": ("failed", "rank {} ended with exit status 7"),
    "kill": ("failed", "rank {} was killed by SIGKILL"),
    "stop": ("timeout", "no rank made progress"),
    "oom": ("oom", "rank {}: out of memory"),
}


def list_own_children() -> list[psutil.Process]:
    """Return the children of this process that run a module of scalebench.

    Python's own helpers do not count, though their paths have that name where the environment is in such a folder.
    """
    children = [child for child in psutil.Process().children(recursive=True) if child.is_running()]
    commands = [child.as_dict(["cmdline"])["cmdline"] or [] for child in children]  # none of one that is just over
    return [child for child, command in zip(children, commands, strict=True)
            if any(part.startswith("scalebench.") for part in command)]  # fmt: skip


class FaultContract:
    """The fault contract of a strategy: subclass it and set `strategy`, and pytest collects the tests."""

    strategy: ClassVar[str] = ""
    overrides: ClassVar[tuple[str, ...]] = ()
    hang_s: ClassVar[float] = 15.0  # for a rank that stops; longer than any normal pause, the start-up included
    limit_s: ClassVar[float] = 60.0  # from the start of the run to its result
    rank: ClassVar[int] = 1  # that fails
    measuring: ClassVar[int] = 2  # number of ranks that measure in a run on two devices

    @pytest.mark.parametrize("fault", EXPECTED_OUTCOMES)
    def test_a_failing_rank_ends_the_run(self, fault: str, tmp_path: Path) -> None:
        begin_s = time.monotonic()
        result, folder = self.run_with(fault, tmp_path)
        assert time.monotonic() - begin_s < self.limit_s
        status, reason = EXPECTED_OUTCOMES[fault][0], EXPECTED_OUTCOMES[fault][1].format(self.rank)
        if result.scale.processes == 1:  # the reason of a single process names no rank
            reason = reason.removeprefix(f"rank {self.rank}: ")
        assert (result.status, reason in (result.reason or "")) == (status, True), result.reason
        assert read_result(folder / RESULT_FILE) == result
        assert result.log is not None
        assert (folder / result.log).exists()
        if fault == "stop":
            assert "most recent call first" in (folder / result.log).read_text(), "no stack of the rank that hung"
        assert not list_own_children(), "a process of the run is left"

    @pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGKILL])
    def test_no_worker_survives_the_parent(self, sign: signal.Signals, tmp_path: Path) -> None:
        """Ctrl-C leaves a cancelled result, a killed parent none; in either case no worker survives."""
        folder = tmp_path / "run"
        overrides = [*self.common_overrides(), f"hydra.run.dir={folder}"]
        long = ["measure.min_s=60", "measure.max_s=60", f"dataset.cache={tmp_path / 'data'}"]
        command = build_python_command("-m", "scalebench", *overrides, *long)
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as parent:
            workers = self.wait_for_measuring_workers(folder, psutil.Process(parent.pid))
            parent.send_signal(sign)
            parent.wait(self.limit_s)
        _, alive = psutil.wait_procs(workers, timeout=self.limit_s)
        assert not alive
        assert (folder / RESULT_FILE).exists() == (sign == signal.SIGINT)
        if sign == signal.SIGINT:
            assert parent.returncode == 1
            assert read_result(folder / RESULT_FILE).status == "cancelled"

    def wait_for_measuring_workers(self, folder: Path, parent: psutil.Process) -> list[psutil.Process]:
        """Return all processes of the run in `folder` once it measures."""
        deadline_s = time.monotonic() + self.limit_s
        while time.monotonic() < deadline_s:
            seen = [progress for progress in (read_progress(folder, rank) for rank in range(2)) if progress]
            if [progress.phase for progress in seen] == ["measure"] * self.measuring:
                return list(parent.children(recursive=True))
            time.sleep(0.1)
        pytest.fail(f"no {self.measuring} workers measure after {self.limit_s:g} s")

    def common_overrides(self, *overrides: str) -> list[str]:
        return [f"strategy={self.strategy}", "gpus=2", *UNEVEN_WORKLOAD, *overrides, *self.overrides]

    def run_with(self, fault: str, tmp_path: Path) -> tuple[Result, Path]:
        """Run on two devices, one rank of which fails after a few batches."""
        hang_s = self.hang_s if fault == "stop" else self.limit_s  # a busy machine may hold up the others
        overrides = self.common_overrides(f"measure.hang_s={hang_s}")
        spec = resolve(compose_config([*overrides, f"dataset.cache={tmp_path / 'data'}"]))
        datasets.prepare(spec.config)
        folder = tmp_path / "run"
        folder.mkdir()
        write_json(plan_path(folder), CheckPlan(fault=fault, rank=self.rank))
        return run_spec(spec, folder, module="scalebench.testing.strategy_worker"), folder
