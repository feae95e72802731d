"""The table of faults: fault x phase x adapter family x launcher, with the end that each combination has to have.

`planned_rows` lists the combinations that are tried, `untried` says what is not, and why. harness.py runs a row.
"""

from collections import Counter
from dataclasses import dataclass, field

LAUNCH, SETUP, WARMUP, MEASURING = "launch", "setup", "warm-up", "measuring"
AWAKE, PARKED = "awake", "parked"  # of two runs that take turns, the first while it has its turn
EVALUATING, PROBES, END = "evaluating", "probes", "end"
IN_A_RANK = (SETUP, WARMUP, MEASURING, EVALUATING, PROBES, END)  # phases in which a rank does something
PHASES = (LAUNCH, SETUP, WARMUP, MEASURING, AWAKE, PARKED, EVALUATING, PROBES, END)
AFTER_LAUNCH = (SETUP, WARMUP, MEASURING, PARKED, EVALUATING, PROBES, END)  # awake is as measuring to surroundings
RANK_HANG_S = 6.0  # measure.hang_s of rows whose rank hangs; longer than any pause of the simulated strategy
REAL_HANG_S = 45.0  # the same for frameworks, which start slowly


@dataclass(frozen=True)
class Expected:
    """The end of a run after a fault."""

    status: str  # of its row
    exit_code: int
    reason: str = ""  # part of the row's reason; {rank} is the rank that fails, {where} `rank 1: ` of several


OK = Expected("ok", 0)
CANCELLED = Expected("cancelled", 1, "cancelled while it ran")


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong, to whom and when; `inside`: a rank does it to itself, the others come from outside."""

    name: str
    victim: str  # rank, parent, monitor, decoder, launcher or surroundings
    text: str
    expected: Expected
    phases: tuple[str, ...]
    inside: bool = False
    bound_s: float = 30.0  # from the fault to the end of the last process
    elsewhere: dict[str, Expected] = field(default_factory=dict, hash=False)  # by phase or launcher, where it differs


def _failed(reason):
    return Expected("failed", 1, reason)


def _rank_fault(name, text, expected, phases=IN_A_RANK, **changes):
    return Fault(name, "rank", text, expected, phases, inside=True, **changes)


IN_TURNS = (*IN_A_RANK, AWAKE)
_HANGS = Expected("timeout", 1, "no rank made progress for")
FAULTS = (
    _rank_fault("raise", "a rank raises an exception", _failed("{where}RuntimeError: failed as configured"), IN_TURNS),
    _rank_fault(
        "exit", "a rank exits with status 7", _failed("rank {rank} ended with exit status 7 and without a reason"),
        IN_TURNS,
    ),
    _rank_fault(
        "kill", "SIGKILL of a rank", _failed("rank {rank} was killed by SIGKILL"),
        phases=(*IN_TURNS, PARKED),
    ),
    _rank_fault("stop", "SIGSTOP of a rank", _HANGS, IN_TURNS, bound_s=60.0),
    _rank_fault("hang", "a rank waits for ever", _HANGS, bound_s=60.0),
    _rank_fault(  # beside another run it is measured again by itself, where this fault does not come a second time
        "oom", "a rank runs out of memory", Expected("oom", 1, "{where}out of memory"), IN_TURNS, elsewhere={AWAKE: OK}
    ),
    _rank_fault(
        "unsupported", "a rank finds that it cannot run here", Expected("unsupported", 1, "unsupported as configured"),
        phases=(SETUP,),
    ),
    _rank_fault(  # it can write no record, so that another rank that lost it may be named; at the end close() frees one
        "descriptors", "a rank has no file descriptor left", _failed("rank "), elsewhere={END: OK}
    ),
    _rank_fault("print", "a rank prints 1 GB", OK, phases=(SETUP, MEASURING, END)),
    _rank_fault(
        "port", "the port of a rank is taken", _failed("cannot listen on port"), phases=(SETUP,)
    ),
    Fault("SIGINT", "parent", "Ctrl-C", CANCELLED, PHASES),
    Fault("SIGINT twice", "parent", "Ctrl-C twice", CANCELLED, PHASES),
    Fault("SIGTERM", "parent", "SIGTERM of the parent", CANCELLED, PHASES),
    Fault("SIGHUP", "parent", "SIGHUP: a closed terminal", CANCELLED, PHASES),
    Fault(
        "SIGKILL", "parent", "SIGKILL of the parent",
        Expected("failed", -9, "the program that ran it was killed"), PHASES,
    ),
    Fault("SIGSTOP", "parent", "SIGSTOP of the parent for 3 s", OK, AFTER_LAUNCH),
    Fault("kill monitor", "monitor", "SIGKILL of the monitor", OK, AFTER_LAUNCH),
    Fault("stop monitor", "monitor", "SIGSTOP of the monitor", OK, AFTER_LAUNCH),
    Fault("end worker", "launcher", "SIGTERM of a rank", _failed("rank {rank} was killed by SIGTERM"), (MEASURING,)),
    Fault("kill ps", "launcher", "SIGKILL of a ps process", _failed("rank 1 (ps) was killed by SIGKILL"), (MEASURING,)),
    Fault(
        "kill service", "launcher", "SIGKILL of a worker of a ps", _failed("rank 3 (worker) was killed by SIGKILL"),
        (MEASURING,),
    ),
    Fault(
        "kill decoder", "decoder", "SIGKILL of a process that decodes pictures",
        _failed(
            "{where}a process that decodes pictures (dataset.workers=2) was killed: lower "
            "dataset.workers if it took too much memory"
        ),
        (WARMUP, MEASURING, PARKED),
    ),
    Fault("kill launcher", "launcher", "SIGKILL of mpirun", _failed("mpirun was killed by SIGKILL"), (MEASURING,)),
    Fault(
        "end launcher", "launcher", "SIGTERM of mpirun, or of an agent", _failed("mpirun ended rank "), (MEASURING,),
        elsewhere={"by_hand": _failed("was terminated on its own host; was its agent ended?")},
    ),
    Fault(
        "kill agent", "launcher", "SIGKILL of an agent", _failed("was lost: the connection to its agent ended"),
        (MEASURING,),
    ),
    # The row is on the terminal.
    Fault("disk full", "surroundings", "the disk is full", _failed(""), AFTER_LAUNCH),
    Fault(
        "folder gone", "surroundings", "the run's folder is removed", _failed("its folder was removed while it ran"),
        AFTER_LAUNCH,
    ),
    Fault("folder read-only", "surroundings", "the run's folder is read-only", _failed(""), AFTER_LAUNCH),
    Fault("stdout full", "surroundings", "stdout is /dev/full from the start", OK, (LAUNCH,), bound_s=60.0),
    Fault("stdout closed", "surroundings", "the reader of stdout has gone", OK, PHASES),
    Fault("few descriptors", "surroundings", "the parent may open 4 more files", OK, AFTER_LAUNCH),
    Fault("clock forward", "surroundings", "the clock is set an hour forward", OK, AFTER_LAUNCH),
    Fault("clock back", "surroundings", "the clock is set an hour back", OK, AFTER_LAUNCH),
    Fault("stall", "surroundings", "reading a progress file never ends (a pipe in its place)", OK, IN_A_RANK),
)  # fmt: skip
# The figures of a run are on disk before its probes: a rank that fails later leaves an ok row, with a flag.
AFTER_THE_FIGURES = ("raise", "exit", "kill", "stop", "hang", "oom", "descriptors")
BY_NAME = {fault.name: fault for fault in FAULTS}


@dataclass(frozen=True)
class Family:
    """A strategy that stands for an adapter family."""

    strategy: str
    rank: int = 1  # that fails, of those that measure
    processes: int = 2
    launcher: str = "local"

    framework: str = ""

    @property
    def is_real(self):
        return self.strategy != "simulated"


SIMULATED = Family("simulated")
FAMILIES = (
    SIMULATED,
    Family("ddp_gloo", framework="PyTorch"),
    Family("lightning_ddp_gloo", framework="PyTorch"),
    Family("fsdp_gloo", framework="PyTorch"),
    Family("pipeline_1f1b", framework="PyTorch"),
    Family("horovod_gloo", framework="Horovod"),
    Family("horovod_mpi", launcher="mpi", framework="Horovod"),
    Family("mirrored", rank=0, processes=1, framework="TensorFlow"),
    Family("multiworker_ring", framework="TensorFlow"),
    Family("parameter_server", rank=0, processes=4, framework="TensorFlow"),
    Family("parameter_server_sync", rank=0, processes=4, framework="TensorFlow"),
)
DECODING = ("ddp_gloo", "lightning_ddp_gloo", "horovod_gloo")  # with a reader of their own; TensorFlow's has threads


@dataclass(frozen=True)
class Row:
    """One combination."""

    fault: Fault
    phase: str
    family: Family
    launcher: str

    def __str__(self):
        return f"{self.fault.name}, {self.phase}, {self.family.strategy}, {self.launcher}"

    @property
    def rank(self):
        """Return the rank that fails; rank 0 listens for the others."""
        return 0 if self.fault.name == "port" else self.family.rank

    @property
    def takes_turns(self):
        return self.phase in (AWAKE, PARKED)

    @property
    def expected(self):
        if self.phase in (EVALUATING, PROBES, END) and self.fault.name in AFTER_THE_FIGURES:
            return OK
        return self.fault.elsewhere.get(self.phase) or self.fault.elsewhere.get(self.launcher, self.fault.expected)

    @property
    def bound_s(self):
        """Return the limit in seconds from the fault to the end of the last process."""
        is_slow = self.family.is_real
        # The other run goes on for a while, and one that was out of memory starts anew.
        return self.fault.bound_s + (30.0 if is_slow else 0.0) + (30.0 if self.takes_turns else 0.0)

    @property
    def hang_s(self):
        if self.fault.name not in ("stop", "hang"):
            return 240.0
        return REAL_HANG_S if self.family.is_real else RANK_HANG_S

    @property
    def cost(self):
        """Return about the processor seconds that it takes, with its waits."""
        base = {"local": 4.0, "mpi": 6.0, "by_hand": 8.0}[self.launcher] + (12.0 if self.family.is_real else 0.0)
        base *= 2 if self.takes_turns else 1  # a second run, and rounds of both
        return base + (self.hang_s if self.fault.name in ("stop", "hang") else 0.0)


def _rows(names, phases, family, launcher):
    wanted = tuple(phases)
    for name in names:
        fault = BY_NAME[name]
        yield from (Row(fault, phase, family, launcher) for phase in fault.phases if phase in wanted)


def planned_rows():
    """List all rows that are tried."""
    of_ranks = ("raise", "exit", "kill", "stop", "oom")
    of_mpi, of_servers = ("kill launcher", "end launcher", "kill agent"), ("kill ps", "kill service")
    everywhere = [fault.name for fault in FAULTS if fault.name not in (*of_mpi, *of_servers)]
    rows = [*_rows(everywhere, PHASES, SIMULATED, "local")]
    rows += _rows((*of_ranks, "hang", "end worker", "SIGINT", "SIGTERM", "SIGKILL", *of_mpi), PHASES, SIMULATED, "mpi")
    rows += _rows(
        ("raise", "kill", "SIGINT", "SIGKILL", "end launcher", "kill agent"), (MEASURING,), SIMULATED, "by_hand"
    )
    rows += _rows(("SIGINT",), (LAUNCH,), SIMULATED, "by_hand")
    for family in FAMILIES[1:]:
        rows += _rows((*of_ranks, "SIGINT", "SIGKILL"), (MEASURING, AWAKE), family, family.launcher)
        rows += _rows(("kill",), (SETUP, WARMUP, PARKED, PROBES, END), family, family.launcher)
        rows += _rows(("SIGINT", "SIGKILL"), (PARKED,), family, family.launcher)
        if family.strategy in DECODING:
            rows += _rows(("kill decoder",), (MEASURING, PARKED), family, family.launcher)
        if family.strategy.startswith("parameter_server"):
            rows += _rows(of_servers, (MEASURING,), family, family.launcher)
    return rows


def covering_sample(rows):
    """Return few and cheap rows of `simulated` that have every kind of victim, every phase and every way of ending the
    parent at least once, locally and under MPI: what make test runs."""
    wanted = {"SIGINT", "SIGTERM", "SIGKILL", "local", "mpi", *PHASES, *(fault.victim for fault in FAULTS)}
    left = sorted(
        (row for row in rows if row.family is SIMULATED and row.launcher != "by_hand"), key=lambda row: row.cost
    )
    facets = {row: {row.fault.victim, row.phase, row.launcher, row.fault.name} & wanted for row in left}
    missing = set().union(*facets.values())
    sample = []
    used = Counter()
    while missing:
        best = max(left, key=lambda row: len(facets[row] & missing) / (row.cost * (1 + used[row.fault.name])))
        sample.append(best)
        used[best.fault.name] += 1
        left.remove(best)
        missing -= facets[best]
    return [row for row in facets if row in sample]


def untried():
    """Return what is not tried, and why."""
    return {
        "a fault inside of a parked rank": "it is stopped and does nothing; only SIGKILL can reach it",
        "surroundings, the monitor and other signals of the parent with frameworks": (
            "they end in the parent, which is the same for all strategies: tried with `simulated`"
        ),
        "evaluating, and faults in other phases than SIGKILL, with frameworks": "tried with `simulated`",
        "by_hand in other phases than measuring": "the agents are those of mpi, which are tried in every phase",
        "srun": "needs a SLURM cluster: tests/cluster/test_faults.py",
        "GPUs": "no machine of the project has several: a rank that hangs in NCCL, a GPU that is lost, Xid errors",
        "the kernel's own out-of-memory killer": "it takes any process of the machine; a rank gets a limit instead",
        "several hosts": "a lost network and a host that dies: tests/cluster, with network namespaces",
        "a stalled network file system": "a pipe stands for it; a hard-mounted NFS cannot be interrupted by anything",
    }
