"""Starts the ranks of a run as one step of the job that this process is in: by srun, with an agent on each node.

The program may be on a node of the job or not: agents connect to it. What srun prints says why SLURM ended a step.
"""

from __future__ import annotations

import contextlib
import os
import re

from scalebench.cluster.commands import Slurm, SlurmError, expand_nodes, find_site
from scalebench.cluster.resources import ARBITRARY, count_gpus_per_node, srun_command
from scalebench.core import exit_with_parent
from scalebench.core.process import StartError, as_start_errors
from scalebench.core.result import SchedulerRecord
from scalebench.core.run_folder import SRUN_HOSTS_FILE, SRUN_LOG
from scalebench.core.spec import RunSpec
from scalebench.runner.launchers.agents import AgentRanks
from scalebench.runner.launchers.rank_environment import assign_rank_addresses
from scalebench.runner.launchers.supervise import GroupExit, LaunchRequest, supervise

GPUS_PER_TASK = {"SLURM_GPUS_PER_TASK", "SLURM_TRES_PER_TASK"}  # of a job that was requested so
JOB_ID, PARTITION = "SLURM_JOB_ID", "SLURM_JOB_PARTITION"
TASKS_PER_NODE, CPUS_PER_NODE = "SLURM_TASKS_PER_NODE", "SLURM_JOB_CPUS_PER_NODE"  # 2(x3),1
NODE_LIST = "SLURM_JOB_NODELIST"
# They describe the job and not this step: srun would take them for its own options, or warn about them. Those of SRUN_
# are options of the user's own steps.
JOB_VARIABLES = {
    *(f"SLURM_{name}" for name in "DISTRIBUTION EXPORT_ENV HINT HOSTFILE NTASKS_PER_NODE THREADS_PER_CORE".split()),
    # An agent has the cores and GPUs of all ranks on its node, and each rank takes its own.
    *(f"SLURM_{name}" for name in "CPU_BIND CPUS_PER_GPU CPUS_PER_TASK GPU_BIND MEM_PER_GPU NTASKS_PER_GPU".split()),
    *(f"SLURM_{name}" for name in "GPUS GPUS_PER_NODE GPUS_PER_SOCKET GPUS_PER_TASK TRES_PER_TASK".split()),
    "SRUN_CPUS_PER_TASK",
    "SRUN_EXPORT_ENV",
}
STEP_ID, INTERACTIVE_STEP = "SLURM_STEP_ID", "4294967290"  # of salloc, which shares the resources of the job anyway
AGENT_PREFIX = "scalebench: "  # before the message of an agent that cannot start its worker
# Warnings, and the messages of srun when a signal ends it.
SRUN_NOISE = re.compile(
    r'lacks support for cpu binding|^Try ".*" for more |'
    r"^srun: (got SIG|forcing job termination|warning:|Job step aborted|interrupt|"
    r"sending |launching |Step created|Job \d+ step creation (temporarily disabled|still disabled)|job \d+ )"
)
MEMORY_EXCEEDED = re.compile(r"exceeded (?:job )?memory limit|oom[-_ ]kill|Out Of Memory|OOM Killed", re.IGNORECASE)
CANCELLED = re.compile(r"\*\*\* (?:STEP|JOB) \S+ ON \S+ CANCELLED AT \S+( DUE TO [A-Z ]+[A-Z])?")
STATUS_BY_CAUSE = {"TIME LIMIT": "timeout", "PREEMPTION": "cancelled", "NODE FAILURE": "failed"}
NODE_FAILED = re.compile(r"Node failure on (\S+)")
ENDED_TASKS = re.compile(r"srun: error: \S+: tasks? [\d,-]+: ")  # which their agents have explained
ERROR_LINE = re.compile(r"^(srun|slurmstepd)(\S*): (?:error|fatal): ")
MAX_REASON_CHARACTERS = 300


def launch(request: LaunchRequest) -> GroupExit:
    """Run all ranks to their end. The output of srun is in srun.log, with `debug` where that of this process goes."""
    spec, folder, bin = request.spec, request.folder, request.spec.config.hardware.slurm.bin
    hosts = rank_nodes(spec)
    names = [*map(str, range(spec.processes))] if spec.config.strategy.launcher == "mpi" else hosts
    group = StepRanks(request, names, "srun", SRUN_LOG, find_srun_failure)

    def start() -> None:
        if Slurm(bin).path("srun") is None:
            where = "on the PATH; set hardware.slurm.bin" if bin is None else f"in {bin}"
            raise StartError(f"there is no srun {where}")
        command = srun_command(spec, folder, group.listen(hosts), hosts, bin)
        if ARBITRARY not in command and (gpus := count_gpus_per_node(spec)) and os.environ.keys() & GPUS_PER_TASK:
            command.insert(1, f"--gpus-per-node={gpus}")  # else the agent had those of one task
        addresses = assign_rank_addresses(hosts, request.run_id, spec.config.hardware.ports)
        variables = step_environment() | overlap_variables(spec)
        # The nodes' daemons start the agents, which are not descendants of srun.
        variables[exit_with_parent.LAUNCHER_VARIABLE] = exit_with_parent.REMOTE_LAUNCHER
        if ARBITRARY in command:
            hosts_file = (folder / SRUN_HOSTS_FILE).absolute()
            with as_start_errors():
                hosts_file.write_text("".join(f"{host}\n" for host in hosts))
            variables["SLURM_HOSTFILE"] = str(hosts_file)
        group.start_agents(command, variables)
        group.gather(addresses, os.getcwd())

    return supervise(request, group, start)


def step_environment() -> dict[str, str]:
    """Return this environment without the variables that describe the job."""
    return {name: value for name, value in os.environ.items() if name not in JOB_VARIABLES}


def job_nodes(bin: str | None = None) -> list[str]:
    """Return the names of the job's nodes, in SLURM's order; StartError where they are unknown."""
    if not os.environ.get(NODE_LIST):
        raise StartError(f"{NODE_LIST} is not set: this shell is in no allocation")
    try:
        return expand_nodes(Slurm(bin), os.environ[NODE_LIST])
    except SlurmError as error:
        raise StartError(str(error)) from error


def rank_nodes(spec: RunSpec) -> list[str]:
    """Return the name of each rank's node, of the first ones of the job. StartError where it has too few."""
    names = job_nodes(spec.config.hardware.slurm.bin)
    if len(names) < spec.nodes:
        needs = f"gpus={spec.gpus} needs {spec.nodes} nodes, and job {os.environ.get(JOB_ID)} has {len(names)}"
        raise StartError(f"{needs}; ask for more nodes, or lower gpus")
    return [names[place.node] for place in spec.places]


def task_layout_variables(hosts: list[str], bin: str | None = None) -> dict[str, str]:
    """Return the variables that the job would have if it had been requested with the ranks of each node as its tasks:
    `salloc -N2 -n4` may well give three tasks to one node and one to the other.

    There is no other way to give a node more slots: Open MPI takes them from these variables, and --host can only lower
    them. An Open MPI that is set not to query SLURM (ras=^slurm) still starts its daemons by srun, and then all on the
    first node. StartError where the names of the nodes are unknown.
    """
    return {TASKS_PER_NODE: ",".join(str(hosts.count(name) or 1) for name in job_nodes(bin))}


def overlap_variables(spec: RunSpec) -> dict[str, str]:
    """Return the variable by which a step shares all resources of the job with other steps: for a run that takes turns,
    and within `srun --pty bash`, whose shell is a step that has all of them.

    By default srun waits for cores and memory that no other step has. An option would be an error before SLURM 20.11,
    and the srun by which mpirun starts its daemons takes none.
    """
    is_within_step = os.environ.get(STEP_ID, INTERACTIVE_STEP) != INTERACTIVE_STEP
    return {"SLURM_OVERLAP": "1"} if spec.cohort or is_within_step else {}


def node_memory_bytes(spec: RunSpec) -> int | None:
    """Return the memory that this job has on each node; None where that is unknown."""
    per_node, per_cpu = (os.environ.get(f"SLURM_MEM_PER_{unit}", "") for unit in ("NODE", "CPU"))
    cpus = re.match(r"\d+", os.environ.get(CPUS_PER_NODE, ""))  # of the first node: 2(x3),1
    if per_node.isdigit() and int(per_node):  # 0: all that there is
        return int(per_node) << 20
    if per_cpu.isdigit() and int(per_cpu) and cpus is not None:
        return int(per_cpu) * int(cpus[0]) << 20
    return spec.config.hardware.memory_bytes


def describe_current_job(spec: RunSpec) -> SchedulerRecord | None:
    """Describe the job that this process is in; None outside of one, and for a run that does not use it. Its time in
    the queue is known to the program that submitted it."""
    if find_site(spec.config.hardware) != "allocation":
        return None
    record = SchedulerRecord("slurm", os.environ[JOB_ID], os.environ.get(PARTITION))
    with contextlib.suppress(StartError):
        record.nodes = job_nodes(spec.config.hardware.slurm.bin)[: spec.nodes]
    return record


class StepRanks(AgentRanks):
    """The ranks of one job step."""

    _log_before_end: str | None = None  # the output of srun until we ended it

    def batch_outcome(self) -> tuple[str, str] | None:
        """Return the outcome by srun's log. Once we have ended the step, only a lack of memory counts, which is
        reported late: that the step was cancelled then follows from our ending it."""
        text = self.read_log()
        return step_outcome(text) if self._log_before_end is None else memory_outcome(text)

    def end(self, grace_s: float) -> None:
        if self._log_before_end is None:
            self._log_before_end = self.read_log()
        super().end(grace_s)
        (self.folder / SRUN_HOSTS_FILE).unlink(missing_ok=True)
        # Also a log of nothing but noise, or of messages that follow from our ending the step.
        lines = filter(str.strip, self._log_before_end.splitlines())
        if all(map(SRUN_NOISE.search, lines)) and self.batch_outcome() is None:
            (self.folder / SRUN_LOG).unlink(missing_ok=True)


def find_srun_failure(log: str) -> str | None:
    """Return the line that explains a failure best: of an agent, else the first error, else the last of any."""
    lines = [line.strip() for line in log.splitlines()]
    lines = [line for line in lines if line and not SRUN_NOISE.search(line) and not ENDED_TASKS.match(line)]
    of_agents = [line.removeprefix(AGENT_PREFIX) for line in lines if line.startswith(AGENT_PREFIX)]
    errors = [ERROR_LINE.sub(r"\1\2: ", line) for line in lines if ERROR_LINE.match(line)]
    if line := next(iter([*of_agents, *errors]), None):
        return line[:MAX_REASON_CHARACTERS]
    last = lines[-1][:MAX_REASON_CHARACTERS] if lines else None  # of a Python traceback it has the reason
    return last if last is None or last.startswith(("srun", "slurmstepd")) else f"srun: {last}"


def memory_outcome(text: str) -> tuple[str, str] | None:
    """Return status and reason of a step that used too much memory."""
    line = next((line for line in text.splitlines() if MEMORY_EXCEEDED.search(line)), None)
    return None if line is None else ("oom", f"SLURM: {ERROR_LINE.sub('', line.strip())[:MAX_REASON_CHARACTERS]}")


def step_outcome(text: str) -> tuple[str, str] | None:
    """Return status and reason where SLURM ended the step; not where it only reports how ranks ended."""
    if (outcome := memory_outcome(text)) is not None:
        return outcome
    if (node := NODE_FAILED.search(text)) is not None:
        return "failed", f"SLURM: node failure on {node[1]}"
    if (ended := CANCELLED.search(text)) is not None:
        cause = (ended[1] or "").removeprefix(" DUE TO ")
        event = "the job was cancelled" if not cause else f"the job was ended, due to {cause.lower()}"
        return STATUS_BY_CAUSE.get(cause, "cancelled"), f"SLURM: {event}"
    return None
