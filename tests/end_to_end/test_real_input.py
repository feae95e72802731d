"""Runs on JPEG files that are decoded while they train: what happens to the decoding processes. That each framework
trains on them is the contract's."""

import os
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from scalebench.core.result import read_result
from scalebench.core.run_folder import RESULT_FILE
from tests.builders.configs import write_pictures
from tests.builders.runs import wait_until

START_LIMIT_S = 300.0  # for a run to start on a busy machine
SIMULATED = ("strategy=simulated", "strategy.options.step_s=0.05")  # so that not all cores decode all the time


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    return write_pictures(tmp_path_factory.mktemp("pictures"), 40, classes=4)


@contextmanager
def start(pictures, folder, *overrides):
    words = [
        "hardware=cpu", "model=resnet20_cifar10", "model.outputs=10", "model.params=null", "dataset=imagenet_jpeg",
        f"dataset.path={pictures}", "dataset.image_size=32", "dataset.classes=10", "dataset.validation_share=0.2",
        f"dataset.cache={folder}/cache", "train.batch_per_device=4", "measure=quick", "measure.probes=false",
        "measure.monitor=false", f"hydra.run.dir={folder}/run", f"hydra.sweep.dir={folder}/run", *overrides,
    ]  # fmt: skip
    command = [sys.executable, "-m", "scalebench", *words]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


def find_decoders(process):
    found = []
    for child in psutil.Process(process.pid).children(recursive=True):
        with suppress(psutil.Error):
            if "spawn_main" in " ".join(child.cmdline()):
                found.append(child)
    return found


def test_no_decoder_survives_the_parent(pictures, tmp_path):
    long = (*SIMULATED, "gpus=1", "dataset.workers=2", "measure.min_s=300", "measure.max_s=300")
    with start(pictures, tmp_path, *long) as process:
        decoders = wait_until(lambda: found if len(found := find_decoders(process)) == 2 else None, START_LIMIT_S)
        process.kill()
    assert not psutil.wait_procs(decoders, 30)[1]


def test_decoders_are_parked_with_their_run(pictures, tmp_path):
    """Of two runs that take turns, one stands still with all of its decoders while the other trains."""
    turns = (
        "--multirun",
        *SIMULATED,
        "gpus=1,2",
        "dataset.workers=1",
        "measure.repeats=1",
        "measure.slot_s=0.3",
    )

    def one_is_parked(process):
        stopped = {}  # of the decoders of a run, by its folder
        for decoder in find_decoders(process):
            with suppress(psutil.Error):
                folder = Path(os.readlink(f"/proc/{decoder.ppid()}/fd/1")).parent  # of the log of its rank
                stopped.setdefault(folder, []).append(decoder.status() == psutil.STATUS_STOPPED)
        return sorted(stopped.values()) in ([[False], [True, True]], [[False, False], [True]])

    with start(pictures, tmp_path, *turns, "measure.min_s=1", "measure.max_s=2", "sweep.report=false") as process:
        assert wait_until(lambda: one_is_parked(process), START_LIMIT_S)
        assert process.wait(START_LIMIT_S) == 0
    results = [read_result(path) for path in sorted((tmp_path / "run").rglob(RESULT_FILE))]
    assert [result.status for result in results] == ["ok", "ok"]
    assert all(result.ranks[0].block_rounds for result in results)
