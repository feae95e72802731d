"""A process that has imported a framework and forks ranks for tests: `python -m tests.builders.zygote DESCRIPTOR`.

It imports what the requests name that it reads from a socket, and forks a process for each. These start with modules
and nothing else, as a zygote never trains. See warm_ranks, which sends the requests.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import re
import runpy
import selectors
import signal
import socket
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from scalebench.core.exit_with_parent import PARENT_VARIABLE
from scalebench.runner.launchers.rank_environment import RANK_VARIABLES

MAX_MESSAGE_BYTES, MAX_DESCRIPTORS = 100_000, 6
PER_RANK = re.compile(rf"({'|'.join(RANK_VARIABLES)}|PYTHONPATH|PYTHONIOENCODING|COLUMNS|(SCALEBENCH|PYTEST)_\w+)$")


def drop_per_rank(variables: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in variables.items() if not PER_RANK.match(name)}


class Zygote:
    """Imports modules and forks ranks until the program that asks for them is gone."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests, self._selector = requests, selectors.DefaultSelector()
        self._environment, self._search_path = dict(os.environ), _search_path(sys.flags.safe_path)
        self._problem: str | None = None  # why it forks no rank

    def run(self) -> None:
        self._selector.register(self._requests, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is not self._requests:
                    self._report_end(key)
                elif not self._serve_request():
                    return

    def _serve_request(self) -> bool:
        """Read a request and do what it asks; return whether there was one."""
        data, descriptors, _, _ = socket.recv_fds(self._requests, MAX_MESSAGE_BYTES, MAX_DESCRIPTORS)
        if not data:
            return False
        request = json.loads(data)
        self._import([name for name in request["modules"] if name not in sys.modules])
        if descriptors:
            self._fork(request, socket.socket(fileno=descriptors[0]), descriptors[1:])
        return True

    def _import(self, names: Sequence[str]) -> None:
        gc.disable()  # a tenth of the time of the imports
        try:
            for name in names:
                importlib.import_module(name)
        except Exception as error:  # a rank as a process of its own says it in its own way
            self._problem = f"{type(error).__name__}: {error}"
        if names:
            gc.freeze()  # a collection would write to the pages that ranks share
        gc.enable()

    def _fork(self, request: dict[str, Any], answers: socket.socket, descriptors: list[int]) -> None:
        threads = len(os.listdir("/proc/self/task"))
        problem = self._problem if threads == 1 else f"{threads} threads run after the imports"
        pid = os.fork() if problem is None else 0
        if problem is None and pid == 0:
            for key in [*self._selector.get_map().values()]:
                if key.data is not None:
                    os.close(key.fd)
                    key.data[1].close()
            self._selector.close()
            self._requests.close()
            answers.close()
            self._become(request, *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        with contextlib.suppress(BrokenPipeError):
            answers.send((problem or str(pid)).encode())
        if problem is None:
            self._selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, answers))
        else:
            answers.close()

    def _report_end(self, key: selectors.SelectorKey) -> None:
        self._selector.unregister(key.fileobj)
        os.close(key.fd)
        pid, answers = key.data
        _, status = os.waitpid(pid, 0)
        with answers, contextlib.suppress(BrokenPipeError):
            answers.send(str(os.waitstatus_to_exitcode(status)).encode())

    def _become(self, request: dict[str, Any], *descriptors: int) -> NoReturn:
        """Run a module as `python -m` does in a new process."""
        status: Any = 1
        module, *arguments = request["arguments"]
        try:
            os.setsid()
            replace_streams(descriptors[:3])
            for descriptor in descriptors[3:]:  # of the namespaces of its run
                assert ctypes.CDLL(None).setns(descriptor, 0) == 0
                os.close(descriptor)
            os.chdir(request["folder"])
            os.sched_setaffinity(0, request["cpus"])
            signal.pthread_sigmask(signal.SIG_SETMASK, request["blocked"])
            self._replace_environment(request["variables"], request["is_safe"])
            sys.modules["numpy"].random.seed()  # else all ranks would draw the same numbers
            sys.argv[1:] = arguments
            sys.modules.pop(module, None)
            if request["prepare"] is not None:
                importlib.import_module(request["prepare"]).prepare()
            runpy.run_module(module, run_name="__main__", alter_sys=True)
            status = 0
        except SystemExit as end:
            status = end.code
        except BaseException:
            traceback.print_exc()
        if request["prepare"] is not None:
            sys.exit(status)  # ranks end without the clean-up of the interpreter, which a program does
        os._exit(status if isinstance(status, int) else status is not None)

    def _replace_environment(self, variables: dict[str, str], is_safe: bool) -> None:
        """Take over these variables besides those that imports have set, and the folders in which modules are found."""
        before = self._environment
        set_by_imports = {n: value for n, value in drop_per_rank(os.environ).items() if before.get(n) != value}
        os.environ.clear()
        os.environ.update(variables | set_by_imports)
        if PARENT_VARIABLE in variables:
            os.environ[PARENT_VARIABLE] = str(os.getppid())
        sys.path[:] = [*_search_path(is_safe), *(entry for entry in sys.path if entry not in self._search_path)]
        importlib.invalidate_caches()


def replace_streams(descriptors: Sequence[int]) -> None:
    """Make these descriptors standard input, output and errors."""
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
    for descriptor in set(descriptors):
        os.close(descriptor)


def _search_path(is_safe: bool) -> list[str]:
    """Return the folders that `python -m` searches for modules before all others."""
    current = [] if is_safe else [os.getcwd()]
    return [*current, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]


def main(arguments: list[str]) -> int:
    with socket.socket(fileno=int(arguments[0])) as requests:
        Zygote(requests).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
