"""Two ranks train like one process, and a user's module that fails or differs between ranks ends both."""

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
from tests.strategies.torch.accumulation_rank import EVALUATED_STEPS, GLOBAL_BATCH, run_rank_training
from tests.strategies.torch.conftest import USER_MODULES as HERE
from tests.strategies.torch.conftest import spec_of, user_model

RANK = "tests.strategies.torch.accumulation_rank"
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


def train_two_ranks(name: str, folder: Path, **settings: Any) -> list[dict[str, Any]]:
    """Train two ranks and return the observations of each."""
    spec = spec_of(name, 2, **settings)
    spec.global_batch = GLOBAL_BATCH
    reason = horovod_build.find_horovod_problem("torch", spec.config.strategy.backend, spec.config.strategy.launcher)
    if "horovod" in name and reason is not None:
        pytest.skip(reason)
    write_spec(spec, folder)
    ended = launchers.launch(spec, folder, "trained", module=RANK)
    assert ended.exit_codes == [0, 0], (folder / rank_log_name(ended.died_first[0])).read_text()
    return [read_json(folder / f"trained{rank}.json") for rank in range(2)]


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize(("name", "optimizer"), NAMES)
def test_two_ranks_train_like_one_process(
    strategy: Callable[..., Any], name: str, optimizer: str, tmp_path: Path
) -> None:
    settings = {**SETTINGS, "train__optimizer": optimizer}
    rank0, rank1 = train_two_ranks(name, tmp_path, train__accumulate=3, **settings)
    assert rank0["weights"] == rank1["weights"] and rank0["metrics"] == rank1["metrics"]
    assert sum(rank0["messages"]) == 4 * 153441
    assert rank0["backend"] in ("gloo", "mpi")
    # In one step Horovod waits for each of 8 gradients, under Lightning for all of them at once.
    waits = 1 if name == "lightning_horovod" else 8
    expected_operations = (
        {"gloo:all_reduce": len(rank0["messages"])} if "ddp" in name else {"horovod:synchronize": waits}
    )
    assert rank0["sync_operations"] == expected_operations
    bare = strategy("bare_torch", **settings)
    expected = run_rank_training(bare.spec, bare)
    np.testing.assert_allclose(np.add(rank0["sums"], rank1["sums"]), expected.sums, rtol=2e-5)
    for actual, made in zip(rank0["metrics"], EVALUATED_STEPS, strict=True):
        assert actual == pytest.approx(expected.metrics[made], rel=1e-4)
    assert len({actual["mse"] for actual in rank0["metrics"]}) == len(EVALUATED_STEPS)


@pytest.mark.real
@pytest.mark.slow
def test_adasum_with_accumulation_is_unsupported(tmp_path: Path) -> None:
    spec = spec_of("horovod_mpi", 2, train__accumulate=3, strategy__options__op="adasum")
    if (reason := horovod_build.find_horovod_problem("torch", "mpi", "mpi")) is not None:
        pytest.skip(reason)
    write_spec(spec, tmp_path)
    launchers.launch(spec, tmp_path, "trained", module=RANK)
    record = read_json(tmp_path / "rank0.json")
    assert record["status"] == "unsupported"
    assert "take op=average with train.accumulate" in record["reason"]


RANK = "tests.strategies.torch.accumulation_rank"
REASONS = {"unseeded": "gives other weights on every rank", "fails": "fails: KeyError: 'weights of last year'"}


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize("function", REASONS)
@pytest.mark.parametrize("name", ["ddp_gloo", "horovod_gloo"])
def test_both_ranks_report_an_error_of_the_users_function(name: str, function: str, tmp_path: Path) -> None:
    spec = spec_of(name, 2, **user_model(function))
    if "horovod" in name and (reason := horovod_build.find_horovod_problem("torch", "gloo", "local")) is not None:
        pytest.skip(reason)
    write_spec(spec, tmp_path)
    launchers.launch(spec, tmp_path, "trained", module=RANK)
    reported = [tmp_path / f"rank{rank}.json" for rank in range(2)]
    records = [read_json(path) for path in reported if path.exists()]  # the launcher may end the second one first
    assert records
    for record in records:
        assert record["status"] == "failed"
        assert record["reason"].startswith(f"model.torch={HERE}:{function} {REASONS[function]}")
        log = (tmp_path / rank_log_name(record["rank"])).read_text()
        assert "Traceback" in log and ("in fails" in log or function == "unseeded")
