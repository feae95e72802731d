"""Launches of simulated ranks, and a user who starts the agents that the program asks for."""

import contextlib
import re
import shlex
import shutil
import subprocess
import sys
import threading
from pathlib import Path

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


class SmallDisk:
    """A file system of a megabyte or two in memory, which only a program started with `command` sees. What it holds is
    in the folder `after` when that program has ended."""

    def __init__(self, folder, size="2m"):
        """Skip the test where nothing can be mounted, not even in a namespace of one's own."""
        self.folder, self._size = folder, size
        self.after = folder.with_name(f"{folder.name}.after")
        folder.mkdir(parents=True)
        tried = subprocess.run(self.command(["true"]), capture_output=True, text=True)
        if tried.returncode:
            pytest.skip(f"no file system can be mounted here: {tried.stderr.strip()}")
        shutil.rmtree(self.after)

    def command(self, command):
        """Return the command that runs another with this file system."""
        script = 'mount -t tmpfs -o size="$0" tmpfs "$1" || exit 99; folder=$1; shift; "$@"; status=$?; '
        script += 'cp -r "$folder" "$folder.after"; exit $status'
        return ["unshare", "-rm", "sh", "-c", script, self._size, str(self.folder), *command]

    def seen_by(self, pid):
        """Return the folder as a process in the namespace sees it."""
        return Path(f"/proc/{pid}/root{self.folder}")

    def fill(self, pid):
        """Leave no byte on it."""
        with contextlib.suppress(OSError), open(self.seen_by(pid) / "filler", "ab", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)
