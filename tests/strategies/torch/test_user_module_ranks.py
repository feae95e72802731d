"""Two ranks with a user's module that differs between them, or fails: both tell, and none waits for the other."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalebench.config import horovod_build
from scalebench.core.json_files import read_json
from scalebench.core.run_folder import rank_log_name
from scalebench.core.spec import write_spec
from scalebench.runner import launchers
from tests.strategies.torch.conftest import OWN_MODULES as HERE
from tests.strategies.torch.conftest import own, spec_of

RANK = "tests.strategies.torch.training_rank"
REASONS = {"unseeded": "gives other weights on every rank", "fails": "fails: KeyError: 'weights of last year'"}


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize("function", REASONS)
@pytest.mark.parametrize("name", ["ddp_gloo", "horovod_gloo"])
def test_both_ranks_tell(name: str, function: str, tmp_path: Path) -> None:
    spec = spec_of(name, 2, **own(function))
    if "horovod" in name and (reason := horovod_build.obstacle("torch", "gloo", "local")) is not None:
        pytest.skip(reason)
    write_spec(spec, tmp_path)
    launchers.launch(spec, tmp_path, "taught", module=RANK)
    told = [tmp_path / f"rank{rank}.json" for rank in range(2)]
    records = [read_json(path) for path in told if path.exists()]  # the launcher may end the second one first
    assert records
    for record in records:
        assert record["status"] == "failed"
        assert record["reason"].startswith(f"model.torch={HERE}:{function} {REASONS[function]}")
        log = (tmp_path / rank_log_name(record["rank"])).read_text()
        assert "Traceback" in log and ("in fails" in log or function == "unseeded")
