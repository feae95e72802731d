"""Ranks as one step of a job: placed, watched, and always ended, with a stand-in for srun."""

import os

import psutil
import pytest

from scalebench.core import exit_with_parent, run_folder
from scalebench.core.process import KEY_VARIABLE, StartError
from scalebench.core.result import SchedulerRecord
from scalebench.core.spec import write_spec
from scalebench.runner import launchers
from scalebench.runner.launchers import srun
from scalebench.runner.parent import RunRequest, run_spec
from scalebench.sweeps.cohort import Cohort
from scalebench.workloads import datasets
from tests.builders.runs import find_run_processes, find_running, simulated_spec, wait_until
from tests.runner.launchers import fake_srun
from tests.runner.launchers.fake_srun import job as job  # a fixture

pytestmark = pytest.mark.cold

LONG = {"min_s": 600.0, "max_s": 600.0}


def launched(spec, folder, **options):
    write_spec(spec, folder)
    return launchers.launch(spec, folder, "an id", **options)


def test_ranks_run_on_the_nodes_of_their_placement(job, tmp_path, program):
    names = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE NODE_RANK MASTER_ADDR"
    module = program(f"print(*(os.environ[n] for n in '{names}'.split())); print(os.environ['SCALEBENCH_ADDRESSES'])")
    ended = launched(job.spec(3), tmp_path, module=module)
    assert (ended.exit_codes, ended.died_first, ended.timeout, ended.broken) == ([0, 0, 0], [], None, None)
    logs = [(tmp_path / run_folder.rank_log_name(k)).read_text().splitlines() for k in range(3)]
    assert [log[0] for log in logs] == ["0 3 0 2 0 n1", "1 3 1 2 0 n1", "2 3 0 1 1 n1"]
    assert {log[1] for log in logs} == {logs[0][1]}
    assert [address.partition(":")[0] for address in logs[0][1].split(",")] == ["n1", "n1", "n2"]
    assert not find_running(ended.pids) and len(ended.pids) == 3
    assert {"--ntasks=2", "--ntasks-per-node=1", "--nodelist=n1,n2"} <= set(job.srun_arguments()), "one agent on each"
    names = {run_folder.SRUN_LOG, run_folder.SRUN_HOSTS_FILE}
    assert not names & set(os.listdir(tmp_path)), "they are removed where srun reported nothing"


@pytest.mark.parametrize("fitting", [2, pytest.param(1, marks=pytest.mark.slow)])
def test_steps_of_a_job_take_turns(fitting, job, tmp_path, monkeypatch):
    """As many as fit into the memory that the job has on a node."""
    monkeypatch.setenv("SLURM_MEM_PER_NODE", {2: "4000", 1: "100"}[fitting])
    measure = {  # time for two rounds on a busy machine, too, where agents park and continue their ranks slowly
        "slot_s": 0.05, "min_s": 0.2, "max_s": 6.0, "block_s": 0.004, "warmup_steps": 5, "probes": False, "target": 0.5,
        "monitor": True,
    }  # fmt: skip
    specs = [job.spec(gpus, measure=measure) for gpus in (1, 2)]
    datasets.prepare(specs[0].config)
    runs = [RunRequest(number, spec, tmp_path / str(number)) for number, spec in enumerate(specs)]
    results = [result for _, result in Cohort(runs, lambda progress: None).run()]
    assert [(result.status, result.reason) for result in results] == [("ok", None)] * fitting
    for result in results:
        assert len({tuple(rank.block_rounds) for rank in result.ranks}) == 1
        assert result.ranks[0].block_rounds[-1] > 1
        assert result.monitor.reason is None and result.scheduler.job_id == "12"
    assert "SLURM_OVERLAP=1" in job.step_environment() and not find_run_processes(tmp_path / "0")


def test_variables_of_the_job_are_not_passed_to_the_step(job, tmp_path, monkeypatch, program):
    of_job = "SLURM_GPUS_PER_TASK SLURM_GPU_BIND SLURM_NTASKS_PER_GPU SLURM_CPUS_PER_TASK SLURM_HINT SLURM_HOSTFILE"
    of_job += " SRUN_CPUS_PER_TASK SRUN_EXPORT_ENV"
    for name in of_job.split():
        monkeypatch.setenv(name, "1")
    launched(job.spec(2), tmp_path, module=program(f"print(os.environ.get('{KEY_VARIABLE}'))"))
    variables = dict(line.split("=", 1) for line in job.step_environment() if "=" in line)
    assert not variables.keys() & {"SLURM_NTASKS_PER_NODE", *of_job.split()} and variables["SLURM_JOB_ID"] == "12"
    # Agents descend from a daemon of SLURM, and not from srun. Their ranks do not have the key.
    assert variables[exit_with_parent.LAUNCHER_VARIABLE] == exit_with_parent.REMOTE_LAUNCHER
    assert variables[KEY_VARIABLE] and (tmp_path / "rank0.log").read_text() == "None\n"


def test_a_missing_srun_is_a_failed_run(job, tmp_path):
    (job.bin / "srun").unlink()
    result = run_spec(job.spec(2), tmp_path / "run")
    assert (result.status, result.log) == ("failed", None)
    assert result.reason == f"the processes could not be started: there is no srun in {job.bin}"


def test_srun_starts_the_ranks_of_mpi_and_one_on_the_wrong_node_is_a_failure(job, tmp_path, program):
    """Its figures would be those of another layout."""
    spec = job.spec(3)
    spec.config.strategy.launcher, spec.config.hardware.slurm.mpi = "mpi", "pmix"
    assert launched(spec, tmp_path, module=program("print(os.environ['SLURM_PROCID'])")).exit_codes == [0, 0, 0]
    assert [(tmp_path / f"rank{k}.log").read_text() for k in range(3)] == ["0\n", "1\n", "2\n"]
    assert {"--distribution=arbitrary", "--mpi=pmix", "--ntasks=3"} <= set(job.srun_arguments())
    script = (job.bin / "srun").read_text().removeprefix("#!/bin/sh\n")
    job.script("srun", script.replace('"$((task + 1))p"', "1p"))
    ended = launched(spec, tmp_path, module=program("time.sleep(600)"))
    assert ended.broken == "SLURM started rank 2 on n1 and not on n2; ask for as many tasks on each node"
    assert not find_running(ended.pids)


@pytest.mark.parametrize("victim", ["worker", "agent", "srun"])
def test_after_a_kill_no_process_is_left(victim, job, tmp_path):
    folder, pids = tmp_path / "run", []

    def on_progress(progress):
        if not pids and {p.phase for p in progress} == {"measure"} and len(progress) == 2:
            worker = psutil.Process(progress[1].pid)
            processes = {"worker": worker, "agent": worker.parent(), "srun": worker.parent().parent()}
            pids.extend(each.pid for each in [processes["srun"], *processes["srun"].children(recursive=True)])
            processes[victim].kill()

    result = run_spec(job.spec(2, measure=LONG), folder, on_progress)
    assert len(pids) >= 4, result.reason  # srun, its agent, two workers
    wait_until(lambda: not find_running(pids), 10.0)
    assert (result.status, result.reason) == ("failed", {
        "worker": "rank 1 was killed by SIGKILL", "srun": "srun was killed by SIGKILL",
        "agent": "n1, with rank 0, 1, was lost: the connection to its agent ended",
    }[victim])  # fmt: skip


TIME_LIMIT = "slurmstepd-n1: error: *** STEP 12.0 ON n1 CANCELLED AT 2026-01-01T01:00:00 DUE TO TIME LIMIT ***"


@pytest.mark.gpu
def test_a_step_that_ends_during_the_probes_keeps_its_figures(job, tmp_path):
    folder, ended = tmp_path / "run", []

    def on_progress(progress):
        if not ended and {p.phase for p in progress} == {"close"} and len(progress) == 2:
            srun = psutil.Process(progress[1].pid).parent().parent()
            with (folder / run_folder.SRUN_LOG).open("a") as file:
                file.write(f"{TIME_LIMIT}\n")
            srun.kill()
            ended.append(srun.pid)

    options = {"fault": "hang", "fault_phase": "close", "fault_rank": 1}
    result = run_spec(job.spec(2, options=options), folder, on_progress)
    assert ended and (result.status, result.reason) == ("ok", None)
    assert all(rank.block_s for rank in result.ranks) and "probe_failed" in result.flags
    assert result.ranks[0].probe_failures == {"probes": "SLURM: the job was ended, due to time limit"}


def test_node_names_are_read_from_scontrol(job, monkeypatch):
    """A single one needs no scontrol; outside a job there are none."""
    assert srun.job_nodes(str(job.bin)) == ["n1", "n2"]
    assert (job.folder / "scontrol_calls.txt").read_text() == "show hostnames n[1-2]\n"
    fake_srun.variables(monkeypatch, nodes="gpu-07")
    assert srun.job_nodes("/missing") == ["gpu-07"]
    monkeypatch.delenv(srun.NODE_LIST)
    with pytest.raises(StartError, match="SLURM_JOB_NODELIST is not set"):
        srun.job_nodes()


def test_too_few_nodes_are_an_error(job, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setenv("SLURM_JOB_NODELIST", "n1")
        with pytest.raises(StartError) as caught:
            srun.rank_nodes(job.spec(3))
    assert str(caught.value) == "gpus=3 needs 2 nodes, and job 12 has 1; ask for more nodes, or lower gpus"
    job.script("scontrol", "echo 'scontrol: error: host list is empty' >&2; exit 1")
    with pytest.raises(StartError, match="host list is empty"):
        srun.rank_nodes(job.spec(2))


def test_the_task_layout_of_a_job_follows_the_ranks(job, monkeypatch):
    """Each node of the job has at least one task, also those that this run does not use."""
    monkeypatch.setenv("SLURM_TASKS_PER_NODE", "3,1")
    assert srun.task_layout_variables(["n1", "n1", "n2", "n2"], str(job.bin)) == {"SLURM_TASKS_PER_NODE": "2,2"}
    assert srun.task_layout_variables(["n1", "n1"], str(job.bin)) == {"SLURM_TASKS_PER_NODE": "2,1"}


def test_the_launcher_depends_on_the_job(job, monkeypatch):
    spec = job.spec(2)
    assert launchers.choose_launcher(spec) == "slurm"
    spec.config.strategy.launcher = "mpi"
    assert launchers.choose_launcher(spec) == "mpi"
    spec.config.hardware.slurm.mpi = "pmix"
    assert launchers.choose_launcher(spec) == "slurm"
    assert launchers.choose_launcher(simulated_spec(gpus=2)) == "local", "this machine, whatever job this is"
    monkeypatch.delenv("SLURM_JOB_ID")
    assert launchers.choose_launcher(job.spec(2)) == "local"


def test_the_current_job_is_described(job, monkeypatch):
    assert srun.describe_current_job(job.spec(3)) == SchedulerRecord("slurm", "12", "main", ["n1", "n2"])
    assert srun.describe_current_job(simulated_spec()) is None
    monkeypatch.delenv("SLURM_JOB_ID")
    assert srun.describe_current_job(job.spec(3)) is None
