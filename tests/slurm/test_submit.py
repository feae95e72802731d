"""The script of a job and its submission. Golden files: tests/golden/slurm, written by write()."""

import dataclasses
import os
import pickletools
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scalebench.config.compose import compose_config
from scalebench.config.resolve import resolve
from scalebench.core import config_files
from scalebench.core.errors import InputError
from scalebench.core.run_folder import JOB_FILE
from scalebench.core.spec import SlurmSpec
from scalebench.slurm import submit
from scalebench.slurm.commands import JobRefused, SlurmError, SlurmUnreachable
from scalebench.slurm.resources import check_slurm_options, srun_command
from tests.builders.configs import ALPHA, make_spec
from tests.slurm.builders import FOLDER, GPU_NODES, ROLES, run

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
    return f"{submit.render_script(spec, FOLDER)}\n# its ranks are started with\n# {ranks}\n"


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


# All but the one that is detected.
HARDWARE = sorted({path.stem for path in config_files.conf_dir().glob("hardware/*.yaml")} - {"local"})
UNSET = {"slurm": ["hardware.gpus_per_node=8", "hardware.cpus_per_node=64"]}


def options_of(lines):
    return dict(line.partition("=")[::2] for line in lines if line.startswith("--"))


@pytest.mark.gpu
@pytest.mark.parametrize("strategy", ["ddp", "mirrored", "parameter_server"])
@pytest.mark.parametrize("name", HARDWARE)
def test_no_script_contradicts_itself_or_its_hardware(name, strategy):
    """Up to four nodes full of devices, for a process per device, one for all, and roles."""
    words = [f"hardware={name}", f"strategy={strategy}", "model=materials_cnn", "dataset.size=100000"]
    config = compose_config([*words, *UNSET.get(name, [])])
    hardware, rendered = config.hardware, 0
    per_node = hardware.gpus_per_node
    assert per_node is not None
    for gpus in sorted(
        {1, 2, 3, *(count + more for count in (per_node, 2 * per_node) for more in (-1, 0, 1)), 4 * per_node} - {0}
    ):
        spec = resolve(dataclasses.replace(config, gpus=gpus))
        if gpus > per_node * hardware.max_nodes or (strategy == "mirrored" and gpus > per_node):
            assert spec.unsupported or (hardware.devices == "cpu" and hardware.max_nodes == 1), gpus
            continue
        script = options_of(line.removeprefix("#SBATCH ") for line in submit.render_script(spec, FOLDER).splitlines())
        step = options_of(srun_command(spec, FOLDER))
        nodes, tasks = int(script["--nodes"]), int(script["--ntasks-per-node"])
        cores = int(script["--cpus-per-task"])
        assert nodes * per_node >= gpus and int(step["--ntasks"]) == spec.processes
        assert nodes * tasks >= spec.processes or "--overcommit" in step  # the service roles of few cores
        assert nodes <= hardware.max_nodes and nodes == int(step["--nodes"])
        assert tasks * cores <= (hardware.cpus_per_node or tasks * cores) and step["--cpus-per-task"] == str(cores)
        assert (script["--hint"], step["--threads-per-core"]) == ("nomultithread", "1")
        assert ("--gres" in script) == (spec.device == "cuda")
        if spec.device == "cuda":
            assert int(script["--gres"].rpartition(":")[2]) == min(gpus, per_node)
        rendered += 1
    assert rendered >= min(per_node, 3)


def test_names_of_folders_and_options_are_quoted_or_refused(tmp_path):
    text = submit.render_script(run(1), tmp_path / "it's 50% done")
    (output,) = [line for line in text.splitlines() if "--output=" in line]
    assert shlex.split(output)[1] == f"--output={tmp_path}/it's 50%% done/job.log"
    assert shlex.split(text.splitlines()[-1])[-1] == f"{tmp_path}/it's 50% done/slurm"
    with pytest.raises(InputError, match="would interpret a part of this name"):
        submit.render_script(run(1), tmp_path / "job%j")
    # Some end a line for str.splitlines, and what stood behind them in a quoted option would be a command.
    for sign in "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029\x00\x1b\u202e":
        with pytest.raises(InputError, match="would interpret a part of this name"):
            submit.render_script(run(1), tmp_path / f"a{sign}touch PWN #")
        for key in ("lines", "srun"):
            with pytest.raises(InputError, match="should be --name=value or --name"):
                check_slurm_options(SlurmSpec(**{key: [f"--comment=a{sign}touch PWN #"]}))
        with pytest.raises(InputError, match="should be a path in one line"):
            check_slurm_options(SlurmSpec(container=f"a{sign}b"))
    setup = "echo 'a\x0b\u2028b'"  # is the user's own shell, and a script is cut at line feeds alone
    assert setup in submit.render_script(run(1, setup=[setup]), FOLDER).split("\n")


@pytest.fixture
def sbatch(tools):
    then = 'env > "$here/env"; cp "$1" "$here/script"; cp "$(dirname "$1")"/*.pkl "$here/pickle"'
    tools.put("sbatch", out="Submitted batch job 12\n", then=then)
    return tools


def test_a_sweep_is_submitted_as_one_job(sbatch, tmp_path):
    specs = [run(gpus, bin=str(sbatch.folder), time_minutes=30) for gpus in (1, 2)]
    submission = submit.submit_sweep(specs, tmp_path / "sweep", ["--multirun", "gpus=1,2"], [60.0, 60.0])
    assert submission == submit.read_submission(tmp_path / "sweep")
    script = (sbatch.folder / "script").read_text()
    assert script == submit.render_sweep_script(specs, tmp_path / "sweep", [60.0, 60.0])
    assert {"#SBATCH --time=60", "#SBATCH --job-name=scalebench-sweep"} < set(script.splitlines())
    pickle = (sbatch.folder / "pickle").read_bytes()
    texts = [argument for _, argument, _ in pickletools.genops(pickle) if isinstance(argument, str)]
    assert {"become_sweep", str(tmp_path / "sweep"), "--multirun", "gpus=1,2"} < set(texts)


def test_a_run_is_submitted(sbatch, tmp_path):
    folder = tmp_path / "it's a run"
    folder.mkdir()
    spec = run(2, bin=str(sbatch.folder), partition="gpu")
    before_s = time.time()
    submission = submit.submit_job(spec, folder)
    assert submission == submit.Submission("12", submission.submitted_at_s, "gpu") == submit.read_submission(folder)
    assert before_s <= submission.submitted_at_s <= time.time()
    script = folder / "slurm" / "job.sh"
    assert sorted(path.name for path in script.parent.iterdir()) == ["12_submitted.pkl", "job.sh"]
    assert (sbatch.folder / "script").read_text() == submit.render_script(spec, folder) == script.read_text()
    assert sbatch.calls("sbatch") == [str(script)]
    operations = pickletools.genops((sbatch.folder / "pickle").read_bytes())
    assert [text for _, text, _ in operations if isinstance(text, str) and not text.startswith("_")] == [
        "submitit.core.utils", "DelayedSubmission", "function", submit.JOB_MODULE, submit.JOB_FUNCTION, "args",
        str(folder), "kwargs",
    ]  # fmt: skip
    submit.write_submission(submit.Submission("13", 1795233093.25), folder)
    assert submit.read_submission(folder) == submit.Submission("13", 1795233093.25)
    submit.remove_pickles(folder)
    submit.remove_pickles(tmp_path)
    assert list(script.parent.iterdir()) == [script]


def test_the_job_gets_this_environment_without_variables_of_this_process(sbatch, tmp_path, monkeypatch):
    user = {"SBATCH_ACCOUNT": "p_x", "LC_ALL": "C.UTF-8", "SCALEBENCH_TEST": "1", "SBATCH_PARTITION": "default"}
    dropped = {"SBATCH_TIMELIMIT": "1", "SBATCH_OUTPUT": "/x", "SBATCH_WAIT": "1", "SBATCH_ARRAY_INX": "0-3"}
    dropped |= dict.fromkeys(submit.PROCESS_VARIABLES, "1")
    for name, value in (user | dropped).items():
        monkeypatch.setenv(name, value)
    submit.submit_job(run(2, bin=str(sbatch.folder)), tmp_path)
    environment = sbatch.environment()
    assert user.items() <= environment.items() and not dropped.keys() & environment.keys()
    assert environment.keys() - os.environ.keys() <= {"PWD", "OLDPWD", "SHLVL", "_"}, "nor SLURM_TIME_FORMAT"
    script = submit.render_script(run(2, partition="gpu"), tmp_path)
    assert "SBATCH_PARTITION" not in submit.submission_environment(script)
    monkeypatch.setenv("SBATCH_GPUS_PER_NODE", "1")
    script = submit.render_script(run(2, gres="", lines=["--gpus-per-node=2"]), tmp_path)
    assert "SBATCH_GPUS_PER_NODE" not in submit.submission_environment(script)
    monkeypatch.setenv("SLURM_MEM_PER_CPU", "4000")
    assert "SLURM_MEM_PER_CPU" in submit.submission_environment(script)
    script = submit.render_script(run(2, memory="4G"), tmp_path)
    assert "SLURM_MEM_PER_CPU" not in submit.submission_environment(script), "srun takes one of them"


@pytest.mark.parametrize(
    ("sbatch_output", "error", "message"),
    [
        ({"err": "sbatch: error: Batch job submission failed: Invalid partition name specified\n", "code": 1},
         JobRefused, "^Invalid partition name specified$"),
        ({"err": "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)\n",
          "code": 1}, SlurmUnreachable, "^Unable to contact slurm controller"),
        ({"out": "what?\n"}, SlurmError, r"^sbatch did not say which job it is: what\?$"),
    ],
)  # fmt: skip
def test_a_failed_submission_leaves_no_job_file(sbatch_output, error, message, tools, tmp_path):
    tools.put("sbatch", **sbatch_output)
    with pytest.raises(SlurmError, match=message) as caught:
        submit.submit_job(run(1, bin=str(tools.folder)), tmp_path)
    assert type(caught.value) is error and submit.read_submission(tmp_path) is None
    assert [path.name for path in (tmp_path / "slurm").iterdir()] == ["job.sh"]


def test_submitit_is_imported_only_to_submit():
    code = "import sys\nfrom scalebench.slurm import job_states, resources, submit\nprint('submitit' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize("text", ["", "[]", '{"job_id": 12, "submitted_at_s": 1.0}', '{"job_id": "12"}'])
def test_an_invalid_job_file_is_named(text, tmp_path):
    assert submit.read_submission(tmp_path) is None and submit.read_submission(tmp_path / "none") is None
    (tmp_path / JOB_FILE).write_text(text)
    with pytest.raises(InputError, match=r"job\.json cannot be read: .*; remove it"):
        submit.read_submission(tmp_path)
