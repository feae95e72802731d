"""The commands of SLURM, run with a time limit, with their errors in one line of their own words."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scalebench.core.spec import HardwareSpec

COMMAND_TIMEOUT_S = 20.0  # a command reports a controller that does not answer after 9 to 18 s
MAX_MESSAGE_CHARACTERS = 300
# Not passed on: a user's defaults for squeue and sacct would hide jobs or change the format.
QUERY_VARIABLES = re.compile(r"(SQUEUE|SACCT|SCONTROL)_|SLURM_TIME_FORMAT$|LC_ALL$")
MESSAGE_PREFIX = re.compile(
    r"^(?:/\S*/)?(?:sbatch|squeue|sacct|scancel|scontrol|srun|salloc|sinfo): (?:(?:error|fatal): )?|"
    r"^(?:Batch job submission failed|slurm_load_\w+(?: error)?|Unable to allocate resources): "
)
HINTS = re.compile(r'^(?:Try ".*" for more information|Usage: )|: warning: ')


class SlurmError(Exception):
    """A failure of a SLURM command, in one line."""


class SlurmUnreachable(SlurmError):
    """SLURM does not respond: the command is missing or does not end, or the controller does not answer."""


class SubmitLimit(SlurmError):
    """A limit on the number of jobs, which others that end make room under."""


class JobRefused(SlurmError):
    """A refusal of a job that this cluster will never accept as it is."""


# The text of a failed command tells the kind of error: that of the first pattern that is found.
KINDS = (
    # Limits on the jobs that a user or a cluster may have at a time.
    (SubmitLimit, r"(?:Assoc|QOS)\w*Submit|temporarily unable to accept job"),
    (SlurmUnreachable,
     r"(?i)Unable to contact slurm controller|Socket timed out|Connection (?:refused|timed out|reset)|standby mode|"
     r"Zero Bytes were transmitted|Unable to process configuration file|Could not establish a configuration source|"
     r"Transport endpoint|No route to host|Resource temporarily unavailable"),
    # Reasons that waiting does not change, unlike what is "not available now".
    (JobRefused,
     r"Invalid (?:partition|account|qos|wckey|license|feature|preferred feature|node name|generic resource|gres|"
     r"burst buffer|Trackable|time|-|job array)|invalid (?:partition|option)|unrecognized option|ambiguous option|"
     r"requires an argument|[Nn]ode count specification|Requested reservation is invalid|"
     r"Access denied to requested reservation|Requested node configuration is not available|"
     r"Memory (?:required by task|specification)|More processors requested|Requested time limit is invalid|"
     r"not permitted to use this (?:partition|reservation)|permission denied|"
     r"Job size specification|[Rr]equested (?:GRES|topology)|exceeds? (?:partition|configured)|"
     r"(?:Assoc|QOS)(?:Max\w+Per(?:Job|Node)|Min)"),
    (SubmitLimit, "violates accounting/QOS policy"),  # by itself; behind one of those it is the policy of that one
)  # fmt: skip


def in_allocation() -> bool:
    """Return whether this process runs in an allocation."""
    return bool(os.environ.get("SLURM_JOB_ID"))


def find_site(hardware: HardwareSpec) -> str:
    """Return where runs on this hardware start: `here`, in the `allocation` of SLURM that this process is in, in a job
    of its `queue`, or on `pods` of Kubernetes."""
    if hardware.this_machine or hardware.scheduler == "none":
        return "here"
    return "pods" if hardware.scheduler == "kubernetes" else "allocation" if in_allocation() else "queue"


class Slurm:
    """The commands of SLURM in the folder `bin`, or on the PATH where that is None."""

    def __init__(self, bin: str | None = None) -> None:
        self._bin = None if bin is None else str(Path(bin).expanduser())

    def path(self, name: str) -> str | None:
        """Return the path of a command; None where there is no such command."""
        return shutil.which(name) if self._bin is None else shutil.which(name, path=self._bin)

    def run(
        self,
        name: str,
        *arguments: str,
        timeout_s: float = COMMAND_TIMEOUT_S,
        environment: Mapping[str, str] | None = None,
    ) -> str:
        """Run a command and return its output; SlurmError where it fails.

        Without `environment` it gets that of this process, but for variables that change the format of the output,
        and writes times as seconds since the epoch.
        """
        path = self.path(name)
        if path is None:
            where = "on the PATH; set hardware.slurm.bin" if self._bin is None else f"in {self._bin}"
            raise SlurmUnreachable(f"there is no {name} {where}")
        if environment is None:
            env = {name: value for name, value in os.environ.items() if not QUERY_VARIABLES.match(name)}
            environment = env | {"LC_ALL": "C", "SLURM_TIME_FORMAT": "%s"}
        # In its own session: a Ctrl-C that ends sbatch would lose the number of its job.
        pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        try:
            process: subprocess.Popen[str] = subprocess.Popen(
                [path, *arguments], env=environment, text=True, errors="replace", start_new_session=True, **pipes
            )
        except OSError as error:
            raise SlurmUnreachable(f"{path} cannot be run: {error.strerror}") from error
        with process:
            try:
                out, err = process.communicate(timeout=timeout_s)
            except BaseException as error:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)  # with its children, which hold the pipes
                process.kill()
                if isinstance(error, subprocess.TimeoutExpired):
                    raise SlurmUnreachable(f"{name} did not answer within {timeout_s:g} s") from None
                raise
        if process.returncode != 0:
            raise classify_error(name, process.returncode, err or out)
        return out


def expand_nodes(slurm: Slurm, names: str) -> list[str]:
    """Return the names of nodes from SLURM's short form, h[1-2]: by a command that needs no controller; SlurmError."""
    return slurm.run("scontrol", "show", "hostnames", names).split() if set("[,") & set(names) else [names]


def classify_error(name: str, code: int, text: str) -> SlurmError:
    """Return the kind of error that the text of a failed command means."""
    line = shorten_message(text)
    kind = next((kind for kind, pattern in KINDS if re.search(pattern, text)), SlurmError)
    return kind(line or f"{name} ended with exit code {code} and printed nothing")


def shorten_message(text: str) -> str:
    """Return the lines of an error in one line, each once and without the prefixes of SLURM's commands."""
    lines = []
    for line in text.splitlines():
        if HINTS.search(line):
            continue
        previous = None
        while previous != line:
            previous, line = line, MESSAGE_PREFIX.sub("", line.strip())
        lines.append(line)
    message = "; ".join(line for line in dict.fromkeys(lines) if line)
    return message if len(message) <= MAX_MESSAGE_CHARACTERS else f"{message[: MAX_MESSAGE_CHARACTERS - 3]}..."
