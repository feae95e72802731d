"""The lines of a strategy run, other strategies have a page that shows them, and the command composes."""

import ast
import json
import os
import subprocess
import sys

import pytest

from scalebench.analysis.scaling_curves import plain_rows
from scalebench.core.config_files import read_strategy_config
from scalebench.report.document import Paragraph
from scalebench.report.repeat_commands import make_command, make_recipe
from scalebench.report.report_data import load_report_data
from scalebench.report.sections.answer import list_evidence
from scalebench.strategies.registry import built_in_strategies, missing_packages
from tests.builders import sweeps
from tests.builders.frames import pool_results
from tests.conftest import ROOT

CONTROLS = {
    "simulated",
    "script",
    *(f"{kind}_{name}" for kind in ("bare", "independent") for name in ("torch", "tensorflow")),
}
RECIPES = {name: make_recipe(name, 4, "cpu") for name in sorted(set(built_in_strategies()) - CONTROLS)}
NAMES = [name for name, recipe in RECIPES.items() if recipe.code]
# One process without GPUs cannot run them: they need NCCL or several devices.
UNAVAILABLE = [name for name in NAMES if "nccl" in name or name == "mirrored_hierarchical"]


def recipe_code(strategy, gpus=2, device="cpu", chosen=None):
    return make_recipe(strategy, gpus, device, chosen).code


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("strategy", NAMES)
def test_lines_are_complete_python(strategy, device):
    recipe = make_recipe(strategy, 4, device)
    assert recipe.left_out == ()
    ast.parse(recipe.code)
    assert "$" not in recipe.code + recipe.start_command and "train.py" in recipe.start_command
    assert max(map(len, recipe.code.splitlines())) <= 120


def test_a_strategy_without_lines_has_a_page_and_controls_and_plugins_have_neither():
    assert all(recipe.page.startswith("https://") for recipe in RECIPES.values() if not recipe.code) and len(NAMES) > 20
    assert not any(make_recipe(name, 2, "cpu") for name in ("of_a_plugin", *CONTROLS))


def test_the_report_names_the_page_of_a_strategy_without_lines(tmp_path):
    sweeps.sweep(tmp_path, ("bare_torch", "zero1"), (1, 2), repeats=3)
    texts = [block.text for block in list_evidence(load_report_data([tmp_path])) if isinstance(block, Paragraph)]
    assert f"{RECIPES['zero1'].page} shows how a program of your own uses zero1." in texts


@pytest.mark.parametrize(("strategy", "changes", "part"), [
    ("ddp", {"device": "cuda"}, '"nccl"'), ("ddp", {}, '"gloo"'), ("ddp_gloo", {"device": "cuda"}, '"gloo"'),
    ("mirrored_reduce_cpu", {}, 'ReductionToOneDevice("/CPU:0")'),
    ("mirrored_reduce_device", {}, "ReductionToOneDevice(devices[0])"),
    ("mirrored", {}, "MirroredStrategy(devices)"), ("mirrored", {"gpus": 8}, "range(8)"),
    ("ddp", {"chosen": "bucket_cap_mb=1.0 broadcast_buffers=True"}, "broadcast_buffers=True, bucket_cap_mb=1.0"),
    ("mirrored_nccl", {"chosen": "num_packs=4"}, "NcclAllReduce(4)"),
    ("horovod_gloo", {"chosen": "compression=fp16"}, "hvd.Compression.fp16"),
    ("pipeline_gpipe", {}, "ScheduleGPipe(PipelineStage(stage, rank, stages, device), 2 * stages,"),
    ("pipeline_1f1b", {"chosen": "micro_batches=8"}, "device), 8, loss_fn=loss)"),
    ("mirrored_nccl", {"chosen": "num_packs=$x"}, "NcclAllReduce($x)"),  # of whatever file a report reads
])  # fmt: skip
def test_lines_are_of_the_strategy_its_options_the_device_and_the_count(strategy, changes, part):
    assert part in recipe_code(strategy, **changes)


def test_chosen_options_are_in_the_command_or_listed_as_left_out():
    horovod = make_recipe("horovod_mpi", 4, "cpu", "cycle_time_ms=0.1 autotune=True cache_capacity=0")
    assert horovod.start_command == (
        "HOROVOD_CPU_OPERATIONS=mpi horovodrun -np 4 --mpi --cycle-time-ms 0.1 --cache-capacity 0 --autotune "
        "python train.py"
    )
    beyond = make_recipe("mirrored", 2, "cpu", "loop=fit surprise=$x words")
    assert beyond.left_out == ("loop=fit", "surprise=$x")


def row(folder, **changes):
    results = [sweeps.run("ddp_gloo", 2, repeat) for repeat in range(changes.pop("repeats", 1))]
    pooled_row, *_ = plain_rows(pool_results(results, [folder] * len(results)))
    return {**pooled_row, **changes}


def test_the_command_repeats_the_recorded_overrides(tmp_path):
    assert make_command(row(tmp_path)) is None
    (tmp_path / ".hydra").mkdir()
    overrides = ["strategy=simulated", "sweep=demo", "gpus=2", "hydra.verbose=true", "hardware.device_ids=[1,0]"]
    (tmp_path / ".hydra" / "overrides.yaml").write_text("".join(f"- {json.dumps(word)}\n" for word in overrides))
    command = make_command(row(tmp_path))
    assert command == "scalebench --multirun strategy=simulated sweep=demo gpus=2 'hardware.device_ids=[1,0]'"
    source = "- path: {}\n      schema: file\n      provider: {}\n"
    sources = source.format("/else", "main") + "    " + source.format("/home/me/my files", "command-line")
    (tmp_path / ".hydra" / "hydra.yaml").write_text(f"hydra:\n  runtime:\n    config_sources:\n    {sources}")
    with_folder = "scalebench --multirun '--config-dir=/home/me/my files' strategy="
    assert make_command(row(tmp_path)).startswith(with_folder)
    (tmp_path / ".hydra" / "overrides.yaml").write_text("- strategy=ddp_gloo\n- repeat=1\n")
    (tmp_path / ".hydra" / "hydra.yaml").unlink()
    command = make_command(row(tmp_path, repeats=3))
    assert command == "scalebench --multirun strategy=ddp_gloo measure.repeats=3 gpus=2"


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize("framework", ["torch", "tensorflow", "horovod"])
def test_the_lines_run(framework, tmp_path):
    """Where one process can: and then the model has learnt."""
    names = [name for name in NAMES if name not in UNAVAILABLE]
    recipes = {name: recipe_code(name, 2 if "import tensorflow" in recipe_code(name) else 1) for name in names}
    cases = {
        name: lines
        for name, lines in recipes.items()
        if not missing_packages(list(read_strategy_config(name)["requires"]))
        and ("horovod" in lines) == (framework == "horovod")
        and ("import tensorflow" in lines) == (framework == "tensorflow")
    }
    assert cases
    (tmp_path / "lines.json").write_text(json.dumps(cases))
    group = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
    with open(tmp_path / "lines.json") as lines:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "tests.report.recipe_runner"], stdin=lines, capture_output=True,
            text=True, timeout=500, cwd=tmp_path, env={**os.environ, **group, **quiet},
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    problems = [line for line in done.stdout.splitlines() if line.startswith(tuple(cases)) or "Error" in line]
    assert problems == [], done.stdout[-4000:]
