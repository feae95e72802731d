"""Two ranks with real synchronization: parts of a step do not synchronize, and later steps do again."""

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
from tests.strategies.torch.step_parts_rank import STEPS

RANK = "tests.strategies.torch.step_parts_rank"
ALL_REDUCE = {"ddp_gloo": "gloo:all_reduce", "lightning_ddp_gloo": "gloo:all_reduce"}
SLOW = ("lightning_ddp_gloo", "horovod_gloo", "lightning_horovod")
NAMES = ["ddp_gloo", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]


def run_ranks(name: str, folder: Path) -> list[dict[str, Any]]:
    options = {"strategy__options__bucket_cap_mb": 0.2} if name in ALL_REDUCE else {}
    spec = spec_of(name, 2, **options)
    write_spec(spec, folder)
    ended = launchers.launch(spec, folder, "probed", module=RANK)
    assert ended.exit_codes == [0, 0], (folder / rank_log_name(ended.died_first[0])).read_text()
    return [read_json(folder / f"probed{rank}.json") for rank in range(2)]


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize("name", NAMES)
def test_parts_do_not_synchronize_and_the_profile_shows_synchronization(name: str, tmp_path: Path) -> None:
    ranks = run_ranks(name, tmp_path)
    rank0, rank1 = ranks
    assert rank0["trained"] == rank1["trained"]
    assert rank0["apart"] != rank1["apart"]
    for observed in ranks:
        assert not [name for name in observed["apart_names"] if name.startswith(("gloo:", "c10d::", "horovod:"))]
        assert "aten::_fused_adam_" in observed["apart_names"]
    assert rank0["gradients"] == rank1["gradients"]  # averaged again, although their weights stay apart
    for rank, observed in enumerate(ranks):
        check_profile(observed, ALL_REDUCE.get(name, "horovod:synchronize"))
        check_trace(tmp_path / f"trace{rank}.json.gz", observed["within_s"], asks=name == "lightning_ddp_gloo")


def check_profile(observed: dict[str, Any], all_reduce: str) -> None:
    actual = observed["profile"]
    collectives = {operation["name"]: operation for operation in actual["operations"] if operation["collective"]}
    # Horovod's wait: for all at once under Lightning, else for each of the 8 gradients.
    calls = [len(observed["messages"])] if all_reduce.startswith("gloo") else [1, 8]
    assert collectives[all_reduce]["calls"] in calls
    assert len(observed["messages"]) == 2 or not all_reduce.startswith("gloo")
    assert 0 < collectives[all_reduce]["self_s"] <= actual["collective_s"] < actual["kernel_s"]
    assert actual["steps"] == STEPS and 0 < actual["step_s"] < observed["within_s"][1] - observed["within_s"][0]


def check_trace(path: Path, within_s: list[float], asks: bool) -> None:
    with gzip.open(path, "rt") as file:
        content = json.load(file)
    base_s, events = content["baseTimeNanoseconds"] / 1e9, content["traceEvents"]
    assert within_s[0] < base_s + min(event["ts"] for event in events if "ts" in event) / 1e6
    assert base_s + max(event["ts"] + event.get("dur", 0) for event in events if "ts" in event) / 1e6 < within_s[1]
    assert sum(event["name"].startswith("ProfilerStep#") for event in events) == STEPS
    names = [event["name"] for event in events]
    # Lightning asks for SIGTERM once in each step; DDP's, of its new buckets, come before the profile.
    assert names.count("gloo:broadcast") == (STEPS if asks else 0)
    assert {"process_name", "thread_name"} <= {event["name"] for event in events if event["ph"] == "M"}
