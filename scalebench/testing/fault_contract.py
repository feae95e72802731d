"""FaultContract: a rank that dies or hangs ends the run in the stated time and leaves a row and no process. Layer 4.

One strategy of each adapter family passes it; see contract.py for how to use such a class.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import ClassVar

import psutil
import pytest

from scalebench.config.compose import compose_config
from scalebench.config.resolve import resolve
from scalebench.core.json_files import write_json
from scalebench.core.result import Result, read_result
from scalebench.core.run_folder import RESULT_FILE
from scalebench.measure.progress import read_progress
from scalebench.runner.parent import run
from scalebench.testing.fault_worker import FAULT_FILE
from scalebench.testing.launch import WORKLOAD
from scalebench.workloads import datasets

# fault -> (status, words of the reason)
EXPECTED = {
    "raise": ("failed", "rank {}: RuntimeError: told to fail"),
    "exit": ("failed", "rank {} ended with exit status 7"),
    "kill": ("failed", "rank {} was killed by SIGKILL"),
    "stop": ("timeout", "no rank made progress"),
    "oom": ("oom", "rank {}: out of memory"),
}


class FaultContract:
    """Subclass it, name the strategy, and pytest finds the tests."""

    strategy: ClassVar[str] = ""
    overrides: ClassVar[tuple[str, ...]] = ()
    hang_s: ClassVar[float] = 15.0  # longer than any honest pause of the strategy, its start-up included
    limit_s: ClassVar[float] = 60.0  # from the start of the run to its row
    rank: ClassVar[int] = 1  # the one that goes wrong
    measuring: ClassVar[int] = 2  # ranks that measure, of a run on two devices

    @pytest.mark.parametrize("fault", EXPECTED)
    def test_a_bad_rank_ends_the_run(self, fault: str, tmp_path: Path) -> None:
        begin_s = time.monotonic()
        result, folder = self.run_with(fault, tmp_path)
        assert time.monotonic() - begin_s < self.limit_s
        status, words = EXPECTED[fault][0], EXPECTED[fault][1].format(self.rank)
        if result.scale.processes == 1:  # the reason of an only process names no rank
            words = words.removeprefix(f"rank {self.rank}: ")
        assert (result.status, words in (result.reason or "")) == (status, True), result.reason
        assert read_result(folder / RESULT_FILE) == result
        assert result.log is not None
        assert (folder / result.log).exists()
        if fault == "stop":
            assert "most recent call first" in (folder / result.log).read_text(), "no stack of the rank that hung"
        assert not [p for p in psutil.Process().children(recursive=True) if "scalebench" in " ".join(p.cmdline())]

    @pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGKILL])
    def test_the_parent_is_ended(self, sign: signal.Signals, tmp_path: Path) -> None:
        """Ctrl-C leaves a cancelled row; a killed parent leaves none, and in either case no worker lives on."""
        folder = tmp_path / "run"
        words = [f"strategy={self.strategy}", "gpus=2", *WORKLOAD, *self.overrides, f"hydra.run.dir={folder}"]
        long = ["measure.min_s=60", "measure.max_s=60", f"dataset.cache={tmp_path / 'data'}"]
        command = [sys.executable, "-m", "scalebench", *words, *long]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as parent:
            workers = self.workers_that_measure(folder, psutil.Process(parent.pid))
            parent.send_signal(sign)
            parent.wait(self.limit_s)
        _, alive = psutil.wait_procs(workers, timeout=self.limit_s)
        assert not alive
        assert (folder / RESULT_FILE).exists() == (sign == signal.SIGINT)
        if sign == signal.SIGINT:
            assert parent.returncode == 1
            assert read_result(folder / RESULT_FILE).status == "cancelled"

    def workers_that_measure(self, folder: Path, parent: psutil.Process) -> list[psutil.Process]:
        """All processes of the run in `folder`, once it measures."""
        deadline_s = time.monotonic() + self.limit_s
        while time.monotonic() < deadline_s:
            seen = [progress for progress in (read_progress(folder, rank) for rank in range(2)) if progress]
            if [progress.phase for progress in seen] == ["measure"] * self.measuring:
                return parent.children(recursive=True)
            time.sleep(0.1)
        pytest.fail(f"no {self.measuring} workers measure after {self.limit_s:g} s")

    def run_with(self, fault: str, tmp_path: Path) -> tuple[Result, Path]:
        """A run on two devices, one rank of which goes wrong after a few batches."""
        words = [f"strategy={self.strategy}", "gpus=2", *WORKLOAD, f"measure.hang_s={self.hang_s}", *self.overrides]
        spec = resolve(compose_config([*words, f"dataset.cache={tmp_path / 'data'}"]))
        datasets.prepare(spec.config)
        folder = tmp_path / "run"
        folder.mkdir()
        write_json(folder / FAULT_FILE, {"fault": fault, "rank": self.rank, "batch": 5})
        return run(spec, folder, module="scalebench.testing.fault_worker"), folder
