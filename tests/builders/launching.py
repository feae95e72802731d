"""Launches of simulated ranks, and a user who starts the agents that the program asks for."""

import re
import shlex
import shutil
import subprocess
import sys
import threading

import pytest

from scalebench.core.spec import write_spec
from scalebench.runner.launchers import local
from scalebench.runner.launchers.supervise import LaunchRequest

COMMAND = re.compile(r"([\w.-]+): (\S+ -P -m scalebench\.runner\.node_agent .*)")


class AgentUser:
    """Runs scalebench and starts the commands that it prints, each on its host; as a context it ends all of them."""

    def __init__(self, words, cwd, on=lambda host, command: command, willing=True):
        """Start the program; `on` returns the command that runs another on a host (None: where the program runs)."""
        self.said = []
        self.started = []
        self._on, self._cwd, self._willing = on, cwd, willing
        command = on(None, [sys.executable, "-m", "scalebench", "strategy.launcher=by_hand", *words])
        self.program = subprocess.Popen(
            command, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self):
        assert self.program.stdout is not None
        for line in self.program.stdout:
            self.said.append(line.rstrip())
            if self._willing and (found := COMMAND.fullmatch(line.strip())):
                words = self._on(found[1], shlex.split(found[2]))
                with open(self._cwd / f"agent.{found[1]}.log", "wb") as log:
                    self.started.append(
                        subprocess.Popen(words, cwd=self._cwd, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
                    )

    def end(self, limit_s=120.0):
        """Return the exit statuses of the program and of the commands, in the order of the nodes."""
        status = self.program.wait(limit_s)
        self._reader.join(limit_s)
        return status, [process.wait(limit_s) for process in self.started]

    def __enter__(self):
        return self

    def __exit__(self, kind, error, where):
        for process in (self.program, *self.started):
            if process.poll() is None:
                process.kill()
            process.wait()
        self._reader.join()
        assert self.program.stdout is not None
        self.program.stdout.close()


FOREVER = {"measure": {"min_s": 600.0, "max_s": 600.0, "timeout_s": 600.0}}
NEEDS_MPIRUN = pytest.mark.skipif(shutil.which("mpirun") is None, reason="there is no mpirun here")


class FakeInterrupt(Exception):
    """Replaces KeyboardInterrupt, which would end pytest."""


def launch_run(spec, folder, **options):
    write_spec(spec, folder)
    return local.launch(LaunchRequest(spec, folder, "an id", **options))
