"""The script of a job, as its user reads it, and its submission. Golden files: tests/golden/slurm, made by write()."""

from __future__ import annotations

import dataclasses
import os
import pickletools
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scalebench.core.errors import InputError
from scalebench.core.spec import RunSpec
from scalebench.slurm import submit
from scalebench.slurm.commands import JobRefused, SlurmError, SlurmUnreachable
from scalebench.slurm.resources import srun_command
from scalebench.slurm.submit import Submission, read_submission
from tests.builders.configs import ALPHA, of
from tests.slurm.builders import FOLDER, GPU_NODES, ROLES, Tools, run
from tests.slurm.builders import places as places

GOLDEN = Path(__file__).parents[1] / "golden" / "slurm"
IMAGE: dict[str, Any] = {"container": "/img/scalebench.sif", "container_mounts": ["/data:/data:ro"], "partition": "gpu"}
ADMIN: dict[str, Any] = {
    "account": "p_scaling", "qos": "normal", "reservation": "course", "constraint": "fast", "memory": "64G",
    "lines": ["--mail-type=END", "--hint=nomultithread"], "setup": ["module load CUDA/12.4", ". ~/it\\'s/activate"],
    "srun": ["--label"], "time_minutes": 30,
}  # fmt: skip


def alpha() -> RunSpec:
    hardware = dataclasses.replace(ALPHA)
    hardware.slurm = dataclasses.replace(hardware.slurm, partition="alpha", exclusive=True)
    return of(gpus=16, hardware=hardware)


CASES: dict[str, Callable[[], RunSpec]] = {
    "two_whole_nodes": alpha,
    "one_cpu_node": lambda: run(2),
    "uneven": lambda: run(3),
    "apptainer": lambda: run(9, GPU_NODES, **IMAGE),
    "pyxis": lambda: run(16, GPU_NODES, **IMAGE, container_runtime="pyxis"),
    "options_and_setup": lambda: run(4, **ADMIN),
    "parameter_server": lambda: run(3, None, {"processes": ROLES}),
}


def whole(case: str) -> str:
    spec = CASES[case]()
    spec.config.strategy.name = {"two_whole_nodes": "horovod_nccl", "parameter_server": case}.get(case, "ddp_gloo")
    ranks = shlex.join(srun_command(spec, FOLDER))
    return f"{submit.render_script(spec, FOLDER)}\n# its ranks are started with\n# {ranks}\n"


def write() -> None:
    """Make the golden files anew; within the fixture `places`."""
    for case in CASES:
        (GOLDEN / f"{case}.sh").write_text(whole(case))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.usefixtures("places")
def test_a_script_is_what_its_user_would_have_written(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")  # without SLURM
    assert whole(case) == (GOLDEN / f"{case}.sh").read_text()


@pytest.mark.parametrize("case", CASES)
def test_the_shell_can_read_it(case: str) -> None:
    subprocess.run(["bash", "-n", GOLDEN / f"{case}.sh"], check=True, timeout=20)


def test_names_are_quoted_and_no_placeholders(tmp_path: Path) -> None:
    text = submit.render_script(run(1), tmp_path / "it's 50% done")
    (output,) = [line for line in text.splitlines() if "--output=" in line]
    assert shlex.split(output)[1] == f"--output={tmp_path}/it's 50%% done/job.log"
    assert shlex.split(text.splitlines()[-1])[-1] == f"{tmp_path}/it's 50% done/slurm"
    with pytest.raises(InputError, match="would interpret a part of this name"):
        submit.render_script(run(1), tmp_path / "job%j")


@pytest.fixture
def sbatch(tools: Tools) -> Tools:
    then = 'env > "$here/env"; cp "$1" "$here/script"; cp "$(dirname "$1")"/*.pkl "$here/pickle"'
    tools.put("sbatch", out="Submitted batch job 12\n", then=then)
    return tools


def test_a_run_is_submitted(sbatch: Tools, tmp_path: Path) -> None:
    folder = tmp_path / "it's a run"
    folder.mkdir()
    spec = run(2, bin=str(sbatch.folder), partition="gpu")
    before_s = time.time()
    made = submit.submit_job(spec, folder)
    assert made == Submission("12", made.submitted_at_s, "gpu") == read_submission(folder)
    assert before_s <= made.submitted_at_s <= time.time()
    assert sorted(path.name for path in (folder / "slurm").iterdir()) == ["12_submitted.pkl", "job.sh"]
    assert (
        (sbatch.folder / "script").read_text()
        == submit.render_script(spec, folder)
        == (folder / "slurm" / "job.sh").read_text()
    )
    assert sbatch.calls("sbatch") == [str(folder / "slurm" / "job.sh")]
    submit.remove_pickles(folder)
    submit.remove_pickles(tmp_path)
    assert [path.name for path in (folder / "slurm").iterdir()] == ["job.sh"]


def test_the_pickle_names_the_function_and_the_folder_and_holds_nothing_else(sbatch: Tools, tmp_path: Path) -> None:
    submit.submit_job(run(2, bin=str(sbatch.folder)), tmp_path)
    words = [
        value for _, value, _ in pickletools.genops((sbatch.folder / "pickle").read_bytes()) if isinstance(value, str)
    ]
    assert [word for word in words if not word.startswith("_")] == [
        "submitit.core.utils", "DelayedSubmission", "function", "scalebench.runner.jobs.job_main", "run_job_and_exit", "args", str(tmp_path),
        "kwargs",
    ]  # fmt: skip


def test_the_job_gets_this_environment_but_nothing_of_this_process(
    sbatch: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = {"SBATCH_ACCOUNT": "mine", "LC_ALL": "C.UTF-8", "SCALEBENCH_TEST": "1", "SBATCH_PARTITION": "default"}
    dropped = {"SBATCH_TIMELIMIT": "1", "SBATCH_OUTPUT": "/x", "SBATCH_WAIT": "1", "SBATCH_ARRAY_INX": "0-3"}
    ours = dict.fromkeys(submit.PROCESS_VARIABLES, "1")
    for name, value in (theirs | dropped | ours).items():
        monkeypatch.setenv(name, value)
    submit.submit_job(run(2, bin=str(sbatch.folder)), tmp_path)
    seen = dict(line.split("=", 1) for line in (sbatch.folder / "env").read_text().splitlines() if "=" in line)
    assert theirs.items() <= seen.items() and not (dropped | ours).keys() & seen.keys()
    assert "SBATCH_PARTITION" not in submit.submission_environment(
        submit.render_script(run(2, partition="gpu"), tmp_path)
    )
    assert "SLURM_TIME_FORMAT" not in seen and seen.keys() - os.environ.keys() <= {"PWD", "OLDPWD", "SHLVL", "_"}


@pytest.mark.parametrize(
    ("told", "error", "words"),
    [
        ({"err": "sbatch: error: Batch job submission failed: Invalid partition name specified\n", "code": 1}, JobRefused,
         "^Invalid partition name specified$"),
        ({"err": "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)\n",
          "code": 1}, SlurmUnreachable, "^Unable to contact slurm controller"),
        ({"out": "what?\n"}, SlurmError, r"^sbatch did not say which job it is: what\?$"),
    ],
)  # fmt: skip
def test_what_is_not_submitted_leaves_no_job_behind(
    told: dict[str, Any], error: type[SlurmError], words: str, tools: Tools, tmp_path: Path
) -> None:
    tools.put("sbatch", **told)
    with pytest.raises(SlurmError, match=words) as caught:
        submit.submit_job(run(1, bin=str(tools.folder)), tmp_path)
    assert type(caught.value) is error and read_submission(tmp_path) is None
    assert [path.name for path in (tmp_path / "slurm").iterdir()] == ["job.sh"]


def test_without_an_sbatch_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(SlurmUnreachable, match="there is no sbatch in /nowhere"):
        submit.submit_job(run(1, bin="/nowhere"), tmp_path)


def test_submitit_is_loaded_when_there_is_something_to_submit() -> None:
    code = "import sys; from scalebench.slurm import submit as script, resources as geometry, job_states as watcher; print('submitit' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "False\n"
