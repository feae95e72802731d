"""Starts the ranks of a run as one step of the job that this process is in: srun, and a keeper for each. Layer 2.

The launcher may stand on a node of the job or not: it watches the files that the keepers leave, as under mpirun, and
what srun says of ranks on other nodes.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from scalebench.launchers import allocation, leash, ports, srun_words
from scalebench.launchers.kept_group import LATE_S, KeptGroup
from scalebench.launchers.kept_group import start as start_program
from scalebench.launchers.local import Child
from scalebench.launchers.surroundings import ADDRESSES, RUN_ID
from scalebench.launchers.watch import STACK_S, Ended, attend
from scalebench.measure.progress import Progress
from scalebench.process import StartError, signals_later, start_errors
from scalebench.run_folder import SRUN_HOSTS_FILE, SRUN_LOG
from scalebench.slurm.commands import Slurm
from scalebench.slurm.geometry import rank_command
from scalebench.spec import RunSpec

# Of the job, and not of this step: srun would take them for its options, or wonder about them.
OF_THE_JOB = (
    "SLURM_NTASKS_PER_NODE",
    "SLURM_DISTRIBUTION",
    "SLURM_HOSTFILE",
    "SLURM_TRES_PER_TASK",
    "SLURM_CPU_BIND",
    "SLURM_EXPORT_ENV",
)


def launch(
    spec: RunSpec,
    folder: Path,
    run_id: str,
    on_look: Callable[[list[Progress]], None] = lambda progress: None,
    module: str = "scalebench.worker",
) -> Ended:
    """Run all ranks of `spec` in `folder`, which every node sees, to their end; see local.launch.

    What srun says is in srun.log there. With `debug`, it goes where our own words go.
    """
    group, bin = StepGroup(folder, spec.processes), spec.config.hardware.slurm.bin

    def start() -> None:
        if Slurm(bin).path("srun") is None:
            where = "on the PATH; set hardware.slurm.bin" if bin is None else f"in {bin}"
            raise StartError(f"there is no srun {where}")
        hosts = allocation.hosts_of_ranks(spec)
        command = _dealt(rank_command(spec, folder, module, hosts, bin), hosts)
        with signals_later(), start_errors():
            (folder / SRUN_HOSTS_FILE).write_text("".join(f"{host}\n" for host in hosts))
            variables = _variables(hosts, run_id, folder)
            group.starter = Child(
                start_program(leash.command(os.getpid(), command), variables, folder / SRUN_LOG, spec.config.debug)
            )

    return attend(spec, folder, group, start, on_look)


def _dealt(command: list[str], hosts: list[str]) -> list[str]:
    """The srun that follows the list of hosts, where the job's own tasks lie otherwise on its nodes than the ranks."""
    if len(set(hosts)) == 1 or allocation.deals_as(hosts):
        return command
    other = ("--ntasks-per-node=", "--nodelist=", "--distribution=")
    return [command[0], "--distribution=arbitrary", *(word for word in command[1:] if not word.startswith(other))]


def _variables(hosts: list[str], run_id: str, folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in OF_THE_JOB}
    return kept | {
        ADDRESSES: ",".join(ports.addresses(hosts, run_id)),
        RUN_ID: run_id,
        leash.LEASH: leash.ELSEWHERE,  # the daemons of the nodes start the ranks
        "SLURM_HOSTFILE": str((folder / SRUN_HOSTS_FILE).absolute()),  # read where the distribution is arbitrary
    }


class StepGroup(KeptGroup):
    """The ranks of one step."""

    def __init__(self, folder: Path, ranks: int) -> None:
        super().__init__(folder, ranks, "srun", SRUN_LOG, srun_words.words)
        self._ending = False
        self._before = ""  # what srun had said then
        self._read_bytes = 0
        self._ended: dict[int, float] = {}  # when a rank was first seen to have ended, by what srun says

    def broken(self) -> str | None:
        """Also when a keeper on another node ended without a word: srun, told to leave the others alone, says so."""
        said = super().broken()
        if said is not None:
            return said
        now_s = time.monotonic()
        for rank, how in self._silent().items():
            if now_s - self._ended.setdefault(rank, now_s) > LATE_S:
                return srun_words.words(self._log) or f"srun: rank {rank}: {how}"
        return None

    def first(self, bad: list[int]) -> list[int]:
        """A rank that was killed with its keeper is the cause of what the others say of lost connections."""
        self._silent()
        return [rank for rank, member in enumerate(self.members) if member.lost] or bad

    def _silent(self) -> dict[int, str]:
        """Ranks that left no word of their end, and have ended by themselves, as srun says. The killed are given up.

        A keeper stays for a while after its last word, which other hosts have seen by then.
        """
        silent = {rank: how for rank, how in self._ended_tasks().items() if not self.members[rank].over}
        for rank in [rank for rank, how in silent.items() if not srun_words.EXITED.match(how)]:
            self.members[rank].give_up()
            del silent[rank]
        return silent

    def _ended_tasks(self) -> dict[int, str]:
        """Read anew only where there is more than at the last look, or somebody is waited for."""
        size = self._log.stat().st_size if self._log.exists() else 0
        if size == self._read_bytes and all(self.members[rank].over for rank in self._ended):
            return {}
        self._read_bytes = size
        found = srun_words.ended_tasks(srun_words.read(self._log))
        return {rank: how for rank, how in found.items() if rank < len(self.members)}

    def verdict(self) -> tuple[str, str] | None:
        """SLURM's. That the step was cancelled says nothing once we have ended it; what memory did is told late."""
        text = srun_words.read(self._log)
        return srun_words.memory(text) if self._ending else srun_words.verdict(text)

    def ask_for_stacks(self) -> None:
        """Ranks on other nodes get the request from srun, which passes it on to all."""
        if self.starter is None or not any(member.seen and member.pid is None for member in self.members):
            super().ask_for_stacks()
            return
        self.starter.signal(signal.SIGUSR1)
        time.sleep(STACK_S)

    def end(self, grace_s: float) -> None:
        if not self._ending:
            self._ending, self._before = True, srun_words.read(self._log)
        super().end(grace_s)

    def _drop_empty_log(self) -> None:
        """Nor is one of any use that holds only what is of no account, or follows from our ending the step."""
        (self._log.parent / SRUN_HOSTS_FILE).unlink(missing_ok=True)
        if self._log.exists() and srun_words.only_noise(self._before) and self.verdict() is None:
            self._log.unlink()
