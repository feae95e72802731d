"""The script of a job, its options, resources and srun command. tests/golden/slurm has scripts, by write(), and
settings with the answer to each."""

import dataclasses
import json
import math
import os
import re
import shlex
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.cluster import resources, submit
from scalebench.cluster.commands import JobRefused, SlurmError, SlurmUnreachable
from scalebench.cluster.resources import (
    JobGeometry,
    check_slurm_options,
    job_geometry,
    srun_command,
    sweep_geometry,
    time_limit_minutes,
)
from scalebench.core.errors import InputError
from scalebench.core.run_folder import JOB_FILE
from scalebench.core.spec import Config, HardwareSpec, RankPlacement, SlurmSpec, check_fields
from tests.builders.configs import ALPHA, make_spec
from tests.slurm.builders import FOLDER, GPU_NODES, ROLES, render, run

GOLDEN = Path(__file__).parents[1] / "golden" / "slurm"
IMAGE = {"container": "/img/scalebench.sif", "container_mounts": ["/data:/data:ro"], "partition": "gpu"}
ADMIN = {
    "account": "p_scaling", "qos": "normal", "reservation": "course", "constraint": "fast", "memory": "64G",
    "lines": ["--mail-type=END", "--hint=nomultithread"], "setup": ["module load CUDA/12.4", ". ~/it\\'s/activate"],
    "srun": ["--label"], "time_minutes": 30,
}  # fmt: skip


def alpha():
    hardware = dataclasses.replace(ALPHA)
    hardware.slurm = dataclasses.replace(hardware.slurm, partition="alpha", exclusive=True)
    return make_spec(gpus=16, hardware=hardware)


CASES = {
    "two_whole_nodes": alpha,
    "one_cpu_node": lambda: run(2),
    "uneven": lambda: run(3),
    "apptainer": lambda: run(9, GPU_NODES, **IMAGE),
    "pyxis": lambda: run(16, GPU_NODES, **IMAGE, container_runtime="pyxis"),
    "options_and_setup": lambda: run(4, **ADMIN),
    "parameter_server": lambda: run(3, None, {"processes": ROLES}),
}


def script_and_srun(case):
    spec = CASES[case]()
    spec.config.strategy.name = {"two_whole_nodes": "horovod_nccl", "parameter_server": case}.get(case, "ddp_gloo")
    ranks = shlex.join(srun_command(spec, FOLDER))
    return f"{render(spec, FOLDER)}\n# its ranks are started with\n# {ranks}\n"


def write():
    """Write the golden files; within the fixture `cluster_paths`."""
    for case in CASES:
        (GOLDEN / f"{case}.sh").write_text(script_and_srun(case))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.usefixtures("cluster_paths")
def test_a_script_reads_as_its_user_would_write_it(case, monkeypatch):
    golden = GOLDEN / f"{case}.sh"
    subprocess.run(["bash", "-n", golden], check=True, timeout=20)
    monkeypatch.setenv("PATH", "")  # without SLURM
    assert script_and_srun(case) == golden.read_text()


def test_names_of_folders_and_options_are_quoted_or_refused(tmp_path):
    text = render(run(1), tmp_path / "it's 50% done")
    (output,) = [line for line in text.splitlines() if "--output=" in line]
    assert shlex.split(output)[1] == f"--output={tmp_path}/it's 50%% done/job.log"
    assert shlex.split(text.splitlines()[-1])[-1] == f"{tmp_path}/it's 50% done"
    with pytest.raises(InputError, match="would interpret a part of this name"):
        render(run(1), tmp_path / "job\\1")
    # Some end a line for str.splitlines, and what stood behind them in a quoted option would be a command.
    for sign in "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029\x00\x1b\u202e":
        with pytest.raises(InputError, match="would interpret a part of this name"):
            render(run(1), tmp_path / f"a{sign}touch PWN #")
        for key in ("lines", "srun"):
            with pytest.raises(InputError, match="should be --name=value or --name"):
                check_slurm_options(SlurmSpec(**{key: [f"--comment=a{sign}touch PWN #"]}))
        with pytest.raises(InputError, match="should be an image, in one line"):
            check_slurm_options(SlurmSpec(container=f"a{sign}b"))
    setup = "echo 'a\x0b\u2028b'"  # is the user's own shell, and a script is cut at line feeds alone
    assert setup in render(run(1, setup=[setup]), FOLDER).split("\n")


@pytest.fixture
def sbatch(tools):
    tools.put("sbatch", out="Submitted batch job 12\n", then='env > "$here/env"')
    return tools


def test_a_run_is_submitted(sbatch, tmp_path):
    folder = tmp_path / "it's a run"
    folder.mkdir()
    spec = run(2, bin=str(sbatch.folder), partition="gpu")
    before_s = time.time()
    submission = submit.submit_job([spec], folder, [math.inf])
    assert submission == submit.Submission("12", submission.submitted_at_s, "gpu")
    assert before_s <= submission.submitted_at_s <= time.time()
    assert list(folder.iterdir()) == [script := folder / "job.sh"] and script.read_text() == render(spec, folder)
    assert sbatch.calls("sbatch") == [str(script)]
    submit.write_submission(submit.Submission("13", 1795233093.25), folder)
    assert submit.read_submission(folder) == submit.Submission("13", 1795233093.25)


def test_the_job_gets_this_environment_without_variables_of_this_process(sbatch, tmp_path, monkeypatch):
    user = {"SBATCH_ACCOUNT": "p_x", "LC_ALL": "C.UTF-8", "SCALEBENCH_TEST": "1", "SBATCH_PARTITION": "default"}
    dropped = {
        "SBATCH_TIMELIMIT": "1",
        "SBATCH_OUTPUT": "/x",
        "SBATCH_WAIT": "1",
        "SBATCH_GPUS": "3",
        "SLURM_MEM_PER_CPU": "9",
    }
    dropped |= dict.fromkeys(submit.PROCESS_VARIABLES, "1")
    for name, value in (user | dropped).items():
        monkeypatch.setenv(name, value)
    submit.submit_job([run(2, bin=str(sbatch.folder))], tmp_path, [math.inf])
    environment = sbatch.environment()
    assert user.items() <= environment.items() and not dropped.keys() & environment.keys()
    assert environment.keys() - os.environ.keys() <= {"PWD", "OLDPWD", "SHLVL", "_"}, "nor SLURM_TIME_FORMAT"
    assert "SBATCH_PARTITION" not in submit.submission_environment(SlurmSpec(partition="gpu"))


def test_a_failed_submission_leaves_no_job_file_and_an_invalid_one_is_named(tools, tmp_path):
    failed, contact = "sbatch: error: Batch job submission failed: ", "Unable to contact slurm controller"
    for printed, error, message in (
        ({"err": f"{failed}Invalid partition name specified\n", "code": 1}, JobRefused, "^Invalid partition name spec"),
        ({"err": f"{failed}{contact} (connect failure)\n", "code": 1}, SlurmUnreachable, f"^{contact}"),
        ({"out": "what?\n"}, SlurmError, r"^sbatch did not say which job it is: what\?$"),
    ):
        tools.put("sbatch", **printed)
        with pytest.raises(SlurmError, match=message) as caught:
            submit.submit_job([run(1, bin=str(tools.folder))], tmp_path, [math.inf])
        assert type(caught.value) is error and submit.read_submission(tmp_path) is None
    for text in ("", "[]", '{"job_id": 12, "submitted_at_s": 1.0}', '{"job_id": "12"}'):
        (tmp_path / JOB_FILE).write_text(text)
        with pytest.raises(InputError, match=r"job\.json cannot be read: .*; remove it"):
            submit.read_submission(tmp_path)


PYTHON = "/home/user/venv/bin/python"


def check(slurm):
    config = Config(hardware=HardwareSpec(scheduler="slurm", slurm=SlurmSpec(**slurm)))
    check_fields(config)
    resources.check_slurm_options(config.hardware.slurm)


def test_an_invalid_option_is_one_line_with_the_way_out():
    text = (GOLDEN / "options.txt").read_text(encoding="utf-8")
    for settings, answer in re.findall(r"^\$ (.*)\n(.*)$", text, re.MULTILINE):
        message = "accepted"
        try:
            check(json.loads(settings))
        except InputError as error:
            message = " ".join(str(error).split())  # as the program prints it
        assert message == answer


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
    assert geometry.overcommit == (geometry.tasks_per_node > cores)
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
        of_two = minutes or math.ceil(timeout_s / 30 + 2)
        assert time_limit_minutes([spec] * 2, [math.inf] * 2) == of_two
    spec = run(1)
    spec.config.measure.timeout_s = 3600.0
    estimates = {(60.0,): 32, (60.0,) * 24: 38, (1000.0,): 32, (2000.0,): 52, (5000.0,): 62, (60.0, math.inf): 64}
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
    agent = ["-m", "scalebench.runner.node_agent", "HOST:PORT", "--node", "SLURMD_NODENAME"]
    by_rank = command[-1] == "HOST:PORT"
    assert command[-5:] == agent or (by_rank and command[-3:] == agent[:3])
    return command[: -3 if by_rank else -5]


@pytest.mark.usefixtures("cluster_paths")
def test_how_srun_places_agents():
    assert srun(run(4), FOLDER) == [
        "srun", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--cpu-bind=none", "--kill-on-bad-exit=0", PYTHON,
        "-P",
    ]  # fmt: skip
    command = srun(run(3), FOLDER, hosts=["h2", "h2", "h5"], bin="/opt/slurm/bin")
    assert command[0] == "/opt/slurm/bin/srun" and "--nodelist=h2,h5" in command, "within a larger allocation"
    mpi = {"strategy": {"launcher": "mpi"}, "mpi": "pmix"}
    command = srun(run(3, **mpi), FOLDER, hosts=["h1", "h1", "h2"])
    assert command[1:4] == ["--nodes=2", "--ntasks=3", "--distribution=arbitrary"]
    assert not any("nodelist" in option or "per-node" in option for option in command)
    further = srun(run(2, srun=["--overlap", "--label=yes"]), FOLDER)
    assert further[-4:] == ["--overlap", "--label=yes", PYTHON, "-P"], "further options come before the program"
    on_few_cores = run(2, {"cpus_per_node": 3}, {"processes": ROLES, "launcher": "mpi"}, mpi="pmix")
    assert "--overcommit" in srun(on_few_cores, FOLDER) and "--overcommit" not in srun(run(2, **mpi), FOLDER)
    mpi = {"launcher": "mpi"}
    assert "--mpi=pmix" in srun(run(2, None, mpi, mpi="pmix"), FOLDER), "for strategies with MPI only"
    for spec in (run(2, mpi="pmix"), run(2, None, mpi)):
        assert not any("--mpi" in option for option in srun(spec, FOLDER))


@pytest.mark.gpu
@pytest.mark.usefixtures("cluster_paths")
def test_each_rank_sees_all_gpus_of_its_node_and_cores_are_counted():
    """As tests/cluster/test_gpu_jobs.py shows, a step without options has all GPUs of its job."""
    on_gpus = run(4, GPU_NODES)
    on_gpus.device = "cuda"
    assert not any("gpu" in option or "gres" in option for option in srun(on_gpus, FOLDER))
    # srun refuses the hint beside --cpu-bind, and sbatch beside other options about threads.
    for slurm, hint, step in (
        ({}, "nomultithread", None),
        ({"lines": ["--hint=nomultithread"]}, "nomultithread", None),
        ({"lines": ["--hint=multithread"]}, "multithread", None),
        ({"lines": ["--threads-per-core=2"]}, None, None),
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
    on_nodes = run(1, python="/opt/nodes/bin/python")
    assert resources.python_command(on_nodes, FOLDER) == ["/opt/nodes/bin/python", "-P"]
    assert "exec /opt/nodes/bin/python -P -u -m scalebench.sweeps.job_main" in render(on_nodes, FOLDER)
    assert "--nv" not in resources.python_command(run(1, **IMAGE), FOLDER)
    spec = run(1, GPU_NODES, **IMAGE, container_runtime="singularity", container_options=["--rocm", "--pid"])
    assert resources.python_command(spec, FOLDER)[:4] == ["singularity", "exec", "--rocm", "--pid"]
    spec = run(1, GPU_NODES, **IMAGE, container_runtime="pyxis", container_python="/opt/bin/python")
    assert srun(spec, FOLDER)[-2:] == ["/opt/bin/python", "-P"]
    spec = run(1)
    dataset = dataclasses.replace(spec.config.dataset, path="/archive/cifar", cache="/scratch/user/cache")
    spec.config.dataset, spec.config.hardware.node_copy = dataset, "/tmp"
    folders = ["/scratch/user/sweep/3", "/scratch/user/cache", "/archive/cifar", "/tmp"]
    assert [str(path) for path in resources.rank_folders(spec, FOLDER)] == folders
    with pytest.raises(InputError, match="/scratch/a,b cannot be mounted in a container"):  # as it would be two
        srun_command(run(1, **IMAGE), Path("/scratch/a,b"))
