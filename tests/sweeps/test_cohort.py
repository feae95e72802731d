"""Cohorts of real processes: rounds, faults of single members, and their end with the program."""

import itertools
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from scalebench.core import process
from scalebench.core.json_files import read_json
from scalebench.core.machine.gpus import GpuRoom
from scalebench.core.result import read_result
from scalebench.runner.parent import RunRequest
from scalebench.runner.turns import FolderWatch, Turns
from scalebench.sweeps import cohort
from scalebench.sweeps.cohort import PROCESS_BYTES, Cohort
from scalebench.workloads import datasets
from tests.builders.launching import NEEDS_MPIRUN
from tests.builders.runs import find_run_processes, simulated_spec, wait_until

SETTINGS = {
    "slot_s": 0.05, "min_s": 0.4, "max_s": 0.6, "block_s": 0.004, "warmup_steps": 5, "probes": False, "target": 0.5,
    "hang_s": 20.0, "monitor": False,
}  # fmt: skip


def simulated(gpus=1, measure=None, **options):
    spec = simulated_spec(gpus, measure=SETTINGS | (measure or {}), options={"step_s": 0.001} | options)
    datasets.prepare(spec.config)
    return spec


def run_cohort(specs, folder, on_progress=lambda progress: None):
    runs = [RunRequest(n, spec, folder / str(n)) for n, spec in enumerate(specs)]
    return {run.number: result for run, result in Cohort(runs, on_progress).run()}


def turn_number(folder):
    try:
        return int(read_json(folder / "turn.json")["number"])
    except (OSError, ValueError):
        return 0


def test_runs_take_turns_and_measure_what_they_measure_by_themselves(tmp_path):
    seen = []
    specs = [simulated(1), simulated(2), simulated(2, step_s=0.002, setup_s=0.1), simulated(1, warmup_steps=3)]
    results = run_cohort(specs, tmp_path, seen.append)
    assert [result.status for result in results.values()] == ["ok"] * 4
    assert len({result.cohort for result in results.values()}) == 1
    spans = []
    for number, result in results.items():
        first, *others = result.ranks
        assert all(rank.block_rounds == first.block_rounds for rank in others), "ranks parked at different steps"
        rounds = set(first.block_rounds)
        assert rounds == set(range(1, max(rounds) + 1))
        assert len(first.block_rounds) == len(first.block_s) == len(first.block_started_at_s)
        assert result.phases.measure_s > 4 * sum(first.block_s) * 0.5
        for _, slot in itertools.groupby(
            zip(first.block_rounds, first.block_started_at_s, first.block_s, strict=True), lambda block: block[0]
        ):
            blocks = list(slot)
            spans.append((blocks[0][1], blocks[-1][1] + blocks[-1][2], number))
    spans.sort()
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans)), "two runs measured at the same time"
    orders = {tuple(number for *_, number in spans[at : at + 4]) for at in range(0, len(spans), 4)}
    assert len(orders) > 1, "the order within a round is random"
    # The least, since other programs make a sleep longer, never shorter.
    step_s = {number: min(r.ranks[0].block_s) / (r.ranks[0].block_steps or 1) for number, r in results.items()}
    assert 1.4 < step_s[2] / step_s[1] < 2.2
    assert any(progress.round for progress in seen)


def test_rounds_in_which_other_programs_take_the_cores_are_known(tmp_path):
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        results = run_cohort([simulated(1), simulated(2)], tmp_path)
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()
    for result in results.values():
        rounds = set(result.ranks[0].block_rounds)
        assert rounds >= set(result.disturbed_rounds)
        assert 2 * len(result.disturbed_rounds) > len(rounds)


@pytest.mark.parametrize(("every", "undisturbed"), [(4, 8), (1000, 0)])
def test_a_repeat_goes_on_until_a_few_rounds_were_undisturbed(every, undisturbed, tmp_path, monkeypatch):
    """It takes at most the time of all repeats for them, and no longer than its share where there are none."""
    slots = Counter()

    def is_disturbed(turns, *_):
        slots[turns] += 1
        return slots[turns] % every > 0

    monkeypatch.setattr(Turns, "is_disturbed", is_disturbed)
    specs = [simulated(gpus, {"target": 1e-6, "max_s": 3.0, "min_s": 0.1, "repeats": 3}) for gpus in (1, 2)]
    for result in run_cohort(specs, tmp_path).values():
        rank = result.ranks[0]
        assert len(set(rank.block_rounds) - set(result.disturbed_rounds)) >= undisturbed
        took_s = rank.block_started_at_s[-1] - rank.block_started_at_s[0]
        shares = took_s / sum(spec.repeat_settings.max_s for spec in specs)
        assert shares < (3 if undisturbed else 1)


@pytest.mark.parametrize("fault", ["kill", "stop", "oom"])  # the others, too, are in the table of tests/faults
def test_a_fault_ends_its_run_alone(fault, tmp_path):
    expected = "timeout" if fault == "stop" else "failed"
    # The fault comes within this time, and after a warm-up of 25 steps at most, however busy the machine is.
    long = {"target": 1e-6, "max_s": 2.0, "warmup_max_steps": 25}
    faulty = simulated(2, {"hang_s": 5.0} | long, fault=fault, fault_rank=1, fault_step=60)
    results = run_cohort([simulated(1, long), faulty, simulated(2, long)], tmp_path)
    statuses = {n: result.status for n, result in results.items()}
    if fault == "oom":  # it may have enough memory by itself
        assert statuses == {0: "ok", 2: "ok"} and not (tmp_path / "1").exists()
    else:
        assert statuses == {0: "ok", 1: expected, 2: "ok"}
        assert "rank 1" in (results[1].reason or "")


def test_a_run_that_cannot_be_stopped_is_left_for_later(tmp_path, monkeypatch):
    park, made = Turns.park, list[Turns]()
    specs = [simulated(1), simulated(2), simulated(2)]
    runs = [RunRequest(n, spec, tmp_path / str(n)) for n, spec in enumerate(specs)]
    monkeypatch.setattr(cohort, "Turns", lambda spec: made.append(Turns(spec)) or made[-1])
    monkeypatch.setattr(Turns, "park", lambda self: park(self) and self is not made[1])
    results = Cohort(runs, lambda progress: None).run()
    assert {run.number: result.status for run, result in results} == {0: "ok", 2: "ok"}
    assert not (tmp_path / "1").exists()
    assert not find_run_processes(tmp_path / "1")


def test_a_cohort_grows_only_as_far_as_there_is_memory(tmp_path):
    """On this machine: two small runs, and one whose processes would need more memory than it has."""
    small, large = simulated(1), simulated(2)
    count = psutil.virtual_memory().total // PROCESS_BYTES["none"] + 1
    large = replace(large, places=[replace(large.places[0], rank=rank) for rank in range(count)])
    assert list(run_cohort([small, simulated(2), large, small], tmp_path)) == [0, 1]
    assert not (tmp_path / "2").exists() and not (tmp_path / "3").exists()


@pytest.fixture
def sets_up_ahead(monkeypatch):
    """Simulated runs are set up as those of GPUs are."""
    monkeypatch.setattr(cohort, "can_set_up_ahead", lambda spec: True)


@pytest.mark.usefixtures("sets_up_ahead")
@pytest.mark.parametrize("launcher", ["local", pytest.param("mpi", marks=[NEEDS_MPIRUN, pytest.mark.cold])])
def test_runs_are_set_up_at_once_and_warm_up_one_by_one(launcher, tmp_path):
    specs = [simulated(1), *(simulated(gpus, setup_s=0.5) for gpus in (1, 2, 2))]
    for spec in specs:
        spec.config.strategy.launcher = launcher
    results = run_cohort(specs, tmp_path)
    assert [result.status for result in results.values()] == ["ok"] * 4
    first, *others = [result.ranks[0] for result in results.values()]
    set_up_s = [rank.marks_s["setup"] for rank in others]
    assert max(set_up_s) < min(rank.marks_s["warmup"] for rank in others), "all are set up before one warms up"
    assert min(set_up_s) > first.marks_s["warmup"], "what the first one needs is known by then"
    spans = [(rank.marks_s["warmup"], rank.marks_s["warmup"] + sum(rank.warmup_block_s)) for rank in others]
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans)), "two runs warmed up at the same time"


@pytest.mark.gpu
@pytest.mark.usefixtures("sets_up_ahead")
@pytest.mark.parametrize("fault", [{"fault": "raise"}, {"fault": "oom"}, {"fault": "oom", "fault_phase": "step"}])
def test_a_run_that_fails_beside_others_that_wait_stops_none_of_them(tmp_path, fault):
    specs = [simulated(1), simulated(2, **{"fault_phase": "setup", **fault}), simulated(2)]
    results = run_cohort(specs, tmp_path)
    statuses = {number: result.status for number, result in results.items()}
    failed = {} if fault["fault"] == "oom" else {1: "failed"}  # beside fewer others it may have enough
    assert statuses == {0: "ok", 2: "ok", **failed}


@pytest.mark.parametrize("in_rounds", [True, False])
def test_cancelling_ends_all_runs_with_a_result(in_rounds, tmp_path, request):
    """Also those that wait with their first step."""
    if in_rounds:
        specs = [simulated(1, {"max_s": 60.0}), simulated(2, {"max_s": 60.0}), simulated(1, {"max_s": 60.0})]
    else:
        request.getfixturevalue("sets_up_ahead")
        specs = [simulated(1), simulated(2, setup_s=60.0), simulated(1)]

    def cancel():
        wait_until(lambda: turn_number(tmp_path / "1") >= 2 if in_rounds else (tmp_path / "2/progress0.json").exists())
        process.cancelled.set()

    canceller = threading.Thread(target=cancel)
    canceller.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            run_cohort(specs, tmp_path)
    finally:
        canceller.join()
        process.cancelled.clear()
    assert {read_result(tmp_path / name / "result.json").status for name in "012"} == {"cancelled"}


@pytest.mark.gpu
def test_only_runs_on_gpus_of_this_machine_are_set_up_ahead():
    spec = simulated(1)
    assert not cohort.can_set_up_ahead(spec)
    assert cohort.can_set_up_ahead(replace(spec, device="cuda"))


GIB = 2**30


def test_a_cohort_grows_only_as_far_as_the_gpus_allow():
    for free, mode, fits in (
        ([78, 60], "default", True),  # a run takes 18 of 80 GiB, and a tenth stays free
        ([78, 60, 42, 25], "default", False),
        ([78, 30], "default", False),
        ([78, 70], "exclusive_process", False),  # the second process would find the GPU busy
        ([None, None], None, True),  # NVML does not say it
    ):
        one = Cohort([RunRequest(0, simulated(1), Path("unused"))], lambda progress: None)
        rooms = [[GpuRoom(None if each is None else each * GIB, 80 * GIB, mode)] for each in free]
        assert one._fits_on_gpus(rooms) is fits
        assert not one._fits_on_gpus(rooms, 4) or not fits or free == [None, None], "four more are too many"
        assert one._fits_on_gpus([[] for _ in free]), "no GPU"


class IdleCohort(Cohort):
    """A cohort that measures the processor time of its runs while all of them are parked."""

    used_s = -1.0

    def _do_rounds(self, members):
        processes = [psutil.Process(pid) for member in members for pid in find_run_processes(member.run.folder)]
        ranks = [each for each in processes if "scalebench.measure.monitor" not in each.cmdline()]
        assert [rank.status() for rank in ranks] == ["stopped"] * 3
        wait_until(lambda: self.measure_cpu_s(processes, 0.1) == 0.0)  # a monitor may still be on its way to its pause
        self.used_s = self.measure_cpu_s(processes, 1.0)
        super()._do_rounds(members)

    @staticmethod
    def measure_cpu_s(processes, wall_s):
        before_s = sum(sum(process.cpu_times()[:2]) for process in processes)
        time.sleep(wall_s)
        return sum(sum(process.cpu_times()[:2]) for process in processes) - before_s


def test_a_report_that_is_renamed_into_the_folder_ends_a_wait(tmp_path):
    """Before the next look that is due without it; what came before `clear` does not count."""
    watch = FolderWatch(tmp_path)
    (tmp_path / "early").touch()
    (tmp_path / "early").rename(tmp_path / "report")
    watch.clear()
    begin_s = time.monotonic()
    watch.wait(0.05)
    assert time.monotonic() - begin_s >= 0.049
    (tmp_path / "late").touch()
    (tmp_path / "late").rename(tmp_path / "report")
    begin_s = time.monotonic()
    watch.wait(60.0)
    assert time.monotonic() - begin_s < 30.0


def test_parked_runs_use_no_processor_time(tmp_path):
    specs = [simulated(1, {"monitor": True}), simulated(2)]
    runs = [RunRequest(n, spec, tmp_path / str(n)) for n, spec in enumerate(specs)]
    idle = IdleCohort(runs, lambda progress: None)
    assert [result.status for _, result in idle.run()] == ["ok", "ok"]
    assert idle.used_s == pytest.approx(0.0, abs=1e-9)
