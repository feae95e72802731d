"""One program at a time in a sweep's folder, also where several hosts share it. Layer 0.

The lock is the kernel's (filelock) on a file in the folder, and so ends with its holder, however that ends. Some file
systems keep such locks to one host, or have none; for them, and for people, the file names its holder.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import platform
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

from scalebench.core.errors import InputError
from scalebench.core.json_files import from_dict

LOCK_FILE = "sweep.lock"
WAIT_S = 0.2  # a holder that is just releasing the lock is no other program
NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}


@dataclass
class Holder:
    hostname: str
    pid: int
    pid_started_s: float  # seconds since the epoch: numbers of processes are used again
    since: str  # ISO 8601, UTC

    def __str__(self) -> str:
        return f"process {self.pid} on {self.hostname} (since {self.since})"

    def is_alive(self) -> bool:
        """Return whether it still runs, on this host."""
        import psutil

        try:
            return bool(abs(psutil.Process(self.pid).create_time() - self.pid_started_s) < 1.0)
        except psutil.Error:
            return False


class FolderLock:
    """Holds `folder` from now on. InputError, in one line, while another program does; OSError where the folder is not
    writable. A context manager, or to be released."""

    def __init__(self, folder: Path) -> None:
        from filelock import FileLock, Timeout  # needed by sweeps alone

        self.path = folder / LOCK_FILE
        self._lock = FileLock(self.path, timeout=WAIT_S, thread_local=False)
        try:
            self._lock.acquire()
        except Timeout:
            raise _refusal(_holder(self.path) or "another program", self.path) from None
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
        try:
            self._refuse_unseen(_holder(self.path))
            self.path.write_text(json.dumps(asdict(_this_process())), encoding="utf-8")
        except BaseException:
            self._lock.release()
            raise
        self._held = True

    def release(self) -> None:
        """Give the folder back."""
        if self._held:
            self._held = False
            with contextlib.suppress(FileNotFoundError):
                self.path.unlink()  # while it is locked: filelock takes no lock on a file that was removed
            self._lock.release()

    def __enter__(self) -> FolderLock:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()

    def _refuse_unseen(self, holder: Holder | None) -> None:
        """InputError for a holder that may be alive though its lock is not visible here."""
        if holder is None:
            return
        if holder.hostname != platform.node():
            raise InputError(
                f"{holder} uses {self.path.parent}; wait for its end, or if it is there no more, remove {self.path}"
            )
        if not self._lock.is_locked and holder.is_alive():
            raise _refusal(holder, self.path)


def _refusal(holder: Holder | str, path: Path) -> InputError:
    return InputError(f"{holder} uses {path.parent}; wait for its end, or choose another folder")


def _this_process() -> Holder:
    import psutil

    now = datetime.now(UTC).isoformat(timespec="seconds")
    return Holder(platform.node(), os.getpid(), psutil.Process().create_time(), now)


def _holder(path: Path) -> Holder | None:
    """Return who wrote into the file; None where nobody did, or it was cut short."""
    try:
        return from_dict(Holder, json.loads(path.read_text(encoding="utf-8")), ignore_unknown=True)
    except (ValueError, FileNotFoundError):
        return None
