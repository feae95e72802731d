"""What no cluster would understand is said before anything is submitted."""

from __future__ import annotations

from typing import Any

import pytest

from scalebench.core.errors import InputError
from scalebench.core.spec import HardwareSpec, SlurmSpec
from scalebench.slurm.resources import (
    MPI_STARTERS,
    RESERVED_STEP_OPTIONS,
    check_slurm_options,
    parse_mounts,
    parse_options,
)


@pytest.mark.parametrize(
    "told",
    [
        {},
        {
            "partition": "main,gpu",
            "account": "p_x",
            "qos": "normal",
            "reservation": "r-1",
            "constraint": "[rack1|rack2]",
        },
        {"memory": "64G", "time_minutes": 1, "gres": "gpu:a100:{gpus}"},
        {"memory": "0", "gres": ""},
        {"memory": "2000mb", "gres": "gpu:{gpus},nvme:1"},
        {"lines": ["--mail-type=END", "--hint=nomultithread", "--comment=a run, and more"], "srun": ["--overlap"]},
        {"container": "/img/a b.sif", "container_mounts": ["/data:/data", "/a:/b:ro"]},
        {"container": "nvcr.io#nvidia/pytorch:24.01-py3", "container_runtime": "pyxis"},
        *({"mpi": mpi} for mpi in MPI_STARTERS),
    ],
)
def test_what_can_be_asked(told: dict[str, Any]) -> None:
    check_slurm_options(HardwareSpec(scheduler="slurm", slurm=SlurmSpec(**told)))


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"container_runtime": "aptainer"}, "no such value 'aptainer'; did you mean 'apptainer'?"),
        ({"mpi": "pmx"}, "no such value 'pmx'; did you mean 'pmix'?"),
        ({"time_minutes": 0}, "hardware.slurm.time_minutes=0 should be at least 1"),
        ({"memory": "64 GB"}, "such as 64G"),
        ({"memory": "-1"}, "such as 64G"),
        ({"gres": "gpu:{n}"}, "should be one word such as gpu:{gpus}"),
        ({"gres": "gpu:2 x"}, "should be one word such as gpu:{gpus}"),
        ({"partition": "a b"}, "hardware.slurm.partition='a b' should be one word"),
        ({"account": ""}, "hardware.slurm.account='' should be one word"),
        ({"qos": "--x"}, "hardware.slurm.qos='--x' should be one word"),
        ({"bin": ""}, "hardware.slurm.bin='' should be a path"),
        ({"container": "a\nb"}, "should be a path in one line"),
        ({"container": "--nv"}, "should be an image"),
        ({"container_mounts": ["data:/data"]}, "'data:/data' should be FROM:TO"),
        ({"container_mounts": ["/data"]}, "'/data' should be FROM:TO"),
        ({"container_mounts": ["/a,/b:/c"]}, "should be FROM:TO"),
        ({"lines": ["-N 3"]}, "'-N 3' should be --name=value or --name"),
        ({"lines": ["--comment=a\n#SBATCH --nodes=3"]}, "in one line"),
        ({"lines": ["--nodes=3"]}, "--nodes comes from gpus and the keys of hardware; leave it out here"),
        ({"lines": ["--output=x"]}, "--output comes from the folder of the run"),
        ({"lines": ["--partition=x"]}, "--partition comes from hardware.slurm.partition"),
        ({"srun": ["--mpi=pmix"]}, "hardware.slurm.srun: --mpi comes from hardware.slurm.mpi"),
        ({"srun": ["--container-image=x"]}, "--container-image comes from hardware.slurm.container"),
    ],
)
def test_what_makes_no_sense_is_one_line_with_the_way_out(told: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as caught:
        check_slurm_options(HardwareSpec(scheduler="slurm", slurm=SlurmSpec(**told)))
    assert words in str(caught.value) and "hardware.slurm" in str(caught.value)


def test_a_scheduler_that_is_none_is_told_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"hardware\.scheduler=slrm: no such value 'slrm'; did you mean 'slurm'\?"):
        check_slurm_options(HardwareSpec(scheduler="slrm"))


def test_options_by_name() -> None:
    assert parse_options(["--mail-type=END", "--overlap", "--comment="]) == {
        "mail-type": "END",
        "overlap": True,
        "comment": "",
    }
    assert parse_options(["--gres=none"], "key", RESERVED_STEP_OPTIONS) == {"gres": "none"}, (
        "a step may have less than its job"
    )


def test_mounts_keep_what_stands_behind_them() -> None:
    assert parse_mounts(["/data:/data", "/a b:/c:ro"]) == [("/data", "/data"), ("/a b", "/c:ro")]
