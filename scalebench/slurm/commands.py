"""The commands of SLURM: run with a limit, their errors in one line and in their own words. Layer 2."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

LIMIT_S = 20.0  # a controller that does not answer takes a tool 9 to 18 s to say so
LONGEST = 300  # characters of an error
# A user's defaults for squeue and sacct would hide jobs, or rename what is to be read.
ASKING = re.compile(r"(SQUEUE|SACCT|SCONTROL)_|SLURM_TIME_FORMAT$|LC_ALL$")
NOISE = re.compile(
    r"^(?:/\S*/)?(?:sbatch|squeue|sacct|scancel|scontrol|srun|salloc|sinfo): (?:(?:error|fatal): )?|"
    r"^(?:Batch job submission failed|slurm_load_\w+(?: error)?|Unable to allocate resources): "
)
HINTS = re.compile(r'^(?:Try ".*" for more information|Usage: )|: warning: ')
AWAY = re.compile(
    r"Unable to contact slurm controller|Socket timed out|Connection (?:refused|timed out|reset)|standby mode|"
    r"Zero Bytes were transmitted|Unable to process configuration file|Could not establish a configuration source|"
    r"Transport endpoint|No route to host|Resource temporarily unavailable",
    re.IGNORECASE,
)
# What no other day will change. A limit on submitted jobs passes, and so does what is "not available now".
REFUSED = re.compile(
    r"Invalid (?:partition|account|qos|wckey|license|feature|preferred feature|node name|generic resource|gres|"
    r"burst buffer|Trackable|time|-|job array)|invalid (?:partition|option)|unrecognized option|ambiguous option|"
    r"requires an argument|[Nn]ode count specification|Requested reservation is invalid|"
    r"Access denied to requested reservation|Requested node configuration is not available|"
    r"Memory (?:required by task|specification)|More processors requested|Requested time limit is invalid|"
    r"not permitted to use this (?:partition|reservation)|permission denied|violates accounting/QOS policy|"
    r"Job size specification|[Rr]equested (?:GRES|topology)|exceeds? (?:partition|configured)|"
    r"(?:Assoc|QOS)(?:Max\w+Per(?:Job|Node)|Min)"
)
PASSES = re.compile(r"(?:Assoc|QOS)\w*Submit")


class SlurmError(Exception):
    """A command of SLURM went wrong; one line."""


class Unreachable(SlurmError):
    """SLURM is not there: the command is missing or does not end, or the controller does not answer."""


class Refused(SlurmError):
    """A job that this cluster will never take as it is."""


def inside() -> bool:
    """Whether this process is in an allocation."""
    return bool(os.environ.get("SLURM_JOB_ID"))


class Slurm:
    """The commands in the folder `bin`, or on the PATH where that is None."""

    def __init__(self, bin: str | None = None) -> None:
        self._bin = None if bin is None else str(Path(bin).expanduser())

    def path(self, name: str) -> str | None:
        """Of a command; None where it is not there."""
        return shutil.which(name) if self._bin is None else shutil.which(name, path=self._bin)

    def has(self, name: str) -> bool:
        return self.path(name) is not None

    def run(self, name: str, *words: str, limit_s: float = LIMIT_S, variables: Mapping[str, str] | None = None) -> str:
        """What the command prints. SlurmError where it fails.

        `variables`: its environment; None: this one, without what changes how its answer reads, and with times as
        seconds since the epoch.
        """
        path = self.path(name)
        if path is None:
            where = "on the PATH; set hardware.slurm.bin" if self._bin is None else f"in {self._bin}"
            raise Unreachable(f"there is no {name} {where}")
        env = _asking() if variables is None else dict(variables)
        try:
            # A session of its own: a Ctrl-C that takes sbatch along would lose the number of its job.
            process = subprocess.Popen(
                [path, *words], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                text=True, errors="replace", start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise Unreachable(f"{path} cannot be run: {error.strerror}") from error
        try:
            out, err = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            raise Unreachable(f"{name} did not answer within {limit_s:g} s") from None
        finally:
            _end(process)
        if process.returncode != 0:
            raise error_of(name, process.returncode, err or out)
        return out


def error_of(name: str, code: int, text: str) -> SlurmError:
    """The error that a command means by its text."""
    line = one_line(text)
    if AWAY.search(text):
        return Unreachable(line)
    if REFUSED.search(text) and not PASSES.search(text):
        return Refused(line)
    return SlurmError(line or f"{name} ended with exit code {code} and said nothing")


def one_line(text: str) -> str:
    """The lines of an error without the names that stand before them, each once."""
    lines = []
    for line in text.splitlines():
        if HINTS.search(line):
            continue
        before = None
        while before != line:
            before, line = line, NOISE.sub("", line.strip())
        lines.append(line)
    told = "; ".join(line for line in dict.fromkeys(lines) if line)
    return told if len(told) <= LONGEST else f"{told[: LONGEST - 3]}..."


def _asking() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not ASKING.match(name)}
    return kept | {"LC_ALL": "C", "SLURM_TIME_FORMAT": "%s"}


def _end(process: subprocess.Popen[str]) -> None:
    """A command that did not end, and what it has started."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.wait()
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()
