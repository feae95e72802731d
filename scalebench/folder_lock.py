"""One program at a time in a sweep's folder, also where several hosts share it. Layer 0.

The lock is the kernel's (flock) on a file in the folder, and so ends with its holder, however that ends. File systems
exist that keep such locks to one host, or know none; for them the file names its holder.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import platform
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

from scalebench.records import from_dict
from scalebench.spec import InputError

LOCK_FILE = "sweep.lock"
NO_LOCKS_HERE = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}


@dataclass
class Holder:
    hostname: str
    pid: int
    pid_started_s: float  # seconds since the epoch: numbers of processes are used again
    since: str  # ISO 8601, UTC

    def __str__(self) -> str:
        return f"process {self.pid} on {self.hostname} (since {self.since})"

    def is_alive(self) -> bool:
        """Whether it still runs, on this host."""
        import psutil

        try:
            return bool(abs(psutil.Process(self.pid).create_time() - self.pid_started_s) < 1.0)
        except psutil.Error:
            return False


class FolderLock:
    """Holds `folder` from now on. InputError, in one line, while another program does; OSError where the folder is not
    writable. A context manager, or to be released."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOCK_FILE
        self._file: int | None = None
        while self._file is None:
            self._file = self._taken(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644))

    def release(self) -> None:
        """The folder is anybody's again."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(FileNotFoundError):
                self.path.unlink()  # while it is held: whoever waits for it sees that it is no file any more
            os.close(file)

    def __enter__(self) -> FolderLock:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()

    def _taken(self, file: int) -> int | None:
        """The file, when it is held; None when it was removed meanwhile, and is to be made anew."""
        try:
            locked = self._lock(file)
            if os.fstat(file).st_nlink == 0:
                os.close(file)
                return None
            self._refuse(_holder(file), locked)
            _write(file, _this_process())
        except BaseException:
            os.close(file)
            raise
        return file

    def _lock(self, file: int) -> bool:
        """Whether the file system knows locks. InputError where another program holds this one."""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            who = _holder(file) or "another program"
            raise InputError(f"{who} uses {self.path.parent}; wait for its end, or choose another folder") from None
        except OSError as error:
            if error.errno not in NO_LOCKS_HERE:
                raise
            return False
        return True

    def _refuse(self, holder: Holder | None, locked: bool) -> None:
        """InputError for a holder that may be alive though its lock is not seen here."""
        if holder is None:
            return
        if holder.hostname != platform.node():
            raise InputError(
                f"{holder} uses {self.path.parent}; wait for its end, or if it is there no more, remove {self.path}"
            )
        if not locked and holder.is_alive():
            raise InputError(f"{holder} uses {self.path.parent}; wait for its end, or choose another folder")


def _this_process() -> Holder:
    import psutil

    now = datetime.now(UTC).isoformat(timespec="seconds")
    return Holder(platform.node(), os.getpid(), psutil.Process().create_time(), now)


def _holder(file: int) -> Holder | None:
    """Who wrote into the file; None where nobody did, or it was cut short."""
    try:
        return from_dict(Holder, json.loads(os.pread(file, 4096, 0)), ignore_unknown=True)
    except ValueError:
        return None


def _write(file: int, holder: Holder) -> None:
    """In place: the lock is on this very file, and not on one that takes its name."""
    os.ftruncate(file, 0)
    os.pwrite(file, json.dumps(asdict(holder)).encode(), 0)
