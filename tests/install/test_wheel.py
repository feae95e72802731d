"""The distribution: its metadata, and its wheel in a fresh environment, where the same commands do the same."""

import os
import re
import subprocess
import sys
import tomllib
import venv

import pytest
from packaging.requirements import Requirement

import scalebench
from tests.conftest import ROOT

OK_ROW = re.compile(r"^\d+ .*\bok\b", re.MULTILINE)  # of the table that ends a run or a sweep
QUICK = ["measure=quick", "measure.min_s=0", "measure.max_s=0.5", "measure.repeats=1", "dataset.size=1000"]


def run(command, folder, status=0):
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == status, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FRAMEWORKS = {"torch", "pytorch-lightning", "accelerate", "deepspeed", "tensorflow", "keras", "horovod"}
TEST_TOOLS = {"pytest", "pytest-xdist", "hypothesis", "selenium", "jsonschema", "ruff", "mypy", "mkdocs-material"}


def test_base_brings_no_framework_and_no_test_tool():
    names = {Requirement(line).name for line in PROJECT["dependencies"]}
    assert "numpy" in names and not names & (FRAMEWORKS | TEST_TOOLS)
    torch = {Requirement(line).name for line in PROJECT["optional-dependencies"]["torch"]}
    assert torch == {"torch", "pytorch-lightning"}


def test_every_hint_names_an_extra_of_the_distribution():
    """A hint with another name would have pip install another project of the index."""
    sources = [path for path in (ROOT / "scalebench").rglob("*") if path.suffix in (".py", ".jinja", ".sh", ".yaml")]
    hints = {hint for path in sources for hint in re.findall(r"([\w-]+)\[(\w+)\]'?\"", path.read_text())}
    extras = {extra for name, extra in hints if name == PROJECT["name"]}
    assert extras >= {"torch", "tensorflow", "images", "figures", "testing"}
    assert extras <= PROJECT["optional-dependencies"].keys()
    assert "scalebench" not in {name for name, _ in hints}


def test_one_version():
    assert f"\nversion: {scalebench.__version__}\n" in (ROOT / "CITATION.cff").read_text()


@pytest.mark.slow
@pytest.mark.real
def test_wheel_in_a_fresh_environment(tmp_path):
    dist, away = tmp_path / "dist", tmp_path / "away from home"
    away.mkdir()
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(dist), str(ROOT)]
    run(build, tmp_path)
    (wheel,) = dist.glob("*.whl")
    venv.create(tmp_path / "env", with_pip=True)
    python = str(tmp_path / "env" / "bin" / "python")
    constraints = ["--constraint", str(ROOT / "constraints.txt")]
    run([python, "-m", "pip", "install", "--quiet", *constraints, f"{wheel}[torch]"], away)

    assert "ddp_gloo" in run([str(tmp_path / "env" / "bin" / "scalebench"), "list", "strategies"], away)
    here = run([python, "-c", "import scalebench.core.config_files as c; print(c.conf_dir())"], away)
    assert "site-packages" in here
    (scripts,) = (tmp_path / "env").glob("lib/*/site-packages/scalebench/cli/commands/install")
    assert {path.name for path in scripts.glob("*.sh") if os.access(path, os.X_OK)} >= {"horovod.sh", "horovod_cxx.sh"}
    assert "scalebench install horovod" in run([str(tmp_path / "env" / "bin" / "scalebench"), "doctor"], away)
    scalebench = [python, "-m", "scalebench"]
    assert "ok" in run([*scalebench, "strategy=ddp_gloo", "gpus=2", "hydra.run.dir=out", *QUICK], away)
    for name in ("spec.json", "rank0.json", "rank1.json", "rank0.log", "rank1.log", "result.json"):
        assert (away / "out" / name).exists(), name
    shown = run([python, "-c", "import scalebench; print(scalebench.load('out').T.to_string())"], away)
    assert "gloo" in shown
    assert "throughput_samples_per_s" in shown
    table = run([*scalebench, "--multirun", "strategy=ddp_gloo,lightning_ddp_gloo", "gpus=1,2", *QUICK], away)
    assert len(OK_ROW.findall(table)) == 5, table  # four, and the bare baseline
    line = run([*scalebench, "strategy=horovod_nccl", "hardware=alpha", "hardware.slurm.bin=/no/such/folder"], away, 1)
    assert "horovod" in line
    assert "use hardware=local" in line
    assert "did you mean 'mirrored'?" in run([*scalebench, "strategy=mirorred"], away, status=2)
    # With the checkout as the working directory its own files are taken.
    assert str(ROOT / "conf") in run(
        [python, "-c", "import scalebench.core.config_files as c; print(c.conf_dir())"], ROOT
    )
