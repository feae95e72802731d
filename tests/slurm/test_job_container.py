"""Ranks in an image."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from scalebench.core.errors import InputError
from scalebench.slurm import resources
from scalebench.slurm.resources import srun_command
from tests.slurm.builders import FOLDER, GPU_NODES, run
from tests.slurm.builders import places as places

pytestmark = pytest.mark.usefixtures("places")
IMAGE = {"container": "/img/scalebench.sif", "container_mounts": ["/data:/data:ro"]}
BOTH = "/scratch/user/sweep/3:/scratch/user/sweep/3,/scratch/user/cache:/scratch/user/cache,/data:/data:ro"


def test_without_an_image_it_is_this_python() -> None:
    assert (resources.python_command(run(1), FOLDER), resources.container_options(run(1), FOLDER)) == (
        ["/home/user/venv/bin/python"],
        [],
    )


def test_apptainer_starts_each_rank() -> None:
    assert resources.python_command(run(1, GPU_NODES, **IMAGE), FOLDER) == [
        "apptainer", "exec", "--nv", "--bind", BOTH, "/img/scalebench.sif", "python3",
    ]  # fmt: skip
    assert "--nv" not in resources.python_command(run(1, **IMAGE), FOLDER)


def test_pyxis_is_a_matter_of_srun() -> None:
    spec = run(1, GPU_NODES, **IMAGE, container_runtime="pyxis", container_python="/opt/bin/python")
    assert resources.container_options(spec, FOLDER) == [
        "--container-image=/img/scalebench.sif",
        f"--container-mounts={BOTH}",
    ]
    words = srun_command(spec, FOLDER)
    assert words[words.index("/opt/bin/python") - 1] == f"--container-mounts={BOTH}"


def test_a_rank_finds_its_folder_and_its_data_there() -> None:
    spec = run(1)
    spec.config.dataset = dataclasses.replace(spec.config.dataset, path="/archive/cifar", cache="/scratch/user/cache")
    spec.config.hardware.stage = "/tmp"
    assert [str(path) for path in resources.rank_folders(spec, FOLDER)] == [
        "/scratch/user/sweep/3", "/scratch/user/cache", "/archive/cifar", "/tmp",
    ]  # fmt: skip


def test_a_folder_that_would_read_as_two_mounts_is_refused() -> None:
    with pytest.raises(InputError, match="/scratch/a,b cannot be mounted in a container"):
        srun_command(run(1, **IMAGE), Path("/scratch/a,b"))
