"""All ranks begin with rank 0's weights; and one that dies before it has them ends the run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from scalebench.core.json_files import write_json
from scalebench.core.spec import RunSpec, write_spec
from scalebench.runner import launchers
from scalebench.runner.parent import run
from scalebench.workloads import datasets

ODD = "tests.strategies.horovod.broadcast_rank"


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["horovod_gloo", "horovod_tensorflow_mpi", "lightning_horovod"])
def test_weights_are_rank_0s(strategy: str, spec_of: Callable[..., RunSpec], tmp_path: Path) -> None:
    spec = spec_of(strategy, f"dataset.cache={tmp_path / 'data'}")
    write_spec(spec, tmp_path)
    write_json(tmp_path / "odd.json", "starts otherwise")
    ended = launchers.launch(spec, tmp_path, "odd", module=ODD)
    assert ended.exit_codes == [0, 0], (tmp_path / "rank1.log").read_text()
    with np.load(tmp_path / "weights0.npz") as zero, np.load(tmp_path / "weights1.npz") as one:
        assert set(zero) == set(one) and len(zero) == 8
        for name in zero:
            np.testing.assert_array_equal(zero[name], one[name], err_msg=name)
        assert np.abs(zero["dense1/kernel"]).max() > 0


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["horovod_gloo", "horovod_mpi", "horovod_tensorflow_gloo"])
def test_a_rank_that_dies_before_the_broadcast(strategy: str, spec_of: Callable[..., RunSpec], tmp_path: Path) -> None:
    spec = spec_of(strategy, f"dataset.cache={tmp_path / 'data'}")
    datasets.prepare(spec.config)
    folder = tmp_path / "run"
    folder.mkdir()
    write_json(folder / "odd.json", "dies")
    result = run(spec, folder, module=ODD)
    assert (result.status, result.reason) == ("failed", "rank 1 ended with exit status 7 and no word of why")
