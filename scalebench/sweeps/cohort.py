"""A cohort: runs of a sweep that are alive at once and take turns, so that the machine's changes cancel between them.

Each run is started, set up and warmed up while the others are parked. On this machine's GPUs all but the first are set
up at once, as memory allows, and warm up one after the other. Then come rounds, in which each has one slot, in
random order. Evaluation and probes follow, one run after the other.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import psutil

from scalebench.cluster.commands import find_site
from scalebench.core.machine import gpus
from scalebench.core.machine.cpus import CpuTimes, read_cpu_times
from scalebench.core.process import cancelled
from scalebench.core.result import Result
from scalebench.core.run_folder import remove_run
from scalebench.core.spec import RunSpec
from scalebench.core.stats.estimates import Estimate, estimate_ratio_over_rounds
from scalebench.measure.progress import RankProgress
from scalebench.runner.launchers import srun
from scalebench.runner.launchers.supervise import WORKER
from scalebench.runner.parent import RunRequest, run_spec
from scalebench.runner.turns import Turns

# After so many rounds, and then at each doubling, the precision of the ratios is examined: at every round, chance alone
# would end the cohort too early.
FIRST_LOOK_ROUNDS = 8
MIN_UNDISTURBED_SHARE = 0.1  # of the rounds so far: with fewer, the time of all repeats would hardly give a few
FREE_MEMORY_SHARE = 0.1  # of the host's memory, left free when a cohort grows
GPU_TAKEN = "busy or unavailable"  # CUDA's error where a GPU in an exclusive compute mode has a process
# Rough anonymous memory of one process by framework, before any run of the cohort has shown its own.
PROCESS_BYTES = {"none": 50 << 20, "torch": 500 << 20, "tensorflow": 900 << 20}


@dataclass
class CohortProgress:
    """The state of a cohort between two slots, for the progress line."""

    runs: int
    started: int = 0
    first_figures_s: float | None = None  # when the last run started: about so long until all are warm
    warm: int = 0  # runs that have warmed up
    round: int = 0
    label: str = ""  # of the run that is awake
    ranks: list[RankProgress] = field(default_factory=list)  # its progress while it starts or ends
    seconds_left: float | None = None  # at most, of the rounds


OnProgress = Callable[[CohortProgress], None]


class Member:
    """One run of a cohort. A thread of its own supervises it, since a rank ends with the thread that started it."""

    def __init__(self, run: RunRequest, cohort: str, module: str = WORKER, held: bool = False) -> None:
        """A run that is `held` waits with its first step until it is told to warm up."""
        # A user's program counts its samples itself: until then as many for each device, or for all.
        self._samples = run.spec.global_batch or (run.spec.gpus if run.spec.config.scaling == "weak" else 1)
        self.run, self._module = run, module
        self.spec = replace(run.spec, cohort=cohort, held=held)
        self.turns = Turns(self.spec)
        self.rates: dict[int, float] = {}  # samples/s by round
        self.measured_s = 0.0
        self.result: Result | None = None
        self.error: BaseException | None = None
        self.dropped = False  # it cannot take turns, or not beside these runs
        self._thread = threading.Thread(target=self._supervise, name=f"run {run.number}")
        self.on_progress: Callable[[list[RankProgress]], None] = lambda ranks: None

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        """Wait until the run has ended and its result is written."""
        if self._thread.ident is not None:
            self._thread.join()

    def ran_out_of_memory(self) -> bool:
        """Return whether the run, which is over, failed for lack of memory, or of a GPU that takes one process: beside
        fewer others it may have enough."""
        self.join()
        result = self.result
        return result is not None and (result.status == "oom" or GPU_TAKEN in (result.reason or ""))

    def _supervise(self) -> None:
        try:
            self.result = run_spec(
                self.spec, self.run.folder, lambda ranks: self.on_progress(ranks), self._module, self.turns
            )
        except BaseException as error:
            self.error = error
        finally:
            self.turns.end()

    def record_slot(self, round: int, reports: Sequence[RankProgress], begin: CpuTimes, end: CpuTimes) -> None:
        """Record the throughput of a slot from what its ranks report, and whether other programs disturbed it, from
        the processor times before and after it."""
        if not self.spec.config.strategy.independent:
            reports = [reports[0]]
        steps_per_s = [report.steps / report.elapsed_s for report in reports if report.elapsed_s > 0]
        if self.turns.is_disturbed(begin, end):
            self.turns.disturbed_rounds.append(round)
        if steps_per_s:
            self.rates[round] = sum(steps_per_s) / len(reports) * self._samples
        self.measured_s += max(report.elapsed_s for report in reports)


class Cohort:
    """Conducts the runs of a cohort from their start to their end."""

    def __init__(self, runs: Sequence[RunRequest], on_progress: OnProgress, module: str = WORKER) -> None:
        """The first run is the reference of those whose own baseline is not among `runs`."""
        self.id = uuid.uuid4().hex[:12]
        self.members = [
            Member(run, self.id, module, number > 0 and can_set_up_ahead(run.spec)) for number, run in enumerate(runs)
        ]
        self._settings = self.members[0].spec.repeat_settings
        config = self.members[0].spec.config
        self._random = random.Random(f"{config.seed} {config.repeat}")
        self._progress, self._on_progress, self._began_s = CohortProgress(len(runs)), on_progress, time.monotonic()

    def run(self) -> Iterator[tuple[RunRequest, Result]]:
        """Yield each run that has ended with its result, when all have.

        Those that did not fit into the memory beside the others, or could not be stopped, are left out, and leave no
        folder. Raises KeyboardInterrupt, after the results are written, when it was cancelled.
        """
        started: list[Member] = []
        try:
            self._start(started)
            self._do_rounds([member for member in started if not member.turns.over])
            self._finish([member for member in started if not member.turns.over])
        except BaseException:
            cancelled_here = not cancelled.is_set()
            cancelled.set()  # each thread ends its run
            for member in started:
                member.join()
            if cancelled_here:
                cancelled.clear()
            raise
        for member in started:
            member.join()
            if member.dropped or (len(started) > 1 and member.ran_out_of_memory()):
                with contextlib.suppress(OSError):
                    remove_run(member.run.folder)
            elif member.result is not None:
                yield member.run, member.result
        for member in started:
            if member.error is not None:
                raise member.error

    def _start(self, started: list[Member]) -> None:
        """Start the runs, as many as fit beside each other, and take them one by one up to their gates."""
        rooms, is_full = [self._gpu_room()], False
        for member in self.members:
            if member not in started:
                rooms += [self._gpu_room()] if started else []
                if is_full or (started and not (self._fits([member], started) and self._fits_on_gpus(rooms))):
                    return
                self._begin(member, started)
            member.on_progress = self._show_ranks
            self._show(label=member.spec.label)
            if member.spec.held and member.turns.await_ready():
                member.turns.warm_up()
            if member.turns.await_gate():
                self._park(member)
                self._progress.warm += 1
            elif len(started) > 1 and member.ran_out_of_memory():
                is_full = True
            if len(started) == 1:
                self._set_up_ahead(started, [*rooms, self._gpu_room()])

    def _set_up_ahead(self, started: list[Member], rooms: Sequence[Sequence[gpus.GpuRoom]]) -> None:
        """Start those of the other runs that wait with their first step, as many as fit by what the first one needs,
        and wait until all of these are set up: imports would disturb another's warm-up."""
        ahead: list[Member] = []
        for member in self.members:
            fits = member.spec.held and self._fits([*ahead, member], started)
            if fits and self._fits_on_gpus(rooms, 1 + len(ahead)):
                ahead.append(member)
        for member in ahead:
            self._begin(member, started)
        for member in ahead:
            self._show(label=member.spec.label)
            member.turns.await_ready()

    def _begin(self, member: Member, started: list[Member]) -> None:
        """Start a run, and show that, with the time until all are warm if the rest take as long as those so far."""
        started.append(member)
        member.start()
        warm, runs = self._progress.warm, self._progress.runs
        left_s = (time.monotonic() - self._began_s) / warm * (runs - warm) if warm else None
        self._show(label=member.spec.label, started=len(started), first_figures_s=left_s)

    def _do_rounds(self, members: list[Member]) -> None:
        share_s = sum(member.spec.repeat_settings.max_s for member in members)
        most_s = sum(member.spec.config.measure.max_s for member in members)
        begin_s, number, look = time.monotonic(), 0, FIRST_LOOK_ROUNDS
        before = read_cpu_times()
        while members:
            elapsed_s = time.monotonic() - begin_s
            limit_s = most_s if self._needs_more_rounds(members, number) else share_s
            if number and elapsed_s + elapsed_s / number > limit_s:
                return
            left_s = (share_s if elapsed_s < share_s else limit_s) - elapsed_s
            if number == look:
                look *= 2
                if self._are_ratios_precise(members):
                    return
            number += 1
            for member in self._random.sample(members, len(members)):
                self._show(round=number, label=member.spec.label, seconds_left=max(left_s, 0.0))
                member.turns.grant(member.spec.config.measure.slot_s, number)
                reports = member.turns.await_gate()
                after = read_cpu_times()
                if reports:
                    member.record_slot(number, reports, before, after)
                    self._park(member)
                before = after
            members = [member for member in members if not member.turns.over]

    def _needs_more_rounds(self, members: Sequence[Member], rounds: int) -> bool:
        """Return whether a repeat may take the time of all repeats, since its share is too short for a few rounds that
        no other program disturbed. Where nearly all are disturbed, more time would not help."""
        if rounds < FIRST_LOOK_ROUNDS:
            return True
        undisturbed = min(len(self._undisturbed_rounds(member)) for member in members)
        return MIN_UNDISTURBED_SHARE * rounds <= undisturbed < FIRST_LOOK_ROUNDS

    def _finish(self, members: list[Member]) -> None:
        for member in members:
            member.on_progress = self._show_ranks
            self._show(label=member.spec.label, seconds_left=None)
            member.turns.grant(None)
            member.turns.await_end()

    def _park(self, member: Member) -> None:
        member.on_progress = lambda ranks: None
        if not member.turns.park():
            member.dropped = True
            member.turns.refuse("its processes could not be stopped, and so cannot take turns")
            member.turns.await_end()

    def _fits(self, more: Sequence[Member], started: Sequence[Member]) -> bool:
        """Return whether there is memory for more runs, on this host or on the nodes of the job."""
        need = sum(_memory_per_node(member, started) for member in more)
        if find_site(more[0].spec.config.hardware) in ("allocation", "pods"):
            limit = srun.node_memory_bytes(more[0].spec)
            need += sum(_memory_per_node(other, started) for other in started)
            return limit is None or need < (1 - FREE_MEMORY_SHARE) * limit
        memory = psutil.virtual_memory()
        return bool(memory.available - need > FREE_MEMORY_SHARE * memory.total)

    def _gpu_room(self) -> list[gpus.GpuRoom]:
        """Return the room on the GPUs that these runs drive on this host."""
        devices = {device for member in self.members for place in member.spec.places for device in place.devices}
        room = gpus.read_gpu_room() if any(member.spec.device == "cuda" for member in self.members) else []
        return [each for device, each in enumerate(room) if device in devices]

    def _fits_on_gpus(self, rooms: Sequence[Sequence[gpus.GpuRoom]], more: int = 1) -> bool:
        """Return whether the GPUs take more processes, and have memory for `more` runs as large as the largest so far;
        `rooms` are what they had before the first run and after each, since parked runs keep what they have."""
        for room in zip(*rooms, strict=True):
            if room[-1].compute_mode not in (None, "default"):
                return False
            free = [each.free_bytes for each in room if each.free_bytes is not None]
            need = max((before - after for before, after in pairwise(free)), default=0)
            if free and free[-1] - more * need < FREE_MEMORY_SHARE * (room[-1].total_bytes or 0):
                return False
        return True

    def _are_ratios_precise(self, members: Sequence[Member]) -> bool:
        if min(member.measured_s for member in members) < self._settings.min_s:
            return False
        ratios = [self._ratio(member) for member in members if self._reference(member) in members]
        return all(r is not None and r.relative_half_width() <= self._settings.target for r in ratios)

    def _reference(self, member: Member) -> Member:
        """Return its baseline without a wrapper, if that is in the cohort, else the first run."""
        bare = (other for other in self.members if other.spec.fingerprint == member.run.bare)
        return next(bare, self.members[0])

    def _ratio(self, member: Member) -> Estimate | None:
        """Return its throughput over that of its reference, from the rounds that both were in; without disturbed ones
        if enough are left."""
        reference, rounds = self._reference(member), self._undisturbed_rounds(member)
        if len(rounds) < FIRST_LOOK_ROUNDS:
            rounds = sorted(reference.rates.keys() & member.rates.keys())
        return estimate_ratio_over_rounds(
            [member.rates[number] for number in rounds], [reference.rates[number] for number in rounds]
        )

    def _undisturbed_rounds(self, member: Member) -> list[int]:
        """Return the rounds of a run and its reference in which no other program disturbed either."""
        reference = self._reference(member)
        disturbed = {*reference.turns.disturbed_rounds, *member.turns.disturbed_rounds}
        return sorted((reference.rates.keys() & member.rates.keys()) - disturbed)

    def _show_ranks(self, ranks: list[RankProgress]) -> None:
        self._show(ranks=ranks)

    def _show(self, ranks: Sequence[RankProgress] = (), **fields: object) -> None:
        self._progress = replace(self._progress, ranks=list(ranks), **fields)  # type: ignore[arg-type]
        self._on_progress(self._progress)


def can_set_up_ahead(spec: RunSpec) -> bool:
    """Return whether a run may be set up while others are: on GPUs of this machine, whose hosts have cores for that."""
    hardware = spec.config.hardware
    return spec.device == "cuda" and hardware.this_machine and not hardware.hosts and spec.config.script.path is None


def _memory_per_node(member: Member, started: Sequence[Member]) -> int:
    """Return the anonymous memory of a run on its fullest node: as much per process as similar ones have, or a rough
    figure."""
    framework = member.spec.config.strategy.framework
    similar = [other for other in started if other.spec.config.strategy.framework == framework]
    sizes = [size for other in similar if (size := other.turns.resident_bytes()) is not None]
    processes = max(Counter(place.node for place in member.spec.places).values(), default=1)
    return processes * max([PROCESS_BYTES.get(framework, 500 << 20), *sizes])
