"""The program itself as a copy of a process that has imported it, where a test starts it by subprocess.Popen."""

import atexit
import contextlib
import faulthandler
import os
import socket
import subprocess
import sys

from scalebench.runner.launchers import local
from tests.builders import zygote
from tests.builders.warm_ranks import PRELOADED, WORKERS, Forker, NotForked, WarmRanks, check_forks

PROGRAM = "scalebench.__main__"
PRELOADED[PROGRAM] = (
    *WORKERS, "scalebench.strategies.simulated", PROGRAM, "pandas", "scalebench.cli.hydra_app",
    "scalebench.sweeps.task", "scalebench.runner.parent", "scalebench.report.terminal", __name__,
)  # fmt: skip


class WarmSession(WarmRanks):
    """The zygotes of a session of pytest: those of ranks, and one of the program."""

    def __init__(self):
        super().__init__()
        self._program = None  # the environment of the zygote of programs
        self.popen = type("Popen", (WarmPopen,), {"ranks": self})

    @property
    def pids(self):
        return {each.process.pid for each in self.zygotes.values() if each.process is not None}

    def fork_program(self, command, streams, variables, folder):
        """Fork the program where this command starts it. Raise NotForked where a copy differs from a new process."""
        flags, arguments = _parse_command(command)
        variables = os.environ if variables is None else variables
        with self.lock:
            if self._program is None:
                self._program = dict(os.environ)
            check_forks(variables, self._program)
            forker = self.load(PROGRAM, 0, self._program)
        place = {"folder": None if folder is None else os.fspath(folder), "prepare": __name__}
        return forker.fork([PROGRAM, *arguments], variables, streams, "-P" in flags, **place)


class WarmPopen(subprocess.Popen):
    """subprocess.Popen that forks the program, and starts everything else as a new process."""

    ranks = _forked = None

    def _execute_child(self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *rest):
        pipes = rest[3:9]  # of each stream the end that is read and the end that is written
        streams = [end if end != -1 else n for n, end in enumerate((pipes[0], pipes[3], pipes[5]))]
        with contextlib.suppress(NotForked):
            if executable or preexec_fn or pass_fds:
                raise NotForked("it is started in a way of its own")
            self._forked = self.ranks.fork_program(args, streams, env, cwd)
            self.pid = self._forked.pid
            self._close_pipe_fds(*pipes)
            return
        super()._execute_child(args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *rest)

    def poll(self):
        if self._forked is None:
            return super().poll()
        self.returncode = self._forked.poll()
        return self.returncode

    def wait(self, timeout=None):
        if self._forked is None:
            return super().wait(timeout)
        self.returncode = self._forked.wait(timeout)
        return self.returncode


def prepare():
    """Do what the program needs in a process that was just forked: a copy of it forks its ranks, and ends with it."""
    faulthandler.enable()
    encoding, _, errors = os.environ.get("PYTHONIOENCODING", "").partition(":")
    _open_streams(-1, encoding or None, errors or None)
    requests, far_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if (pid := os.fork()) == 0:
        requests.close()
        os.setsid()
        zygote.replace_streams([os.open(os.devnull, os.O_RDWR)] * 3)
        _open_streams(1, "utf-8", "replace")  # as common_environment has it
        zygote.Zygote(far_end).run()
        os._exit(0)
    far_end.close()
    ranks = WarmRanks()
    ranks.zygotes = {("none", number): Forker(requests) for number in range(2)}
    local.start_program = ranks.start_program
    atexit.register(_end_copy, requests, pid)


def _open_streams(buffering=-1, encoding=None, errors=None):
    """Open the standard streams anew, which else would seek as those could that were there before."""
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", buffering, encoding, errors, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, encoding, errors or "backslashreplace", closefd=False)  # noqa: SIM115


def _end_copy(requests, pid):
    requests.close()
    os.waitpid(pid, 0)


def _parse_command(command):
    """Return the flags of Python and the arguments of the program."""
    if isinstance(command, list) and command[:1] == [sys.executable] and "-m" in command:
        at = command.index("-m")
        if command[at + 1] == PROGRAM.partition(".")[0] and {*command[1:at]} <= {"-P", "-X", "faulthandler"}:
            return command[1:at], command[at + 2 :]
    raise NotForked("it is another program")
