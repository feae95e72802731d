"""Runs that are jobs of a scheduler, from the command line; tests/kubernetes and tests/cluster cancel and resume."""

import dataclasses
import json
import signal
from pathlib import Path

import pytest

import scalebench
from scalebench import __main__ as program
from scalebench.core import process
from scalebench.core.errors import InputError
from scalebench.runner.jobs import follow
from scalebench.runner.jobs.job import QueueState
from scalebench.runner.parent import run_spec
from scalebench.sweeps import cluster_runs
from scalebench.sweeps.console import Console
from scalebench.sweeps.plan import SweepRun
from tests.builders.configs import SHORT_WORDS
from tests.builders.runs import simulated_spec

WORDS = ["hardware=testcluster", *SHORT_WORDS, "measure.repeats=1", "sweep.report=false"]


class LocalCluster:
    """A JobFollower without a cluster: this machine does the runs at once, the last of them first. `call` sets jobs,
    seen and limits."""

    def __init__(self, slurm, max_jobs, on_change, submit):
        LocalCluster.limits.append(max_jobs)
        self._on_change = on_change

    def follow(self, jobs, adopted):
        LocalCluster.jobs += jobs
        requests = [request for job in jobs for request in job.requests]
        LocalCluster.seen += requests
        self._on_change(QueueState(0, len(requests), "Priority", (), 0))
        return ((request, run_spec(without_nodes(request.spec), request.folder)) for request in reversed(requests))


def without_nodes(spec):
    """The same run by processes of this machine."""
    hardware = dataclasses.replace(spec.config.hardware, scheduler="none")
    return dataclasses.replace(spec, config=dataclasses.replace(spec.config, hardware=hardware))


@pytest.fixture
def call(capsys, monkeypatch, tmp_path):
    """The program with these words on a machine with a cluster: status, output, errors."""
    LocalCluster.jobs, LocalCluster.seen, LocalCluster.limits = [], [], []
    monkeypatch.setattr(follow, "JobFollower", LocalCluster)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sbatch").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "bin" / "sbatch").chmod(0o755)

    def called(*words):
        status = program.main([*WORDS, f"hardware.slurm.bin={tmp_path}/bin", *words])
        out, err = capsys.readouterr()
        return status, out, err

    return called


def test_a_sweep_is_submitted_whole_and_ends_with_its_table(call):
    words = ("hardware.max_jobs=2", "hardware.slurm.jobs=per_run")
    status, out, err = call("--multirun", "gpus=1,2,4", "hydra.sweep.dir=s", *words)
    assert (status, err) == (0, "")
    assert [(run.spec.gpus, run.spec.nodes) for run in LocalCluster.seen] == [(1, 1), (2, 1), (4, 2)]
    assert [job.folder for job in LocalCluster.jobs] == [run.folder for run in LocalCluster.seen]
    assert LocalCluster.limits == [2]
    frame = scalebench.load("s")
    assert frame[["gpus", "nodes", "status"]].values.tolist() == [[1, 1, "ok"], [2, 1, "ok"], [4, 2, "ok"]]
    assert "0 of 3 runs over, 3 pending (Priority)" in out and "nodes" in out
    assert all((Path("s") / str(number) / ".hydra" / "overrides.yaml").is_file() for number in range(3))
    plan = json.loads(Path("s/sweep.json").read_text())
    assert plan["ended"] and not any(run["left_out"] for run in plan["runs"])


def numbers_and_sizes(job):
    return [[(int(run.folder.name), run.spec.gpus) for run in unit] for unit in job.units]


def test_runs_of_one_size_are_one_job_with_a_baseline_of_their_own(call):
    """Where all of a size is done before, a resumed sweep submits nothing of it."""
    words = ("--multirun", "strategy=simulated", "gpus=1,4", "measure.repeats=2", "hydra.sweep.dir=s")
    status, out, err = call(*words)
    assert (status, err) == (0, "")
    one, four = LocalCluster.jobs
    assert (one.folder, four.folder) == (Path("s/job0").absolute(), Path("s/job1").absolute())
    assert numbers_and_sizes(one) == [[(0, 1)], [(2, 1)]]
    assert numbers_and_sizes(four) == [[(4, 1), (1, 4)], [(5, 1), (3, 4)]], "the baseline is first, once more"
    assert four.units[0][1].bare == one.units[0][0].spec.fingerprint
    assert "0 of 6 runs over, 6 pending (Priority)" in out
    assert len(scalebench.load("s")) == 6 and len(json.loads(Path("s/sweep.json").read_text())["runs"]) == 6
    LocalCluster.jobs.clear()
    Path("s/3/result.json").unlink()
    assert call(*words, "resume=true")[0] == 0
    assert [numbers_and_sizes(job) for job in LocalCluster.jobs] == [[[(6, 1), (3, 4)]]]


def test_one_job_does_a_sweep_and_trainings_to_a_stop_have_their_own(call):
    words = ("--multirun", "gpus=1,4", "baseline=none", "hydra.sweep.dir=s", "hardware.slurm.jobs=one")
    assert call(*words, "measure.order=rounds")[0] == 0
    assert [numbers_and_sizes(job) for job in LocalCluster.jobs] == [[[(0, 1), (1, 4)]]]
    LocalCluster.jobs.clear()
    assert call(*words[:3], "hydra.sweep.dir=t", "train.stop.steps=3")[0] == 0
    assert [job.folder.name for job in LocalCluster.jobs] == ["0", "1"]
    one_job = ("hardware.slurm.jobs=one", "hardware.slurm.partition=main,low")
    status, _, err = call(*words[:4], "hydra.sweep.dir=u", *one_job)
    differs = "hardware.slurm differs between the runs of this sweep"
    assert (status, err) == (2, f"scalebench: hardware.slurm.jobs=one: {differs}\n")


def test_a_single_run_is_a_job_too(call):
    status, out, _ = call("gpus=3", "hydra.run.dir=r")
    assert status == 0 and [run.folder for run in LocalCluster.seen] == [Path("r").absolute()]
    assert "testcluster" in out


@pytest.mark.slow
def test_only_runs_that_fit_the_cluster_are_submitted(call):
    """Those of this machine follow."""
    words = ("hardware=cpu,testcluster", "gpus=1,64", "train.batch_per_device=4", "baseline=none")
    status, out, _ = call("--multirun", *words, "hydra.sweep.dir=s")
    assert status == 0 and [(run.number, run.spec.gpus) for run in LocalCluster.seen] == [(2, 1)]
    assert "gpus=64 asks for 32 nodes, hardware=testcluster has" in out
    assert set(scalebench.load("s").hardware) == {"cpu", "testcluster"}


def test_ctrl_c_waits_while_a_result_is_handled():
    """It asks the user afterwards, as always: no job keeps running unnoticed."""
    handled = []
    with process.interrupt_at_signals():
        with cluster_runs.delay_interrupts():
            signal.raise_signal(signal.SIGINT)
            handled.append("all of it")
        assert handled and process.cancelled.is_set()


@pytest.mark.parametrize(
    ("answer", "cancels"), [("", True), ("y", True), ("n", False), (" No ", False), (KeyboardInterrupt, True)]
)
def test_the_answer_decides(monkeypatch, answer, cancels):
    """A second Ctrl-C is a yes."""
    console, questions = Console(), []

    def read_answer(question):
        questions.append(question)
        if answer is KeyboardInterrupt:
            raise answer
        return answer

    assert console.confirm_cancel(3, ask=False) and console.confirm_cancel(3, ask=True), "there is no terminal here"
    monkeypatch.setattr("builtins.input", read_answer)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    console.rich._force_terminal = True
    assert console.confirm_cancel(3, ask=True) == cancels
    assert questions == ["cancel all 3 jobs? Otherwise they keep running [Y/n] "]
    assert console.confirm_cancel(0, ask=True) and len(questions) == 1, "without jobs there is no question"


def test_the_question_is_not_overwritten(monkeypatch):
    """The progress line is not written over the question."""
    console, seen = Console(), []
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    console.rich._force_terminal = True
    with console.show_line("submitting"):
        line = console._status._live
        monkeypatch.setattr("builtins.input", lambda question: seen.append(line.is_started) or "n")
        assert not console.confirm_cancel(2, ask=True) and seen == [False] and line.is_started
    assert not line.is_started and console._status is None


def test_clusters_are_not_mixed(tmp_path):
    runs = [SweepRun([], simulated_spec(), number=number, folder=tmp_path / str(number)) for number in range(2)]
    runs[1].spec.config.hardware.slurm.bin = "/opt/other/bin"
    with pytest.raises(InputError, match=r"the cluster \(hardware.slurm.bin\) differs between the runs of one sweep; "):
        list(cluster_runs.follow([[[run]] for run in runs], [], tmp_path, Console(), False))


def test_a_dry_run_prints_the_script_and_submits_nothing(call):
    status, out, _ = call("gpus=4", "dry_run=true")
    assert (status, LocalCluster.seen) == (0, [])
    assert job_lines(out) == {"simulated gpus=4": "2 nodes of testcluster, 2 x 1 core per node"}
    assert out.count("simulated gpus=4 would be submitted with sbatch") == 1
    for line in ("#SBATCH --nodes=2", "#SBATCH --ntasks-per-node=2", "#SBATCH --partition=main"):
        assert line in out.splitlines()
    folder = next(line for line in out.splitlines() if "--output=" in line).partition("=")[2]
    assert folder.startswith(f"{Path('multirun/single').absolute()}/")
    assert "srun --nodes=2 --ntasks=2 --ntasks-per-node=1" in out and not Path("multirun").exists()
    _, out, _ = call("gpus=4", "strategy.launcher=mpi", "dry_run=true")
    assert "ranks, from within the job:\n\nmpirun, " in out and "srun" not in out


def job_lines(out):
    """Return what the plan says of each job, by its runs."""
    lines = [line.rpartition(": ")[::2] for line in out.splitlines() if line.endswith(" minutes")]
    return {label: text.removesuffix(", at most 10 minutes") for label, text in lines}


def test_the_plan_of_a_sweep_is_a_line_for_each_job_and_the_script_of_the_largest_job(call):
    words = ["strategy=simulated,bare_torch", "gpus=1,4", "measure.repeats=2", "hydra.sweep.dir=s", "baseline=none"]
    status, out, _ = call("--multirun", *words, "hardware.slurm.jobs=per_run", "dry_run=true")
    assert (status, LocalCluster.seen) == (0, [])
    one, two = "1 node of testcluster, 1 x 1 core per node", "2 nodes of testcluster, 2 x 1 core per node"
    assert job_lines(out) == {
        f"{label} repeat={repeat}": text for repeat in (0, 1)
        for label, text in {"simulated gpus=1": one, "simulated gpus=4": two, "bare_torch gpus=1": one}.items()
    }  # fmt: skip
    assert out.count("bare_torch gpus=4 repeat=0: unsupported: bare_torch runs on 1 device only") == 1
    assert "6 jobs, 1.3 node-hours if each takes all of its minutes; nothing was submitted" in out
    assert [line.rpartition("/s/")[2] for line in out.splitlines() if "--output=" in line] == ["1/job.log"]
    assert "#SBATCH --nodes=2" in out.splitlines() and "The largest job; the others differ" in out
    _, of_one_job, _ = call("--multirun", *words, "hardware.slurm.jobs=one", "dry_run=true")
    assert job_lines(of_one_job) == {"gpus=1,4: 6 runs": two}
    assert "1 job, 0.3 node-hours if each takes all of its minutes; nothing was submitted" in of_one_job
    _, by_size, _ = call("--multirun", *words, "dry_run=true")
    assert job_lines(by_size) == {"gpus=1: 4 runs": one, "gpus=4: 2 runs": two}
    assert "its 2 runs would be submitted with sbatch" in by_size and "s/job1/job.log" in by_size
    # One process drives the devices of one node: a script for two of them would contradict itself.
    status, out, _ = call("hardware=alpha", "strategy=mirrored", "gpus=16", "dry_run=true", "dataset.size=5000")
    assert status == 1 and "unsupported: mirrored has one process for all devices, which are on 2 nodes" in out
    assert "#SBATCH" not in out and job_lines(out) == {}


@pytest.mark.parametrize(("words", "marks"), [([], ["0"]), (["measure.repeats=2"], ["job0"])])
def test_a_plan_needs_neither_slurm_nor_the_packages_of_the_cluster(call, words, marks, monkeypatch):
    monkeypatch.setattr("scalebench.strategies.registry.missing_packages", list)
    on_alpha = ["hardware=alpha", "hardware.slurm.bin=/nowhere", "dataset.size=5000"]
    sweep = [*on_alpha, "strategy=ddp_nccl", "gpus=16", "baseline=none", *words]
    status, out, _ = call("--multirun", *sweep, "hydra.sweep.dir=s", "dry_run=true")
    assert status == 0 and "unsupported" not in out
    assert "2 nodes of alpha, 8 x 6 cores per node, 8 GPUs per node, at most " in out
    assert out.count("there is no sbatch here: the plan is for a login node of hardware=alpha") == 1
    assert [line.split("/")[-2] for line in out.splitlines() if "--output=" in line] == marks
    status, out, _ = call(*sweep, "dry_run=true")
    assert status == 0 and "there is no sbatch here" in out and "unsupported" not in out
    _, out, err = call(*sweep)  # which no run can be
    assert "hardware=alpha is another machine" in out + err


def test_a_running_job_keeps_its_folder(tmp_path):
    """Where two runs of a sweep are swapped, the result of one job would be copied over the other."""
    one, two, elsewhere = tmp_path / "1", tmp_path / "2", tmp_path / "other"
    runs = [SweepRun([], simulated_spec(), folder=folder) for folder in (one, two)]
    for run, name in zip(runs, "ab", strict=True):
        run.key = (name, 0)
    assert cluster_runs.match_running(runs, {two: ("b", 0)}) == {runs[1]: two}
    assert cluster_runs.match_running(runs, {one: ("a", 0), elsewhere: ("a", 0)}) == {runs[0]: one}
    assert cluster_runs.match_running(runs, {elsewhere: ("a", 0)}) == {runs[0]: elsewhere}
    with pytest.raises(InputError, match=r"/2 is where a job of another run still runs; "):
        cluster_runs.match_running(runs, {two: ("c", 0)})
    with pytest.raises(InputError, match=r"still run under other numbers of it; "):
        cluster_runs.match_running(runs, {two: ("a", 0), one: ("b", 0)})


def test_the_plan_of_a_resumed_sweep_has_jobs_for_the_other_runs(call):
    words = ("--multirun", "hydra.sweep.dir=s", "baseline=none")
    assert call(*words, "gpus=1")[0] == 0
    status, out, _ = call(*words, "gpus=1,4", "resume=true", "dry_run=true")
    assert status == 0 and list(job_lines(out)) == ["simulated gpus=4"]
    assert "simulated gpus=1: done before, kept" in out and "1 job, " in out
    assert [line.rpartition("/s/")[2] for line in out.splitlines() if "--output=" in line] == ["1/job.log"]
