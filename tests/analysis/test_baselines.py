"""Baselines of a run: comparison keys, the nearest of many candidates, placements and node layouts."""

import copy
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.analysis.baselines import Baselines, Candidates, start_time
from scalebench.analysis.comparison import compare, compare_by
from scalebench.analysis.comparison.pairing import make_compared_run
from scalebench.analysis.identity import comparison_key, placement_of
from scalebench.analysis.load import frame_of_results
from scalebench.analysis.repeats import pool_results
from scalebench.analysis.scaling_curves import make_curves
from scalebench.core.spec import HardwareSpec
from tests.builders.runs import record
from tests.report.section_blocks import show_table

START = datetime(2026, 1, 1, tzinfo=UTC)
LATER_TO_TRAIN = (
    "momentum", "weight_decay", "accumulate", "learning_rate_rule", "base_batch", "schedule", "warmup_epochs",
    "decay_epochs", "decay", "evaluate_epochs", "evaluate_s", "evaluate_samples",
    "activation_checkpointing", "stop",
)  # fmt: skip
PLACES = [
    HardwareSpec("cpu"),
    HardwareSpec("cpu", device_ids=[1]),
    HardwareSpec("cpu", bind="far"),
    HardwareSpec("cpu", environment={"A": "1"}),
    HardwareSpec("cpu", environment={"A": "2"}, bind="far"),
]


def run(strategy, place, repeat, minute, name, gpus=1):
    made = record(strategy, gpus, block_s=None, hardware=PLACES[place], repeat=repeat)
    made.run_id, made.started_at = f"run-{name}", (START + timedelta(minutes=minute)).isoformat()
    return made


RUNS = st.builds(
    run, st.sampled_from(["ddp", "bare_torch"]), st.integers(0, 4), st.integers(0, 2), st.integers(0, 6),
    st.integers(0, 9), st.sampled_from([1, 2]),
)  # fmt: skip


def nearest(result, candidates, bare):
    """Return the candidate with the least distance, the first of equal ones: a plain search as reference."""
    is_bare_itself = bare and result.scale.gpus == 1 and result.scale.baseline_bare == result.scale.strategy

    def distance(candidate):
        placement, own_placement = placement_of(candidate), placement_of(result)
        differing = [] if is_bare_itself else [a != b for a, b in zip(placement, own_placement, strict=True)]
        apart_s = abs((start_time(candidate) - start_time(result)).total_seconds())
        itself, same_repeat = candidate.run_id == result.run_id, candidate.scale.repeat == result.scale.repeat
        return differing, placement[0] != (), placement[1] != "numa", placement[2], not itself, not same_repeat, apart_s

    return min(candidates, key=distance, default=None)


@given(st.lists(RUNS, min_size=1, max_size=12), RUNS, st.booleans())
def test_the_nearest_candidate_has_the_least_distance(rows, asking_run, bare):
    index = Candidates()
    for row in rows:
        index.add(row)
    assert index.nearest(asking_run, bare) is nearest(asking_run, rows, bare)
    index.add(asking_run)
    assert index.nearest(asking_run, bare) is nearest(asking_run, [*rows, asking_run], bare), (
        "one that came later counts too"
    )


def old_key(result, strategy):
    tree = copy.deepcopy(result.spec)
    for key in ("gpus", "repeat", "resume", "strict", "baseline", "dry_run", "debug", "measure", "sweep"):
        tree.pop(key, None)
    tree.get("dataset", {}).pop("cache", None)
    for key in ("device_ids", "bind", "environment", "layout", "interface", "node_copy", "max_jobs", "slurm"):
        tree.get("hardware", {}).pop(key, None)
    for key in LATER_TO_TRAIN:
        tree.get("train", {}).pop(key, None)
    chosen = tree.pop("strategy", {})
    parts = [tree, result.scale.device, sorted({gpu.name or "" for gpu in result.machine.gpus})]
    if result.scale.device == "cpu":
        parts.append(result.machine.cpu_model)
    if strategy:
        parts.append([chosen.get("name"), chosen.get("options")])
    return json.dumps(parts, sort_keys=True, separators=(",", ":"))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_comparison_key_has_all_keys_but_the_ignored_ones(device):
    one, bare, old = record(), record("bare_torch"), record()
    old.spec = {"strategy": {"name": "ddp"}, "seed": 1}
    for result in (one, bare, old):
        result.scale.device = device
        for strategy in (True, False):
            assert comparison_key(result, strategy) == old_key(result, strategy)
    assert comparison_key(one, False) == comparison_key(bare, False) != comparison_key(old, False)


def test_trainings_are_compared_only_with_trainings():
    plain, one, other, later = record(), record(), record(), record()
    one.spec["train"]["stop"]["epochs"] = other.spec["train"]["stop"]["epochs"] = 3.0
    other.spec["train"]["evaluate_epochs"] = 0.5
    later.spec["train"]["evaluate_epochs"] = 0.5
    keys = [comparison_key(result, False) for result in (plain, one, other)]
    assert len(set(keys)) == 3
    assert comparison_key(later, False) == keys[0], "it has no points"


def placed(strategy, ids, block_s=0.1, **changes):
    made = HardwareSpec("cpu", devices="cpu", gpus_per_node=2, device_ids=ids, **changes)
    run_id = f"{strategy} {ids} {changes}"
    return record(strategy, gpus=max(1, len(ids)), block_s=block_s, run_id=run_id, hardware=made)


def test_each_single_device_is_compared_with_the_first_one():
    rows = [placed("bare_torch", [0], 0.1), placed("bare_torch", [1], 0.125), placed("bare_torch", [2], 0.08)]
    index = frame_of_results(rows, [Path("x")] * 3)
    assert [round(value, 3) for value in index["speedup_bare"]] == [1.0, 0.8, 1.25]
    assert list(index["speedup_self"]) == [1.0, 1.0, 1.0]
    assert index["overhead_share"].isna().all()  # a bare strategy has none
    assert list(index["device_ids"]) == ["0", "1", "2"]


def test_older_records_have_the_default_placement():
    old, pair = placed("bare_torch", []), placed("ddp", [0, 1])
    for key in ("device_ids", "bind", "environment"):
        del old.spec["hardware"][key]
    assert Baselines.among([old, pair]).find_bare(pair) is old
    assert (
        frame_of_results([old], [Path("x")])[["device_ids", "bind", "environment", "transports"]].isna().all(axis=None)
    )


def test_the_frame_has_the_configured_placement_and_the_transports_of_nccl():
    row = placed("ddp", [0, 5], bind="far", environment={"NCCL_SHM_DISABLE": "1", "A": "b c"})
    row.sync.transports = {"0-1": "P2P/IPC", "0-2": "NET/Socket/0 + P2P/IPC"}
    cells = frame_of_results([row], [Path("x")]).iloc[0]
    assert list(cells[["device_ids", "bind", "environment", "transports"]]) == [
        *("0 5", "far", "NCCL_SHM_DISABLE=1 A=b c", "NET/Socket/0 + P2P/IPC")
    ]


def with_layout(layout, gpus=4, block_s=0.1, strategy="ddp"):
    """On nodes of four devices."""
    hardware = HardwareSpec("nodes", gpus_per_node=4, max_nodes=2, layout=layout)
    made = record(strategy, gpus, block_s, run_id=f"{strategy}-{layout}-{gpus}-{block_s}", hardware=hardware)
    made.scale.nodes = 2 if layout == "spread" else 1
    return made


def test_layouts_are_separate_rows_and_curves_with_a_column():
    results = [with_layout("sequence"), with_layout("spread"), with_layout("spread", block_s=0.11)]
    frame = pool_results(results, [Path(str(number)) for number in range(3)])
    rows = zip(frame["layout"], frame["repeats"], frame["nodes"], strict=True)
    assert sorted(rows) == [("sequence", 1, 1), ("spread", 2, 2)]
    assert [curve.name for curve in make_curves(frame)] == ["ddp layout=sequence", "ddp layout=spread"]
    shown = show_table(frame)
    assert "ddp layout=sequence " in shown and "ddp layout=spread " in shown
    assert "layout" not in show_table(frame[frame["layout"] == "spread"])


def test_layouts_share_the_baseline_of_one_device():
    """That run has the default layout, since one device has no other; older records have none."""
    own, bare, older = with_layout("sequence", 1), with_layout("sequence", 1, strategy="bare_torch"), with_layout("", 1)
    for key in ("layout", "interface", "node_copy", "max_jobs", "slurm"):
        del older.spec["hardware"][key]
    for layout in ("sequence", "spread"):
        for one in (own, older):
            index = Baselines.among([one, bare])
            assert index.find_self(with_layout(layout)) is one and index.find_bare(with_layout(layout)) is bare


def test_layouts_are_compared_by_the_key_hardware_layout():
    one, other = [[make_compared_run(with_layout(layout), Path(layout))] for layout in ("sequence", "spread")]
    refused = compare(one, other)
    assert refused.status == "not comparable" and "hardware.layout" in (refused.refusal or "")
    (pair,) = compare_by([*one, *other], "hardware.layout").pairs
    assert pair.ratio == 1.0 and "layout" not in str(pair.label)
    scaled = [make_compared_run(with_layout("sequence", 1), Path("one")), *other]
    assert len(compare_by(scaled, "gpus").pairs) == 1
