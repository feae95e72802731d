"""All ranks start from rank 0's weights, and a rank that ends before that ends the run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from scalebench.core.json_files import write_json
from scalebench.core.spec import RunSpec, write_spec
from scalebench.runner import launchers
from scalebench.runner.parent import run_spec
from scalebench.workloads import datasets

RANK = "tests.strategies.horovod.different_start_rank"


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["horovod_gloo", "horovod_tensorflow_mpi", "lightning_horovod"])
def test_all_ranks_start_from_the_weights_of_rank_0(
    strategy: str, spec_of: Callable[..., RunSpec], tmp_path: Path
) -> None:
    spec = spec_of(strategy, f"dataset.cache={tmp_path / 'data'}")
    write_spec(spec, tmp_path)
    write_json(tmp_path / "start.json", "different weights")
    ended = launchers.launch(spec, tmp_path, "start", module=RANK)
    assert ended.exit_codes == [0, 0], (tmp_path / "rank1.log").read_text()
    with np.load(tmp_path / "weights0.npz") as rank0, np.load(tmp_path / "weights1.npz") as rank1:
        assert set(rank0) == set(rank1) and len(rank0) == 8
        for name in rank0:
            np.testing.assert_array_equal(rank0[name], rank1[name], err_msg=name)
        assert np.abs(rank0["dense1/kernel"]).max() > 0


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["horovod_gloo", "horovod_mpi", "horovod_tensorflow_gloo"])
def test_a_rank_that_ends_before_the_broadcast_ends_the_run(
    strategy: str, spec_of: Callable[..., RunSpec], tmp_path: Path
) -> None:
    spec = spec_of(strategy, f"dataset.cache={tmp_path / 'data'}")
    datasets.prepare(spec.config)
    folder = tmp_path / "run"
    folder.mkdir()
    write_json(folder / "start.json", "ends")
    result = run_spec(spec, folder, module=RANK)
    assert (result.status, result.reason) == ("failed", "rank 1 ended with exit status 7 and without a reason")
