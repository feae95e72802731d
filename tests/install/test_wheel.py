"""The built wheel, in a fresh environment, away from the checkout: the same commands do the same."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.conftest import ROOT

QUICK = ["measure=quick", "measure.min_s=0", "measure.max_s=0.5", "measure.repeats=1", "dataset.size=1000"]


def run(command: list[str], folder: Path, status: int = 0) -> str:
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == status, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.real
def test_wheel_in_a_fresh_environment(tmp_path: Path) -> None:
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
    scalebench = [python, "-m", "scalebench"]
    assert "ok" in run([*scalebench, "strategy=ddp_gloo", "gpus=2", "hydra.run.dir=out", *QUICK], away)
    for name in ("spec.json", "rank0.json", "rank1.json", "rank0.log", "rank1.log", "result.json"):
        assert (away / "out" / name).exists(), name
    shown = run([python, "-c", "import scalebench; print(scalebench.load('out').T.to_string())"], away)
    assert "gloo" in shown
    assert "throughput_samples_per_s" in shown
    table = run([*scalebench, "--multirun", "strategy=ddp_gloo,lightning_ddp_gloo", "gpus=1,2", *QUICK], away)
    assert table.count(" ok ") == 5, table  # four, and the bare baseline
    line = run([*scalebench, "strategy=horovod_nccl", "hardware=alpha", "hardware.slurm.bin=/no/such/folder"], away)
    assert "horovod" in line
    assert "use hardware=local" in line
    assert "did you mean 'mirrored'?" in run([*scalebench, "strategy=mirorred"], away, status=2)
    # With the checkout as the working directory its own files are taken.
    assert str(ROOT / "conf") in run(
        [python, "-c", "import scalebench.core.config_files as c; print(c.conf_dir())"], ROOT
    )
