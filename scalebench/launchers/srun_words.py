"""What srun and the daemons of SLURM write of the ranks that they started: srun.log. Layer 2."""

from __future__ import annotations

import re
from pathlib import Path

from scalebench.system_files import cpu_list

OWN = "scalebench: "  # begins what a keeper says that cannot start its worker
# Of no account: warnings, and what srun says of being told to end.
NOISE = re.compile(
    r'lacks support for cpu binding|^Try ".*" for more |'
    r"^srun: (got SIG|forcing job termination|warning:|Job step aborted|interrupt|"
    r"sending |launching |Step created|Job \d+ step creation (temporarily disabled|still disabled)|job \d+ )"
)
MEMORY = re.compile(r"exceeded (?:job )?memory limit|oom[-_ ]kill|Out Of Memory|OOM Killed", re.IGNORECASE)
CANCELLED = re.compile(r"\*\*\* (?:STEP|JOB) \S+ ON \S+ CANCELLED AT \S+( DUE TO [A-Z ]+[A-Z])?")
STATUS = {"TIME LIMIT": "timeout", "PREEMPTION": "cancelled", "NODE FAILURE": "failed"}
NODE_FAILED = re.compile(r"Node failure on (\S+)")
TASKS = re.compile(r"^srun: error: (\S+): tasks? ([\d,-]+): (.+)$", re.MULTILINE)
EXITED = re.compile(r"Exited with ")  # and not by a signal
LENGTH = 300


def read(log: Path) -> str:
    try:
        return log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def words(log: Path) -> str | None:
    """The first thing that explains a failure, in one line: a keeper's own words, an error, or anything else."""
    lines = [
        line
        for line in map(str.strip, read(log).splitlines())
        if line and not NOISE.search(line) and not TASKS.match(line)
    ]
    own = [line for line in lines if line.startswith(OWN)]
    if own:
        return own[0].removeprefix(OWN)[:LENGTH]
    errors = [line for line in lines if re.match(r"(srun|slurmstepd\S*): (error|fatal): ", line)]
    # A Python program that fails says last why.
    found = errors[0] if errors else lines[-1] if lines else None
    if found is None:
        return None
    text = re.sub(r"^(srun|slurmstepd)(\S*): (?:error|fatal): ", r"\1\2: ", found)[:LENGTH]
    return text if text.startswith(("srun", "slurmstepd")) else f"srun: {text}"


def only_noise(text: str) -> bool:
    """Whether nothing in it is of any account."""
    return all(NOISE.search(line) for line in text.splitlines() if line.strip())


def memory(text: str) -> tuple[str, str] | None:
    """The verdict over a step that used too much memory."""
    line = next((line for line in text.splitlines() if MEMORY.search(line)), None)
    return None if line is None else ("oom", f"SLURM: {_plain(line)}")


def verdict(text: str) -> tuple[str, str] | None:
    """Status and reason where SLURM ended the step; not where it only tells how ranks ended."""
    if (found := memory(text)) is not None:
        return found
    if (node := NODE_FAILED.search(text)) is not None:
        return "failed", f"SLURM: node failure on {node[1]}"
    if (ended := CANCELLED.search(text)) is not None:
        cause = (ended[1] or "").removeprefix(" DUE TO ")
        said = "the job was cancelled" if not cause else f"the job was ended, due to {cause.lower()}"
        return STATUS.get(cause, "cancelled"), f"SLURM: {said}"
    return None


def ended_tasks(text: str) -> dict[int, str]:
    """How srun says that each task ended which ended badly, in its words: Killed, Exited with exit code 1 ..."""
    return {task: how for _, tasks, how in TASKS.findall(text) for task in cpu_list(tasks)}


def _plain(line: str) -> str:
    return re.sub(r"^(srun|slurmstepd\S*): (error|fatal): ", "", line.strip())[:LENGTH]
