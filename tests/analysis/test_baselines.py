"""Baselines of a run: comparison keys, the nearest of many candidates, placements and node layouts."""

import copy
import dataclasses
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.analysis import identity
from scalebench.analysis.collectives import COLLECTIVE_COLUMNS
from scalebench.analysis.columns import FRAME_COLUMNS
from scalebench.analysis.comparison import compare, compare_by
from scalebench.analysis.comparison.pairing import make_compared_run
from scalebench.analysis.identity import Baselines, find_nearest, identify
from scalebench.analysis.scaling_curves import make_curves
from scalebench.core.spec import Config, DatasetSpec, HardwareSpec, TrainSpec
from tests.builders.frames import frame_of_results, pool_results
from tests.builders.runs import MACHINE, record
from tests.report.section_blocks import show_table


class Found:
    """The baselines among results, as results."""

    def __init__(self, results):
        self._results = {result.run_id: result for result in results}
        self._baselines = Baselines([identify(result) for result in results])

    def find_self(self, result):
        baseline = self._baselines.find_self(identify(result))
        return None if baseline is None else self._results[baseline.run_id]

    def find_bare(self, result):
        baseline = self._baselines.find_bare(identify(result))
        return None if baseline is None else self._results[baseline.run_id]


CONFIG = dataclasses.asdict(Config())
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


@pytest.mark.parametrize(
    ("keys", "tree"),
    [
        (identity.UNTRAINED_KEYS, CONFIG),
        (identity.DATASET_PATH_KEYS, CONFIG["dataset"]),
        ((*identity.QUEUE_KEYS, *identity.PLACEMENT_KEYS), CONFIG["hardware"]),
        (identity.BATCH_KEYS, CONFIG["train"]),
        (identity.MODEL_KEYS, CONFIG["model"]),
        *((keys, CONFIG[group]) for group, keys in identity.SAMPLE_KEYS.items()),
        ((*identity.CURVE_COLUMNS, *identity.COLUMN_DEFAULTS, *identity.MEMORY_COLUMNS), FRAME_COLUMNS),
        ((*identity.PARALLELISM_COLUMNS, *identity.SIZE_COLUMNS), FRAME_COLUMNS),
        (identity.OPERATION_COLUMNS, COLLECTIVE_COLUMNS),
    ],
)
def test_keys_by_which_runs_are_matched_exist(keys, tree):
    assert [key for key in keys if key not in tree] == []


def test_ignored_facts_are_keys_or_groups_of_the_config():
    groups = {group: keys for group, keys in CONFIG.items() if isinstance(keys, dict)}
    keys = {*CONFIG, *(f"{group}.{key}" for group in groups for key in groups[group])}
    assert [key for key in identity.IGNORED_FACTS if key not in keys] == []
    assert set(identity.HIDDEN_FACTS) < set(identity.IGNORED_FACTS)


def run(strategy, place, repeat, minute, name, gpus=1):
    made = record(strategy, gpus, block_s=None, hardware=PLACES[place], repeat=repeat)
    made.run_id, made.started_at = f"run-{name}", (START + timedelta(minutes=minute)).isoformat()
    return identify(made)


RUNS = st.builds(
    run, st.sampled_from(["ddp", "bare_torch"]), st.integers(0, 4), st.integers(0, 2), st.integers(0, 6),
    st.integers(0, 9), st.sampled_from([1, 2]),
)  # fmt: skip


def nearest(result, candidates, bare):
    """Return the candidate with the least distance, the first of equal ones: a plain search as reference."""
    is_bare_itself = bare and result.scale.gpus == 1 and result.scale.baseline_bare == result.scale.strategy

    def distance(candidate):
        placement, own_placement = candidate.placement, result.placement
        differing = [] if is_bare_itself else [a != b for a, b in zip(placement, own_placement, strict=True)]
        apart_s = abs((candidate.started - result.started).total_seconds())
        itself, same_repeat = candidate.run_id == result.run_id, candidate.scale.repeat == result.scale.repeat
        return differing, placement[0] != (), placement[1] != "numa", placement[2], not itself, not same_repeat, apart_s

    return min(candidates, key=distance, default=None)


@given(st.lists(RUNS, min_size=1, max_size=12), RUNS, st.booleans())
def test_the_nearest_candidate_has_the_least_distance(rows, asking_run, bare):
    assert find_nearest(rows, asking_run, bare) is nearest(asking_run, rows, bare)
    assert find_nearest([*rows, asking_run], asking_run, bare) is nearest(asking_run, [*rows, asking_run], bare)


def old_key(result, strategy):
    tree = copy.deepcopy(result.spec)
    for key in ("gpus", "repeat", "resume", "strict", "baseline", "dry_run", "debug", "measure", "sweep", "script"):
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
        run = identify(result)
        assert (run.workload_key, run.strategy_key) == (old_key(result, False), old_key(result, True))
    assert identify(one).workload_key == identify(bare).workload_key != identify(old).workload_key


def test_keys_of_trainings_and_of_other_batches():
    plain, one, other, later = record(), record(), record(), record()
    one.spec["train"]["stop"]["epochs"] = other.spec["train"]["stop"]["epochs"] = 3.0
    other.spec["train"]["evaluate_epochs"] = later.spec["train"]["evaluate_epochs"] = 0.5
    keys = [identify(result).workload_key for result in (plain, one, other)]
    assert len(set(keys)) == 3, "trainings are compared only with trainings"
    assert identify(later).workload_key == keys[0], "it has no points"
    large = record(train=TrainSpec(batch_per_device=20))
    assert identify(plain).strategy_key != identify(large).strategy_key
    halves = record(gpus=2, scaling="strong", train=TrainSpec(batch_per_device=10))
    small, double, strong = (identify(result, local_batch=True).strategy_key for result in (plain, large, halves))
    assert small == strong != double
    assert plain.spec["train"]["batch_per_device"] == 10


def test_self_and_bare_are_found():
    two, own, bare, other = record(gpus=2), record(), record("bare_torch"), record("lightning_ddp")
    available = Found([two, own, bare, other])
    assert available.find_self(two) is own and available.find_self(own) is own
    assert available.find_bare(two) is bare and available.find_bare(own) is bare and available.find_bare(bare) is bare
    assert Found([own]).find_bare(record(gpus=2, baseline=None)) is None
    for bad in (record(status="failed"), record(gpus=2, run_id="x"), record(status="cancelled")):
        assert Found([bad]).find_self(two) is None


DIFFERENT = {
    "batch": {"train": TrainSpec(batch_per_device=20)},
    "dataset": {"dataset": DatasetSpec("materials", size=128)},
    "feed": {"dataset": DatasetSpec("materials", size=64, feed="fixed")},
    "hardware": {"hardware": HardwareSpec("gpu2", devices="cpu", gpus_per_node=2)},
    "processor": {"machine": dataclasses.replace(MACHINE, cpu_model="another processor")},
    "scaling": {"scaling": "strong"},
    "learning rate": {"train": TrainSpec(batch_per_device=10, learning_rate=0.5)},
}


@pytest.mark.parametrize("change", DIFFERENT.values(), ids=DIFFERENT)
def test_runs_that_differ_besides_their_devices_are_not_compared(change):
    available = Found([record(**change), record("bare_torch", **change)])
    assert available.find_self(record(gpus=2)) is None and available.find_bare(record(gpus=2)) is None
    run = record(gpus=2, **change)
    assert available.find_self(run) is not None and available.find_bare(run) is not None


def with_options(gpus, name, baseline="simulated", **options):
    made = record(name, gpus=gpus, baseline=baseline, run_id=f"{name}-{gpus}-{options}")
    made.spec["strategy"]["options"] = options
    return made


def test_records_without_an_option_are_compared_with_its_default():
    """Other options have another self, and the same bare baseline."""
    older, bare = with_options(1, "ddp", bucket_cap_mb=25.0), with_options(1, "simulated")
    available = Found([older, bare])
    assert available.find_self(with_options(2, "ddp", bucket_cap_mb=25.0, overlap=True)) is older
    for other in ({"bucket_cap_mb": 25.0, "overlap": False}, {"bucket_cap_mb": 1.0}):
        run = with_options(2, "ddp", **other)
        assert available.find_self(run) is None and available.find_bare(run) is bare


def test_the_bare_baseline_has_its_default_options_or_those_of_the_strategy_that_it_is():
    one, other = with_options(1, "simulated", step_s=0.1), with_options(1, "simulated", step_s=0.2)
    available = Found([one, other])
    for step_s, found in ((0.1, one), (0.2, other), (0.3, None)):
        assert available.find_bare(with_options(2, "simulated", step_s=step_s)) is found
    tensorflow = "bare_tensorflow"
    plain, fit = (with_options(1, tensorflow, tensorflow, loop=loop) for loop in ("custom", "fit"))
    on_two = [with_options(2, "mirrored", tensorflow, loop=loop) for loop in ("custom", "fit")]
    for run in (plain, fit, *on_two):
        run.scale.framework = "tensorflow"
    available, alone = Found([fit, plain]), Found([fit])
    assert available.find_bare(fit) is plain and available.find_self(fit) is fit  # the cost of Keras' loop is a figure
    assert available.find_bare(on_two[1]) is plain
    assert alone.find_bare(fit) is fit and alone.find_bare(on_two[0]) is None


def placed(strategy, ids, block_s=0.1, **changes):
    made = HardwareSpec("cpu", devices="cpu", gpus_per_node=2, device_ids=ids, **changes)
    run_id = f"{strategy} {ids} {changes}"
    return record(strategy, gpus=max(1, len(ids)), block_s=block_s, run_id=run_id, hardware=made)


PLACEMENT = ["device_ids", "bind", "environment", "transports"]


def test_each_single_device_is_compared_with_the_first_one():
    rows = [placed("bare_torch", [0], 0.1), placed("bare_torch", [1], 0.125), placed("bare_torch", [2], 0.08)]
    frame = frame_of_results(rows, [Path("x")] * 3)
    assert [round(value, 3) for value in frame["speedup_bare"]] == [1.0, 0.8, 1.25]
    assert list(frame["speedup_self"]) == [1.0, 1.0, 1.0]
    assert frame["overhead_share"].isna().all()  # a bare strategy has none
    assert list(frame["device_ids"]) == ["0", "1", "2"]
    old, pair = (
        placed("bare_torch", []),
        placed("ddp", [0, 5], bind="far", environment={"NCCL_SHM_DISABLE": "1", "A": "b"}),
    )
    for key in ("device_ids", "bind", "environment"):
        del old.spec["hardware"][key]
    pair.sync.transports = {"0-1": "P2P/IPC", "0-2": "NET/Socket/0 + P2P/IPC"}
    assert Found([old, pair]).find_bare(pair) is old, "older records have the default placement"
    cells = frame_of_results([old, pair], [Path("x")] * 2)[PLACEMENT]
    assert cells.iloc[0].isna().all()
    assert list(cells.iloc[1]) == ["0 5", "far", "NCCL_SHM_DISABLE=1 A=b", "NET/Socket/0 + P2P/IPC"]


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
            available = Found([one, bare])
            assert available.find_self(with_layout(layout)) is one and available.find_bare(with_layout(layout)) is bare


def test_layouts_are_compared_by_the_key_hardware_layout():
    one, other = [[make_compared_run(with_layout(layout), Path(layout))] for layout in ("sequence", "spread")]
    refused = compare(one, other)
    assert refused.status == "not comparable" and "hardware.layout" in (refused.refusal or "")
    (pair,) = compare_by([*one, *other], "hardware.layout").pairs
    assert pair.ratio == 1.0 and "layout" not in str(pair.label)
    scaled = [make_compared_run(with_layout("sequence", 1), Path("one")), *other]
    assert len(compare_by(scaled, "gpus").pairs) == 1
