"""The options, resources, container and srun command of a job."""

import dataclasses
import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.core.errors import InputError
from scalebench.core.spec import Config, HardwareSpec, RankPlacement, SlurmSpec, check_fields
from scalebench.slurm import resources
from scalebench.slurm.resources import JobGeometry, job_geometry, srun_command, sweep_geometry, time_limit_minutes
from tests.slurm.builders import FOLDER, GPU_NODES, ROLES, run

PYTHON = "/home/user/venv/bin/python"
IMAGE = {"container": "/img/scalebench.sif", "container_mounts": ["/data:/data:ro"]}
MOUNTS = "/scratch/user/sweep/3:/scratch/user/sweep/3,/scratch/user/cache:/scratch/user/cache,/data:/data:ro"


def check(slurm):
    config = Config(hardware=HardwareSpec(scheduler="slurm", slurm=SlurmSpec(**slurm)))
    check_fields(config)
    resources.check_slurm_options(config.hardware.slurm)


VALID = [
    {},
    {"partition": "main,gpu", "account": "p_x", "qos": "normal", "reservation": "r-1", "constraint": "[r1|r2]"},
    {"memory": "64G", "time_minutes": 1, "gres": "gpu:a100:{gpus}"},
    {"memory": "0", "gres": ""},
    {"memory": "2000mb", "gres": "gpu:{gpus},nvme:1"},
    {"lines": ["--mail-type=END", "--hint=nomultithread", "--comment=a run, and more"], "srun": ["--overlap"]},
    {"srun": ["--gres=none"]},  # a step may have less than its job
    {"container": "/img/a b.sif", "container_mounts": ["/data:/data", "/a:/b:ro"]},
    {"container": "nvcr.io#nvidia/pytorch:24.01-py3", "container_runtime": "pyxis", "mpi": "pmix_v5"},
]
INVALID = {
    ("container_runtime", "aptainer"): "no such value 'aptainer'; did you mean 'apptainer'?",
    ("mpi", "pmx"): "no such value 'pmx'; did you mean 'pmix'?",
    ("time_minutes", 0): "hardware.slurm.time_minutes=0 should be at least 1",
    ("memory", "64 GB"): "such as 64G",
    ("memory", "-1"): "such as 64G",
    ("gres", "gpu:{n}"): "should be one word such as gpu:{gpus}",
    ("gres", "gpu:2 x"): "should be one word such as gpu:{gpus}",
    ("partition", "a b"): "hardware.slurm.partition='a b' should be one word",
    ("account", ""): "hardware.slurm.account='' should be one word",
    ("qos", "--x"): "hardware.slurm.qos='--x' should be one word",
    ("bin", ""): "hardware.slurm.bin='' should be a path",
    ("container", "a\nb"): "should be a path in one line",
    ("container", "--nv"): "should be an image",
    ("container_mounts", ("data:/data",)): "'data:/data' should be FROM:TO",
    ("container_mounts", ("/data",)): "'/data' should be FROM:TO",
    ("container_mounts", ("/a,/b:/c",)): "should be FROM:TO",
    ("container_options", ("rocm",)): "hardware.slurm.container_options: 'rocm' should be an option",
    ("lines", ("-N 3",)): "'-N 3' should be --name=value or --name",
    ("lines", ("--comment=a\n#SBATCH --nodes=3",)): "in one line",
    ("lines", ("--nodes=3",)): "--nodes comes from gpus and the keys of hardware; leave it out here",
    ("lines", ("--output=x",)): "--output comes from the folder of the run",
    ("lines", ("--partition=x",)): "--partition comes from hardware.slurm.partition",
    ("srun", ("--mpi=pmix",)): "hardware.slurm.srun: --mpi comes from hardware.slurm.mpi",
    ("srun", ("--container-image=x",)): "--container-image comes from hardware.slurm.container",
}


def test_an_invalid_option_is_one_line_with_the_way_out():
    for slurm in VALID:
        check(slurm)
    for (key, value), message in INVALID.items():
        with pytest.raises(InputError, match=re.escape(message)) as caught:
            check({key: list(value) if isinstance(value, tuple) else value})
        assert "hardware.slurm" in str(caught.value)


def test_resources_of_a_run():
    for gpus, settings, expected in (
        (1, {}, JobGeometry(1, 1, 1, True, 4, False)),
        (2, {}, JobGeometry(1, 2, 2, True, 4, False)),
        (3, {}, JobGeometry(2, 3, 2, False, 4, False)),
        (4, {"memory": "64G", "exclusive": True}, JobGeometry(2, 4, 2, True, 4, False, memory="64G")),
        (16, {"nodes": GPU_NODES, "exclusive": True}, JobGeometry(2, 16, 8, True, 6, False, 8, "gpu:8", "0")),
        (9, {"nodes": GPU_NODES, "gres": "gpu:a100:{gpus}"}, JobGeometry(2, 9, 8, False, 6, False, 8, "gpu:a100:8")),
        (3, {"nodes": GPU_NODES, "gres": ""}, JobGeometry(1, 3, 3, True, 6, False, 3)),
        (2, {"nodes": GPU_NODES | {"device_ids": [1, 5]}}, JobGeometry(1, 2, 2, True, 6, False, 6, "gpu:6")),
        (2, {"strategy": {"processes": "one_for_all"}}, JobGeometry(1, 1, 1, True, 8, False)),
        (2, {"strategy": {"processes": ROLES}}, JobGeometry(1, 4, 4, True, 2, False)),
        (4, {"strategy": {"processes": ROLES}}, JobGeometry(2, 6, 4, False, 2, False)),
        (2, {"nodes": {"cpus_per_node": 3}, "strategy": {"processes": ROLES}}, JobGeometry(1, 4, 4, True, 1, True)),
        (2, {"nodes": {"cpus_per_device": 8}}, JobGeometry(1, 2, 2, True, 4, False)),
        (2, {"nodes": {"cpus_per_node": None, "cpus_per_device": 8}}, JobGeometry(1, 2, 2, True, 8, False)),
    ):
        assert job_geometry(run(gpus, **settings)) == expected, (gpus, settings)
    places = [RankPlacement(rank, 0, node, [0], [], 1) for rank, node in enumerate([0, 1, 1])]
    geometry = job_geometry(dataclasses.replace(run(3), places=places))
    assert (geometry.tasks_per_node, geometry.even) == (2, False), "spread in any way over nodes in order"
    spec = run(4, GPU_NODES, gres="", lines=["--gpus-per-node={gpus}", "--constraint-x=a"])
    geometry = sweep_geometry([spec])
    options = resources.job_options(spec.config.hardware.slurm, geometry.gpus_per_node)
    assert options["gpus-per-node"] == str(geometry.gpus_per_node) and options["constraint-x"] == "a"
    assert "gpus-per-node" not in resources.job_options(spec.config.hardware.slurm, None), "a job without GPUs"


@given(st.integers(1, 12), st.integers(1, 4), st.integers(1, 16), st.booleans())
def test_a_job_never_requests_more_cores_than_a_node_has(gpus, per_node, cores, roles):
    nodes = {"gpus_per_node": per_node, "cpus_per_node": cores, "max_nodes": 12}
    spec = run(gpus, nodes, {"processes": ROLES} if roles else None)
    geometry = job_geometry(spec)
    assert geometry.overcommit or geometry.tasks_per_node * geometry.cpus_per_task <= cores
    assert geometry.nodes * geometry.tasks_per_node >= geometry.tasks == spec.processes
    assert geometry.even == (geometry.nodes * geometry.tasks_per_node == geometry.tasks)


def test_one_job_for_several_runs_is_as_large_as_each_of_them():
    specs = [run(1, GPU_NODES), run(9, GPU_NODES), run(4, GPU_NODES), run(3, GPU_NODES, {"processes": "one_for_all"})]
    alone, together = list(map(job_geometry, specs)), sweep_geometry(specs)
    assert together.nodes == 2 and together.gpus_per_node == max(each.gpus_per_node or 0 for each in alone)
    assert together.gres == f"gpu:{together.gpus_per_node}"
    cores = [each.tasks_per_node * each.cpus_per_task for each in alone]
    assert together.tasks_per_node * together.cpus_per_task == max(cores)
    for spec in specs:
        one, job = (
            dataclasses.replace(each, tasks=0, even=True, overcommit=False)
            for each in (sweep_geometry([spec]), job_geometry(spec))
        )
        assert one == job


def test_the_time_limit_includes_time_to_start_and_follows_the_estimates():
    """24 runs of a minute do not ask for a day, and no run for less than half an hour."""
    for minutes, timeout_s, expected in ((None, 3600.0, 62), (None, 3601.0, 63), (5, 3600.0, 5), (None, 60.0, 3)):
        spec = run(1, time_minutes=minutes)
        spec.config.measure.timeout_s = timeout_s
        assert time_limit_minutes([spec], [math.inf]) == expected, "nothing is known of its length"
        of_two = 2 * minutes if minutes else math.ceil(timeout_s / 30 + 2)
        assert time_limit_minutes([spec] * 2, [math.inf] * 2) == of_two
    spec = run(1)
    spec.config.measure.timeout_s = 3600.0
    estimates = {(60.0,): 32, (60.0,) * 24: 74, (1000.0,): 52, (5000.0,): 62, (60.0, math.inf): 65}
    assert {each: time_limit_minutes([spec] * len(each), each) for each in estimates} == estimates


def test_the_folder_of_the_users_code_is_in_the_container(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for runtime in ("apptainer", "singularity", "pyxis"):
        spec = run(1, GPU_NODES, **IMAGE, container_runtime=runtime)
        assert str(tmp_path) not in " ".join(srun_command(spec, FOLDER))
        spec.config.model.code_digest = "0123"
        command = " ".join(srun_command(spec, FOLDER))
        assert f"{tmp_path}:{tmp_path}" in command
        workdir = f"--container-workdir={tmp_path}" if runtime == "pyxis" else f"{runtime} exec --nv --bind"
        assert workdir in command and (runtime == "pyxis" or f"--pwd {tmp_path}" in command)


def srun(*arguments, **more):
    command = srun_command(*arguments, **more)
    agent = ["-m", "scalebench.runner.launchers.rank_agent", str(FOLDER), "scalebench.runner.worker"]
    assert command[-4:] == agent
    return command[:-4]


@pytest.mark.usefixtures("cluster_paths")
def test_how_srun_places_ranks():
    assert srun(run(4), FOLDER) == [
        "srun", "--nodes=2", "--ntasks=4", "--ntasks-per-node=2", "--cpus-per-task=4", "--threads-per-core=1",
        "--cpu-bind=none", "--kill-on-bad-exit=0", PYTHON, "-P",
    ]  # fmt: skip
    command = srun(run(4), FOLDER, hosts=["h2", "h2", "h5", "h5"], bin="/opt/slurm/bin")
    assert command[0] == "/opt/slurm/bin/srun" and "--nodelist=h2,h5" in command, "within a larger allocation"
    command = srun(run(3), FOLDER, hosts=["h1", "h1", "h2"])
    assert command[1:4] == ["--nodes=2", "--ntasks=3", "--distribution=arbitrary"]
    assert not any("nodelist" in option or "per-node" in option for option in command)
    further = srun(run(2, srun=["--overlap", "--label=yes"]), FOLDER)
    assert further[-4:] == ["--overlap", "--label=yes", PYTHON, "-P"], "further options come before the program"
    assert srun_command(run(1), FOLDER, "other.module")[-1] == "other.module"
    on_few_cores = run(2, {"cpus_per_node": 3}, {"processes": ROLES})
    assert "--overcommit" in srun(on_few_cores, FOLDER) and "--overcommit" not in srun(run(2), FOLDER)
    mpi = {"launcher": "mpi"}
    assert "--mpi=pmix" in srun(run(2, None, mpi, mpi="pmix"), FOLDER), "for strategies with MPI only"
    for spec in (run(2, mpi="pmix"), run(2, None, mpi)):
        assert not any("--mpi" in option for option in srun(spec, FOLDER))


@pytest.mark.gpu
@pytest.mark.usefixtures("cluster_paths")
def test_each_rank_sees_all_gpus_of_its_node():
    """As tests/cluster/test_gpu_jobs.py shows, a step without options has all GPUs of its job."""
    on_gpus = run(4, GPU_NODES)
    on_gpus.device = "cuda"
    assert not any("gpu" in option or "gres" in option for option in srun(on_gpus, FOLDER))
    bound = run(4, GPU_NODES, srun=["--gpu-bind=per_task:1"])
    assert "--gpu-bind=per_task:1" in srun(bound, FOLDER), "a user's choice"


@pytest.mark.gpu
def test_slurm_counts_cores_unless_a_user_counts_threads():
    """srun refuses the hint beside --cpu-bind, and sbatch beside other options about threads."""
    for slurm, hint, step in (
        ({}, "nomultithread", "1"),
        ({"lines": ["--hint=nomultithread"]}, "nomultithread", "1"),
        ({"lines": ["--hint=multithread"]}, "multithread", None),
        ({"lines": ["--threads-per-core=2"]}, None, "2"),
        ({"lines": ["--ntasks-per-core=1"]}, None, None),
        ({"srun": ["--threads-per-core=2"]}, "nomultithread", "2"),
        ({"srun": ["--ntasks-per-core=2"]}, "nomultithread", None),
    ):
        spec = run(4, **slurm)
        job = resources.job_options(spec.config.hardware.slurm)
        assert job.get("hint") == hint and len(resources.THREAD_OPTIONS & job.keys()) == 1
        options = [option for option in srun(spec, FOLDER) if option.startswith("--threads-per-core")]
        assert options == ([] if step is None else [f"--threads-per-core={step}"])


@pytest.mark.usefixtures("cluster_paths")
def test_ranks_in_containers():
    assert resources.python_command(run(1), FOLDER) == [PYTHON, "-P"], "without an image"
    assert resources.container_options(run(1), FOLDER) == []
    assert resources.python_command(run(1, GPU_NODES, **IMAGE), FOLDER) == [
        "apptainer", "exec", "--nv", "--bind", MOUNTS, "/img/scalebench.sif", "python3", "-P",
    ]  # fmt: skip
    assert "--nv" not in resources.python_command(run(1, **IMAGE), FOLDER)
    spec = run(1, GPU_NODES, **IMAGE, container_runtime="singularity", container_options=["--rocm", "--cleanenv"])
    assert resources.python_command(spec, FOLDER)[:4] == ["singularity", "exec", "--rocm", "--cleanenv"]
    spec = run(1, GPU_NODES, **IMAGE, container_runtime="pyxis", container_python="/opt/bin/python")
    options = ["--container-image=/img/scalebench.sif", f"--container-mounts={MOUNTS}"]
    assert srun(spec, FOLDER)[-4:] == [*options, "/opt/bin/python", "-P"]
    spec = run(1)
    dataset = dataclasses.replace(spec.config.dataset, path="/archive/cifar", cache="/scratch/user/cache")
    spec.config.dataset, spec.config.hardware.node_copy = dataset, "/tmp"
    folders = ["/scratch/user/sweep/3", "/scratch/user/cache", "/archive/cifar", "/tmp"]
    assert [str(path) for path in resources.rank_folders(spec, FOLDER)] == folders
    with pytest.raises(InputError, match="/scratch/a,b cannot be mounted in a container"):  # as it would be two
        srun_command(run(1, **IMAGE), Path("/scratch/a,b"))
