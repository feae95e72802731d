"""docs/guides/own-model.md: its files are made as they stand there, and its commands do what it says."""

import json
import os
import re
import shlex
import subprocess
import sys

import pytest

from scalebench.strategies.registry import missing_packages
from tests.conftest import ROOT

PAGE = (ROOT / "docs/guides/own-model.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"```python\n# (\S+\.py)\n(.*?)```", PAGE, flags=re.DOTALL))
COMMANDS = [
    shlex.split(line)[1:] for line in re.findall(r"^scalebench [^\n]*model[.=][^\n]*", PAGE, flags=re.MULTILINE)
]
LIBRARIES = {"model=hf": "transformers", "model=torchvision": "torchvision"}
SHORT = ["measure=quick", "measure.probes=false", "measure.monitor=false", "measure.max_s=1", "measure.min_s=0"]


@pytest.fixture(autouse=True)
def files(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)


def scalebench(*arguments):
    command = [sys.executable, "-m", "scalebench", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, env={**os.environ, "COLUMNS": "200"})


def test_files_and_commands_are_found():
    assert set(FILES) == {"mynet.py", "mynet_keras.py", "mydata.py"} and len(COMMANDS) >= 6
    assert all(len(text.strip().splitlines()) <= 20 for text in FILES.values())


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(words, marks=[pytest.mark.extra(name) for model, name in LIBRARIES.items() if model in words])
        for words in COMMANDS
    ],
    ids=range(len(COMMANDS)),
)
def test_each_command_runs(arguments, tmp_path):
    """As it stands there, though not for long."""
    if "check" in arguments:
        done = scalebench(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return
    done = scalebench(*arguments, *SHORT, f"hydra.sweep.dir={tmp_path}/out", f"hydra.run.dir={tmp_path}/out")
    assert done.returncode == 0, done.stdout + done.stderr
    results = [json.loads(path.read_text()) for path in sorted((tmp_path / "out").rglob("result.json"))]
    expected = {"ok"} if not missing_packages(["horovod", "pytorch_lightning"]) else {"ok", "unsupported"}
    assert results and {result["status"] for result in results} <= expected
    ran = [result for result in results if result["status"] == "ok"]
    assert ran and all(result["workload"]["model_params"] for result in ran)
    if "model=custom" in arguments:
        assert all(result["workload"]["flops_per_sample"] for result in ran if result["scale"]["framework"] == "torch")
        assert {result["workload"]["model"] for result in ran} == {"mynet:build"}
