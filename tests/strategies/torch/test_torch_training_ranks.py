"""Two ranks that are taught as one process would be: parts, learning rates and evaluations change no loss."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scalebench.config import horovod_build
from scalebench.core.json_files import read_json
from scalebench.core.run_folder import rank_log_name
from scalebench.core.spec import write_spec
from scalebench.runner import launchers
from tests.strategies.torch.conftest import spec_of
from tests.strategies.torch.training_rank import GLOBAL_BATCH, LOOKS, lesson

RANK = "tests.strategies.torch.training_rank"
SETTINGS = {"train__weight_decay": 0.02, "train__learning_rate": 5e-3, "train__dropout": False}
SLOW = [
    ("ddp_gloo", "adamw"),
    ("ddp_gloo", "rmsprop"),
    ("lightning_ddp_gloo", "momentum"),
    ("horovod_gloo", "sgd"),
    ("horovod_gloo", "rmsprop"),
    ("horovod_gloo", "adamw"),
    ("horovod_mpi", "momentum"),
    ("lightning_horovod", "sgd"),
]
NAMES = [("ddp_gloo", "momentum"), *(pytest.param(*names, marks=pytest.mark.slow) for names in SLOW)]


def of_two(name: str, folder: Path, **settings: Any) -> list[dict[str, Any]]:
    """What each rank saw."""
    spec = spec_of(name, 2, **settings)
    spec.global_batch = GLOBAL_BATCH
    reason = horovod_build.obstacle("torch", spec.config.strategy.backend, spec.config.strategy.launcher)
    if "horovod" in name and reason is not None:
        pytest.skip(reason)
    write_spec(spec, folder)
    ended = launchers.launch(spec, folder, "taught", module=RANK)
    assert ended.exit_codes == [0, 0], (folder / rank_log_name(ended.died_first[0])).read_text()
    return [read_json(folder / f"taught{rank}.json") for rank in range(2)]


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize(("name", "optimizer"), NAMES)
def test_as_one_process(strategy: Callable[..., Any], name: str, optimizer: str, tmp_path: Path) -> None:
    settings = {**SETTINGS, "train__optimizer": optimizer}
    zero, one = of_two(name, tmp_path, train__accumulate=3, **settings)
    assert zero["weights"] == one["weights"] and zero["found"] == one["found"]
    assert sum(zero["messages"]) == 4 * 153441
    assert zero["backend"] in ("gloo", "mpi")
    # Of one update: Horovod waits for each of 8 gradients, under Lightning for all of them at once.
    waits = 1 if name == "lightning_horovod" else 8
    once = {"gloo:all_reduce": len(zero["messages"])} if "ddp" in name else {"horovod:synchronize": waits}
    assert zero["exchanges"] == once
    bare = strategy("bare_torch", **settings)
    wanted = lesson(bare.spec, bare)
    np.testing.assert_allclose(np.add(zero["sums"], one["sums"]), wanted.sums, rtol=2e-5)
    for found, made in zip(zero["found"], LOOKS, strict=True):
        assert found == pytest.approx(wanted.found[made], rel=1e-4)
    assert len({found["mse"] for found in zero["found"]}) == len(LOOKS)


@pytest.mark.real
@pytest.mark.slow
def test_adasum_wants_whole_gradients(tmp_path: Path) -> None:
    spec = spec_of("horovod_mpi", 2, train__accumulate=3, strategy__options__op="adasum")
    if (reason := horovod_build.obstacle("torch", "mpi", "mpi")) is not None:
        pytest.skip(reason)
    write_spec(spec, tmp_path)
    launchers.launch(spec, tmp_path, "taught", module=RANK)
    record = read_json(tmp_path / "rank0.json")
    assert record["status"] == "unsupported"
    assert "take op=average with train.accumulate" in record["reason"]
