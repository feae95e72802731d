"""Somebody who does what the program says: starts the commands that it prints, each on its host.

Launches of null ranks for the tests of this folder.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from scalebench.core.spec import RunSpec, write_spec
from scalebench.runner.launchers import local
from scalebench.runner.launchers.supervise import GroupExit, LaunchRequest

COMMAND = re.compile(r"([\w.-]+): (\S+ -m torch\.distributed\.run .*)")


class Hands:
    """`with Hands(words of scalebench, ...) as hands: assert hands.end() == 0`. Nothing that it started is left."""

    def __init__(
        self,
        words: Sequence[str],
        cwd: Path,
        on: Callable[[str | None, list[str]], list[str]] = lambda host, command: command,
        willing: bool = True,
    ) -> None:
        """`on` gives the words that run a command on a host (None: where the program runs)."""
        self.said: list[str] = []
        self.started: list[subprocess.Popen[bytes]] = []
        self._on, self._cwd, self._willing = on, cwd, willing
        command = on(None, [sys.executable, "-m", "scalebench", "strategy.launcher=by_hand", *words])
        self.program = subprocess.Popen(
            command, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.program.stdout is not None
        for line in self.program.stdout:
            self.said.append(line.rstrip())
            if self._willing and (found := COMMAND.fullmatch(line.strip())):
                words = self._on(found[1], shlex.split(found[2]))
                with open(self._cwd / f"torchrun.{found[1]}.log", "wb") as log:
                    self.started.append(
                        subprocess.Popen(words, cwd=self._cwd, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
                    )

    def end(self, limit_s: float = 120.0) -> tuple[int, list[int]]:
        """Exit statuses of the program, and of what was started for it, in the order of the nodes."""
        status = self.program.wait(limit_s)
        self._reader.join(limit_s)
        return status, [process.wait(limit_s) for process in self.started]

    def __enter__(self) -> Hands:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        for process in (self.program, *self.started):
            if process.poll() is None:
                process.kill()
            process.wait()
        self._reader.join()
        assert self.program.stdout is not None
        self.program.stdout.close()


FOREVER = {"measure": {"min_s": 600.0, "max_s": 600.0, "timeout_s": 600.0}}
NEEDS_MPIRUN = pytest.mark.skipif(shutil.which("mpirun") is None, reason="there is no mpirun here")


class Interrupted(Exception):
    """In place of KeyboardInterrupt, which pytest would take for its own."""


def launched(spec: RunSpec, folder: Path, **options: Any) -> GroupExit:
    write_spec(spec, folder)
    return local.launch(LaunchRequest(spec, folder, "an id", **options))
