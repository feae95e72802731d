"""The ranks under one program that started their keepers: mpirun, or srun. Layer 2."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

from scalebench.launchers.kept_rank import KeptRank
from scalebench.launchers.local import Child
from scalebench.launchers.watch import GRACE_S, Group
from scalebench.process import wait_until

KEEPER = "scalebench.launchers.mpi_rank"
LATE_S = 2.0  # that a shared file system may take to show what a rank left


class KeptGroup(Group):
    """Watched through the files that the keepers leave, and their processes where they are on this host; on others the
    program reaches them."""

    def __init__(self, folder: Path, ranks: int, name: str, log: str, words: Callable[[Path], str | None]) -> None:
        """`name` is the program's, `log` holds what it says of itself, and `words` what of that is a reason."""
        super().__init__()
        self._name, self._log, self._words = name, folder / log, words
        self.members: list[KeptRank] = [KeptRank(folder, rank) for rank in range(ranks)]
        self.starter: Child | None = None

    def broken(self) -> str | None:
        """Also when the program tells ranks to end: it does so by itself only after one of them has ended badly."""
        told = [str(rank) for rank, member in enumerate(self.members) if member.told]
        if self.starter is None or not (told or self.starter.poll() is not None):
            return None
        if told:
            wait_until(lambda: not self.starter.alive(), GRACE_S)
            return self._words(self._log) or f"{self._name} told rank {', '.join(told)} to end and did not say why"
        code = self.starter.poll()
        if code >= 0:
            wait_until(lambda: all(member.over for member in self.members), LATE_S)
        if any(member.poll() not in (None, 0) and not member.lost for member in self.members):
            return None  # it ended for that rank
        if code < 0:
            return f"{self._name} was killed by {signal.Signals(-code).name}"
        if all(member.poll() is not None for member in self.members):
            return None
        return self._words(self._log) or f"{self._name} ended with exit status {code} and no word of why"

    def end(self, grace_s: float) -> None:
        """First the ranks that are here, then the program: it ends those elsewhere and the ones that just started."""
        super().end(grace_s)
        if self.starter is None:
            return
        # Left alone it ends with its ranks, at once if they left in order and within seconds otherwise.
        alone_s = grace_s if all(member.over for member in self.members) else 0.0
        for sign in (None, signal.SIGTERM, signal.SIGKILL):
            if sign is not None and self.starter.alive():
                self.starter.signal(sign)
                self.starter.signal(signal.SIGCONT)
            wait_until(lambda: not self.starter.alive(), alone_s if sign is None else grace_s)
        self.starter.reap()
        super().end(grace_s)  # a keeper that had not told of its worker at the first time
        self._drop_empty_log()

    def _drop_empty_log(self) -> None:
        if self._log.exists() and not self._log.stat().st_size:
            self._log.unlink()


def start(command: list[str], variables: dict[str, str], log: Path, debug: bool) -> subprocess.Popen[bytes]:
    """Start the program, its words going to `log`, or to where ours do with `debug`."""
    if debug:
        return subprocess.Popen(command, env=variables)
    with open(log, "wb") as file:
        # A session of its own: Ctrl-C reaches the parent alone, which then ends the group in one way.
        return subprocess.Popen(
            command, env=variables, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
        )
