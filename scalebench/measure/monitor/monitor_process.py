"""Starts the process that samples next to a run, and ends it: a monitor that fails is no failed run. Layer 2."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType

from scalebench.core.process import signals_later
from scalebench.core.spec import RunSpec

END_LIMIT_S = 10.0  # that it has to write its series; a driver that hangs may hold it
KILL_LIMIT_S = 2.0  # that the kernel has to end it
MODULE = "scalebench.measure.monitor"


class MonitorProcess:
    """The monitor of a run, as a context around its launch; `reason` says afterwards what is missing and why.

    `node`: which of the run's nodes this is, where each has a monitor of its own. With `local` false none is started on
    this host, for the nodes do it.
    """

    def __init__(
        self, spec: RunSpec, folder: Path, module: str = MODULE, node: int | None = None, local: bool = True
    ) -> None:
        self._command = [sys.executable, "-m", module, str(folder), *([] if node is None else [str(node)])]
        self._process: subprocess.Popen[bytes] | None = None
        requested = spec.config.measure.monitor and not spec.config.debug
        self._wanted = requested and local
        self.reason: str | None = None  # why there is no series, or no part of it
        if not requested:
            self.reason = "debug=true" if spec.config.debug else "measure.monitor=false"

    @property
    def pid(self) -> int | None:
        """The process id of the monitor; None where there is none."""
        return None if self._process is None else self._process.pid

    def __enter__(self) -> MonitorProcess:
        if self._wanted:
            try:
                with signals_later():
                    self._process = self._start()
            except OSError as error:
                self.reason = f"the monitor could not be started: {error.strerror or error}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._process is not None:
            try:
                self._end(self._process)
            except BaseException:  # Ctrl-C again: the user is in a hurry
                self._kill(self._process)
                raise
            finally:
                assert self._process.stderr is not None
                self._process.stderr.close()

    def _start(self) -> subprocess.Popen[bytes]:
        env = {**os.environ, "SCALEBENCH_PARENT_PID": str(os.getpid())}
        # Blocked signals stay so in the child, which waits for them: none can end it before it is ready.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        try:
            return subprocess.Popen(
                self._command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                start_new_session=True,
            )  # fmt: skip
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        process.terminate()
        with contextlib.suppress(ImportError):
            importlib.import_module("pyarrow.parquet")  # which both need next: at the same time, it is half the wait
        try:
            output = process.communicate(timeout=END_LIMIT_S)[1]
        except subprocess.TimeoutExpired:
            self._kill(process)
            self.reason = f"the monitor did not end within {END_LIMIT_S:g} s"
            return
        last = output.decode(errors="replace").strip().rpartition("\n")[2]
        if process.returncode < 0:
            self.reason = f"the monitor was killed by {signal.Signals(-process.returncode).name}"
        elif process.returncode or last:
            self.reason = last or f"the monitor ended with exit status {process.returncode}"

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # where a driver holds it, the kernel ends it later
            process.wait(KILL_LIMIT_S)
