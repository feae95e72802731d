"""examples/: each file is short, its command is a run, and its losses are the bare run's under every strategy."""

import re
import shlex
import shutil
from importlib.util import find_spec

import numpy as np
import pytest

from scalebench.config import resolve
from scalebench.config.compose import compose_config
from scalebench.testing.launch import UNEVEN_WORKLOAD, launch_checks
from tests.conftest import ROOT

# Programs that train by themselves, train_*.py, are in test_own_script.py.
EXAMPLES = sorted(path for path in (ROOT / "examples").glob("*.py") if not path.stem.startswith("train_"))
MAX_LINES = 60
TORCH = [
    *(
        "ddp_gloo",
        "horovod_gloo",
        "lightning_ddp_gloo",
        "fsdp_gloo",
        "lightning_fsdp_gloo",
        "zero1",
        "tensor_parallel",
        "fsdp_tp",
    ),
    *(name for name in ("accelerate", "deepspeed_zero1", "deepspeed_zero3") if find_spec(name.partition("_")[0])),
]
STRATEGIES = {
    "keras_two_inputs": ("bare_tensorflow", ["mirrored", "horovod_tensorflow_gloo"]),
    "lightning_curves": ("bare_torch", TORCH),
    "token_transformer": ("bare_torch", TORCH),
}  # of each example: its baseline, and strategies that repeat its steps


def read_overrides(example):
    """Return the overrides of the command in the docstring, without what a sweep varies."""
    docstring = example.read_text(encoding="utf-8").split('"""')[1].replace("\\\n", " ")
    command = re.search(r"^scalebench (.*)", docstring, re.MULTILINE)
    assert command is not None, f"{example} has no command"
    varied = ("--", "strategy=", "gpus=")
    return [word for word in shlex.split(command[1].replace("\\", "")) if not word.startswith(varied)]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Run in a folder with the examples, which ranks find on their path, too."""
    for example in EXAMPLES:
        shutil.copy(example, tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")


def test_each_example_has_strategies_and_is_short():
    assert {example.stem for example in EXAMPLES} == set(STRATEGIES)
    assert all(len(example.read_text(encoding="utf-8").splitlines()) < MAX_LINES for example in EXAMPLES)


def launch(example, strategy, gpus, folder):
    overrides = read_overrides(ROOT / "examples" / f"{example}.py")
    return launch_checks([*UNEVEN_WORKLOAD, *overrides, f"strategy={strategy}", f"gpus={gpus}"], folder)


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize("example", STRATEGIES)
def test_losses_are_those_of_the_bare_run(example, tmp_path):
    """On one and two devices, with uneven parts and an uneven last batch of an epoch."""
    baseline, strategies = STRATEGIES[example]
    bare = launch(example, baseline, 1, tmp_path / "bare")
    assert bare.losses()[-1] < bare.losses()[0]
    for strategy in strategies:
        for gpus in (1, 2):
            group = launch(example, strategy, gpus, tmp_path / f"{strategy}{gpus}")
            message = f"{strategy} on {gpus} devices"
            np.testing.assert_allclose(group.losses(), bare.losses(), rtol=1e-4, err_msg=message)
            assert group.ranks[0].metrics == pytest.approx(bare.ranks[0].metrics, rel=1e-3), message


@pytest.mark.parametrize("strategy", ["pipeline_gpipe", "hybrid", "mirrored"])
def test_strategies_that_cannot_take_them_say_so_in_the_plan(strategy):
    overrides = read_overrides(ROOT / "examples" / "token_transformer.py")
    spec = resolve.resolve(compose_config([*overrides, f"strategy={strategy}", "gpus=2", "dataset.size=200"]))
    assert spec.unsupported and spec.config.dataset.dtype == "record"
