"""Two ranks that really exchange: parts of an update do not, and afterwards it is as before."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from scalebench.core.json_files import read_json
from scalebench.core.run_folder import rank_log_name
from scalebench.core.spec import write_spec
from scalebench.runner import launchers
from tests.strategies.torch.conftest import spec_of
from tests.strategies.torch.update_parts_rank import UPDATES

RANK = "tests.strategies.torch.update_parts_rank"
ALL_REDUCE = {"ddp_gloo": "gloo:all_reduce", "lightning_ddp_gloo": "gloo:all_reduce"}
SLOW = ("lightning_ddp_gloo", "horovod_gloo", "lightning_horovod")
NAMES = ["ddp_gloo", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]


def probed(name: str, folder: Path) -> list[dict[str, Any]]:
    options = {"strategy__options__bucket_cap_mb": 0.2} if name in ALL_REDUCE else {}
    spec = spec_of(name, 2, **options)
    write_spec(spec, folder)
    ended = launchers.launch(spec, folder, "probed", module=RANK)
    assert ended.exit_codes == [0, 0], (folder / rank_log_name(ended.died_first[0])).read_text()
    return [read_json(folder / f"probed{rank}.json") for rank in range(2)]


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize("name", NAMES)
def test_parts_exchange_nothing_and_the_profile_finds_the_exchange(name: str, tmp_path: Path) -> None:
    ranks = probed(name, tmp_path)
    zero, one = ranks
    assert zero["trained"] == one["trained"]
    assert zero["apart"] != one["apart"]
    for seen in ranks:
        assert not [name for name in seen["apart_names"] if name.startswith(("gloo:", "c10d::", "horovod:"))]
        assert "aten::_fused_adam_" in seen["apart_names"]
    assert zero["gradients"] == one["gradients"]  # averaged again, although their weights stay apart
    for rank, seen in enumerate(ranks):
        check_profile(seen, ALL_REDUCE.get(name, "horovod:synchronize"))
        check_trace(tmp_path / f"trace{rank}.json.gz", seen["within_s"], asks=name == "lightning_ddp_gloo")


def check_profile(seen: dict[str, Any], all_reduce: str) -> None:
    found = seen["profile"]
    collectives = {one["name"]: one for one in found["operations"] if one["collective"]}
    # Horovod's wait: for all at once under Lightning, else for each of the 8 gradients.
    calls = [len(seen["messages"])] if all_reduce.startswith("gloo") else [1, 8]
    assert collectives[all_reduce]["calls"] in calls
    assert len(seen["messages"]) == 2 or not all_reduce.startswith("gloo")
    assert 0 < collectives[all_reduce]["self_s"] <= found["collective_s"] < found["kernel_s"]
    assert found["updates"] == UPDATES and 0 < found["step_s"] < seen["within_s"][1] - seen["within_s"][0]


def check_trace(path: Path, within_s: list[float], asks: bool) -> None:
    with gzip.open(path, "rt") as file:
        content = json.load(file)
    base_s, events = content["baseTimeNanoseconds"] / 1e9, content["traceEvents"]
    assert within_s[0] < base_s + min(one["ts"] for one in events if "ts" in one) / 1e6
    assert base_s + max(one["ts"] + one.get("dur", 0) for one in events if "ts" in one) / 1e6 < within_s[1]
    assert sum(one["name"].startswith("ProfilerStep#") for one in events) == UPDATES
    names = [one["name"] for one in events]
    # Lightning asks for SIGTERM once in each update; DDP's, of its new buckets, come before the profile.
    assert names.count("gloo:broadcast") == (UPDATES if asks else 0)
    assert {"process_name", "thread_name"} <= {one["name"] for one in events if one["ph"] == "M"}
