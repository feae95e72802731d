"""Starts the process that samples beside a run, and ends it: a monitor that fails is not a failed run."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import subprocess
from pathlib import Path
from types import TracebackType

from scalebench.core.exit_with_parent import PARENT_VARIABLE
from scalebench.core.process import build_python_command, defer_signals
from scalebench.core.run_folder import RUN_ID_VARIABLE
from scalebench.core.spec import RunSpec

END_LIMIT_S = 10.0  # for writing its series; a driver that hangs may block it
KILL_LIMIT_S = 2.0  # for the kernel to end it
MODULE = "scalebench.measure.monitor"
# SLURM forwards SIGUSR1 and SIGUSR2 not only to the agents of a step, but also to the monitors that these started.
PAUSE, RESUME = signal.SIGRTMIN, signal.SIGRTMAX
BLOCKED_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, PAUSE, RESUME}  # in the monitor


class MonitorProcess:
    """The monitor of a run, as a context around its launch; `reason` is afterwards why something is missing.

    `node` is the number of this node, where each node of the run has a monitor of its own. With `local` false none is
    started on this host, since the nodes start theirs.
    """

    def __init__(
        self,
        spec: RunSpec,
        folder: Path,
        module: str = MODULE,
        node: int | None = None,
        local: bool = True,
        run_id: str | None = None,  # None: that of this process's environment, as in the agent of a rank
    ) -> None:
        self._command = build_python_command("-m", module, str(folder), *([] if node is None else [str(node)]))
        self._variables = {} if run_id is None else {RUN_ID_VARIABLE: run_id}
        self._process: subprocess.Popen[bytes] | None = None
        requested = spec.config.measure.monitor and not spec.config.debug
        self._enabled = requested and local
        self.reason: str | None = None  # why the series is missing, or a part of it
        if not requested:
            self.reason = "debug=true" if spec.config.debug else "measure.monitor=false"

    @property
    def pid(self) -> int | None:
        """Return the process id of the monitor; None where there is none."""
        return None if self._process is None else self._process.pid

    def pause(self) -> None:
        """Take no samples until `resume`."""
        self._signal(PAUSE)

    def resume(self) -> None:
        self._signal(RESUME)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def __enter__(self) -> MonitorProcess:
        if self._enabled:
            try:
                with defer_signals():
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
        env = {**os.environ, **self._variables, PARENT_VARIABLE: str(os.getpid())}
        # The child inherits blocked signals, and waits for them: none can end it before it is ready.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED_SIGNALS)
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
            importlib.import_module("pyarrow.parquet")  # which both need next: in parallel it takes half the time
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
        with contextlib.suppress(subprocess.TimeoutExpired):  # where a driver blocks it, the kernel ends it later
            process.wait(KILL_LIMIT_S)
