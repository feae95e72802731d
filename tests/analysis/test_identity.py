"""Which runs are comparable: keys, the baselines of a run, placements and layouts over nodes."""

import dataclasses
from pathlib import Path

from scalebench.analysis import identity
from scalebench.analysis.collectives import COLLECTIVE_COLUMNS
from scalebench.analysis.columns import FRAME_COLUMNS
from scalebench.analysis.comparison import compare, compare_by
from scalebench.analysis.comparison.rows import make_compared_run
from scalebench.analysis.identity import Baselines, find_nearest, identify
from scalebench.analysis.scaling_curves import make_curves
from scalebench.core.spec import Config, HardwareSpec, TrainSpec
from tests.builders.frames import frame_of_results, pool_results
from tests.builders.runs import record
from tests.report.section_blocks import show_table

CONFIG = dataclasses.asdict(Config())


class Found:
    """The baselines among results, by the run_id of each."""

    def __init__(self, *results):
        self._baselines = Baselines([identify(result) for result in results])

    def own(self, result):
        return getattr(self._baselines.find_self(identify(result)), "run_id", None)

    def bare(self, result):
        return getattr(self._baselines.find_bare(identify(result)), "run_id", None)


def test_keys_by_which_runs_are_matched_exist():
    groups = {group: keys for group, keys in CONFIG.items() if isinstance(keys, dict)}
    keys = {*CONFIG, *(f"{group}.{key}" for group in groups for key in groups[group])}
    dotted = {*identity.SAMPLE_KEYS}.union(*identity.LEFT_OUT.values())
    columns = {*identity.CURVE_COLUMNS, *identity.MEMORY_COLUMNS}
    assert (dotted - keys, columns - {*FRAME_COLUMNS}) == (set(), set())
    assert set(identity.OPERATION_COLUMNS) <= set(COLLECTIVE_COLUMNS)
    assert identity.LEFT_OUT["hidden"] < identity.LEFT_OUT["pair"]


def test_the_nearest_run_has_the_placement_then_the_repeat_and_then_the_time():
    """Each of these is nearer than those before it."""
    places = [{"device_ids": [1]}, {"bind": "far", "device_ids": [1]}, {"environment": {"A": "1"}}, {"bind": "far"}, {}]
    others = [
        record(block_s=None, run_id=f"place-{number}", hardware=HardwareSpec("cpu", **place))
        for number, place in enumerate(places)
    ]
    others += [
        record(block_s=None, run_id=f"hour-{hour}", repeat=repeat, started_at=f"2026-01-01T{hour:02}:00:00+00:00")
        for hour, repeat in ((20, 1), (3, 1), (10, 0), (9, 0))
    ]
    run = identify(record(gpus=2, run_id="run", started_at="2026-01-01T06:00:00+00:00"))
    candidates = [*map(identify, others[5:]), identify(record(run_id="run", repeat=5))]
    for count in range(1, len(candidates) + 1):
        assert find_nearest(candidates[:count], run) is candidates[count - 1]
    near, far = identify(others[4]), [identify(other) for other in others[:4]]
    for other in far:
        assert find_nearest([other, near], run) is near and find_nearest([near, other], other) is other
    there = identify(record(gpus=2, run_id="there", hardware=HardwareSpec("cpu", environment={"A": "2"})))
    assert find_nearest([far[2], near], there) is near, "the default where none has its variables"
    bare = identify(record("bare_torch", hardware=HardwareSpec("cpu", device_ids=[1]), run_id="bare"))
    assert find_nearest([far[0], near], bare) is far[0] and find_nearest([far[0], near], bare, as_bare=True) is near


def test_trainings_and_other_batches_have_their_keys():
    plain, one, other, later = record(), record(), record(), record()
    one.spec["train"]["stop"]["epochs"] = other.spec["train"]["stop"]["epochs"] = 3.0
    other.spec["train"]["evaluate_epochs"] = later.spec["train"]["evaluate_epochs"] = 0.5
    keys = [identify(result).workload_key for result in (plain, one, other)]
    assert len(set(keys)) == 3, "trainings are compared only with trainings"
    assert identify(later).workload_key == keys[0], "it has no points"
    assert identify(record("bare_torch")).workload_key == keys[0]
    large = record(train=TrainSpec(batch_per_device=20))
    assert identify(plain).strategy_key != identify(large).strategy_key
    halves = record(gpus=2, scaling="strong", train=TrainSpec(batch_per_device=10))
    small, double, strong = (identify(result, local_batch=True).strategy_key for result in (plain, large, halves))
    assert small == strong != double
    assert plain.spec["train"]["batch_per_device"] == 10


def with_options(gpus, name, baseline="simulated", **options):
    made = record(name, gpus=gpus, baseline=baseline, run_id=f"{name}-{gpus}-{options}")
    made.spec["strategy"]["options"] = options
    return made


def test_the_self_baseline_has_the_same_options_but_for_who_can_reach_it():
    """Other options have another self, and the same bare baseline."""
    plain, bare = with_options(1, "ddp", bucket_cap_mb=25.0), with_options(1, "simulated")
    both = Found(plain, bare)
    assert both.own(with_options(2, "ddp", bucket_cap_mb=25.0, open_port=True)) == plain.run_id
    for other in ({"bucket_cap_mb": 25.0, "overlap": False}, {"bucket_cap_mb": 1.0}):
        run = with_options(2, "ddp", **other)
        assert both.own(run) is None and both.bare(run) == bare.run_id


def test_the_bare_baseline_has_its_default_options_or_those_of_the_strategy_that_it_is():
    one, other = with_options(1, "simulated", step_s=0.1), with_options(1, "simulated", step_s=0.2)
    for step_s, run_id in ((0.1, one.run_id), (0.2, other.run_id), (0.3, None)):
        assert Found(one, other).bare(with_options(2, "simulated", step_s=step_s)) == run_id
    tensorflow = "bare_tensorflow"
    plain, fit = (with_options(1, tensorflow, tensorflow, loop=loop) for loop in ("custom", "fit"))
    on_two = [with_options(2, "mirrored", tensorflow, loop=loop) for loop in ("custom", "fit")]
    for run in (plain, fit, *on_two):
        run.scale.framework = "tensorflow"
    found = Found(fit, plain)
    assert found.bare(fit) == plain.run_id and found.own(fit) == fit.run_id  # the cost of Keras' loop is a figure
    assert found.bare(on_two[1]) == plain.run_id
    assert Found(fit).bare(fit) == fit.run_id and Found(fit).bare(on_two[0]) is None


def placed(strategy, ids, block_s=0.1, **changes):
    hardware = HardwareSpec("cpu", devices="cpu", gpus_per_node=2, device_ids=ids, **changes)
    return record(strategy, max(1, len(ids)), block_s, run_id=f"{strategy} {ids} {changes}", hardware=hardware)


def test_each_single_device_is_compared_with_the_first_one():
    rows = [placed("bare_torch", [0], 0.1), placed("bare_torch", [1], 0.125), placed("bare_torch", [2], 0.08)]
    frame = frame_of_results(rows, [Path("x")] * 3)
    assert [round(value, 3) for value in frame["speedup_bare"]] == [1.0, 0.8, 1.25]
    assert list(frame["speedup_self"]) == [1.0, 1.0, 1.0]
    assert frame["overhead_share"].isna().all()  # a bare strategy has none
    assert list(frame["device_ids"]) == ["0", "1", "2"]
    plain, pair = placed("bare_torch", []), placed("ddp", [0, 5], bind="far", environment={"NCCL_SHM_DISABLE": "1"})
    pair.sync.transports = {"0-1": "P2P/IPC", "0-2": "NET/Socket/0 + P2P/IPC"}
    assert Found(plain, pair).bare(pair) == plain.run_id
    cells = frame_of_results([pair], [Path("x")])[["device_ids", "bind", "environment", "transports"]]
    assert list(cells.iloc[0]) == ["0 5", "far", "NCCL_SHM_DISABLE=1", "NET/Socket/0 + P2P/IPC"]


def with_layout(layout, gpus=4, block_s=0.1, strategy="ddp"):
    """On nodes of four devices."""
    hardware = HardwareSpec("nodes", gpus_per_node=4, max_nodes=2, layout=layout)
    made = record(strategy, gpus, block_s, run_id=f"{strategy}-{layout}-{gpus}-{block_s}", hardware=hardware)
    made.scale.nodes = 2 if layout == "spread" else 1
    return made


def test_layouts_are_separate_rows_and_curves_with_a_column_and_share_the_baseline():
    results = [with_layout("sequence"), with_layout("spread"), with_layout("spread", block_s=0.11)]
    frame = pool_results(results, [Path(str(number)) for number in range(3)])
    rows = zip(frame["layout"], frame["repeats"], frame["nodes"], strict=True)
    assert sorted(rows) == [("sequence", 1, 1), ("spread", 2, 2)]
    assert [curve.name for curve in make_curves(frame)] == ["ddp layout=sequence", "ddp layout=spread"]
    assert "layout" not in show_table(frame[frame["layout"] == "spread"])
    own, bare = with_layout("sequence", 1), with_layout("sequence", 1, strategy="bare_torch")
    for run in results:
        assert (Found(own, bare).own(run), Found(own, bare).bare(run)) == (own.run_id, bare.run_id)


def test_layouts_are_compared_by_the_key_hardware_layout():
    one, other = [[make_compared_run(with_layout(layout), Path(layout))] for layout in ("sequence", "spread")]
    refused = compare(one, other)
    assert refused.status == "not comparable" and "hardware.layout" in (refused.refusal or "")
    (pair,) = compare_by([*one, *other], "hardware.layout").pairs
    assert pair.ratio == 1.0 and "layout" not in str(pair.label)
    scaled = [make_compared_run(with_layout("sequence", 1), Path("one")), *other]
    assert len(compare_by(scaled, "gpus").pairs) == 1
