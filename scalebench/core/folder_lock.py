"""Lock, claim and clear the folder of a run or a sweep, which one program uses at a time, also on several hosts.

The lock is the kernel's (filelock) on a file in the folder, and so ends with its holder, however that ends. Some file
systems limit such locks to one host; for them, and for people, the file names its holder.
"""

from __future__ import annotations

import contextlib
import os
import platform
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn

from scalebench.core import run_folder
from scalebench.core.errors import InputError
from scalebench.core.json_files import format_json, read_record
from scalebench.core.process import is_process_alive
from scalebench.core.spec import RunSpec, write_spec

MAX_WAIT_S = 0.2  # a holder that is just releasing the lock is no other program


@dataclass
class LockHolder:
    hostname: str
    pid: int
    pid_started_s: float  # seconds since the epoch: numbers of processes are used again
    since: str  # ISO 8601, UTC

    def __str__(self) -> str:
        return f"process {self.pid} on {self.hostname} (since {self.since})"

    def is_alive(self) -> bool:
        """Return whether it still runs, on this host."""
        return is_process_alive(self.pid, self.pid_started_s)


class FolderLock:
    """A lock on `folder` from construction to `release`, also as a context manager. Construction raises InputError
    while another program has the lock, and OSError where the folder is not writable."""

    def __init__(self, folder: Path, of_ended_job: bool = False) -> None:
        """Lock `folder`. With `of_ended_job` a holder on another host has ended: it was a job, by the scheduler."""
        import psutil
        from filelock import FileLock, Timeout  # needed by programs that run something

        self.path = folder / run_folder.LOCK_FILE
        self._lock = FileLock(self.path, timeout=MAX_WAIT_S, thread_local=False)
        try:
            self._lock.acquire()
        except Timeout:
            self._refuse(read_holder(folder) or "another program")
        try:
            holder = None if of_ended_job else read_holder(folder)
            if holder is not None and holder.hostname != platform.node():
                self._refuse(holder, f"if it no longer runs, remove {self.path}")
            now = datetime.now(UTC).isoformat(timespec="seconds")
            own = LockHolder(platform.node(), os.getpid(), psutil.Process().create_time(), now)
            self.path.write_text(format_json(own), encoding="utf-8")
        except BaseException:
            self._lock.release()
            raise
        self._held = True

    def _refuse(self, holder: LockHolder | str, way_out: str = "choose another folder") -> NoReturn:
        raise InputError(f"{holder} uses {self.path.parent}; wait for its end, or {way_out}") from None

    def release(self) -> None:
        """Release the folder."""
        if self._held:
            self._held = False
            with contextlib.suppress(OSError):  # the folder was removed, or has become read-only
                self.path.unlink()  # while it is locked: filelock ignores locks on a removed file
            self._lock.release()

    def __enter__(self) -> FolderLock:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


def read_holder(folder: Path) -> LockHolder | None:
    """Return the holder that the lock's file names; None where the file is missing, empty or cut short."""
    try:
        return read_record(folder / run_folder.LOCK_FILE, LockHolder)
    except (ValueError, FileNotFoundError):
        return None


def claim_run_folder(spec: RunSpec, folder: Path) -> FolderLock:
    """Make `folder` that of a run that begins: lock it, and write spec.json, by which it is known as a run's.

    Raises InputError, with nothing touched, for a folder that holds a result, is used by another program, or is neither
    empty nor a run's. Hydra's files of the run come afterwards.
    """
    refuse_folder_with_result(folder)
    run_folder.refuse_foreign_folder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    lock = FolderLock(folder)
    try:
        refuse_folder_with_result(folder)  # of a program that has ended just now
        write_spec(spec, folder)
    except BaseException:
        lock.release()
        raise
    return lock


def clear_run_folder(folder: Path, of_ended_job: bool = False) -> None:
    """Remove a run that is to be done again. Raise InputError, with nothing touched, where the folder is not a run's,
    holds a successful one, or another program uses it; `of_ended_job` as for FolderLock."""
    if folder.exists():
        refuse_successful_run(folder)
        run_folder.refuse_foreign_folder(folder)
        with FolderLock(folder, of_ended_job):
            run_folder.remove_run(folder)
        with contextlib.suppress(OSError):  # something else is in it
            folder.rmdir()


def refuse_folder_with_result(folder: Path) -> None:
    """Raise InputError when the folder already holds a result: no figure is ever overwritten."""
    if (folder / run_folder.RESULT_FILE).exists():
        raise InputError(f"{folder} already holds a result.json; choose another folder or remove it")


def refuse_successful_run(folder: Path) -> None:
    """Raise InputError when the folder holds a successful run: a resumed sweep replaces the others only."""
    if run_folder.has_successful_run(folder):
        raise InputError(f"{folder} holds another successful run; choose another folder")


def is_done_before(spec: RunSpec, folder: Path) -> bool:
    """Return whether `folder` holds this run, and it was successful. Raise InputError where its result is another
    run's."""
    key = spec.fingerprint, spec.config.repeat
    if (folder / run_folder.RESULT_FILE).exists() and run_folder.read_run_key(folder) != key:
        raise InputError(f"{folder} holds the result of another run; choose another folder")
    return run_folder.has_successful_run(folder)
