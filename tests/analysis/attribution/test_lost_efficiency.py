"""Attribution of one run and of several repeats: known parts come back, and add up to what the frame says is lost."""

import dataclasses

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t

from scalebench.analysis.attribution import lost_efficiency as losses
from tests.builders import attribution_runs as sample
from tests.builders.runs import record

SUM_TOLERANCE = 1e-12
TOLERANCE_S = 1e-9
STEP_S = (
    sample.SELF_S + sample.CONTENTION_S + sample.LOADING_S + sample.IMBALANCE_S + sample.TRANSFER_S + sample.DRIFT_S
)
PART_S = {
    "batch": sample.BARE_S - sample.FULL_BARE_S / 2, "wrapper": sample.SELF_S - sample.BARE_S,
    "contention": sample.CONTENTION_S, "data": sample.LOADING_S,
    "imbalance": sample.IMBALANCE_S, "communication": sample.TRANSFER_S, "drift": sample.DRIFT_S,
}  # fmt: skip


def attribute_strong(without="", **changes):
    """Attribute a strong-scaling run; `without`: bare, self: without these runs at the local batch."""
    result, full, bare, own = sample.strong_scaling_runs(**changes)
    references = losses.ReferenceRuns(full, None if "bare" in without else bare, None if "self" in without else own)
    return losses.attribute_run(result, references)


def attribute_weak(**changes):
    result, bare, own = sample.weak_scaling_runs(**changes)
    return losses.attribute_run(result, losses.ReferenceRuns(bare, bare, own))


def seconds(attribution):
    return {part.names: part.step_s.value for part in attribution.parts}


def adds_up(run):
    total_s, shares = (sum(getattr(part, name).value for part in run.parts) for name in ("step_s", "share"))
    return abs(total_s - (run.step_s - run.ideal_s)) < SUM_TOLERANCE and abs(shares - run.lost.value) < SUM_TOLERANCE


def test_each_known_part_comes_back():
    run = attribute_strong()
    assert seconds(run) == pytest.approx({(name,): PART_S[name] for name in losses.LOSS_PARTS}, abs=TOLERANCE_S)
    shares = {part.names[0]: part.share.value for part in run.parts}
    assert shares == pytest.approx({name: PART_S[name] / STEP_S for name in losses.LOSS_PARTS}, abs=1e-7)
    assert run.lost.value == pytest.approx(1 - sample.FULL_BARE_S / 2 / STEP_S)
    assert (run.missing, run.against, run.repeats) == ({}, "bare", 1) and adds_up(run)
    # Weak scaling has no batch part.
    run = attribute_weak()
    assert adds_up(run) and run.missing == {"batch": losses.SAME_BATCH}
    assert seconds(run) == pytest.approx({(name,): PART_S[name] for name in losses.LOSS_PARTS[1:]}, abs=TOLERANCE_S)


@pytest.mark.parametrize(("probes", "merged"), [
    (None, ("contention", "data", "imbalance", "communication", "drift")),
    ({"sync_off_s": [], "reasons": {"exposed": "weights are one copy"}}, ("contention", "communication")),
    ({"fixed_batch_s": [], "reasons": {"data": "read within"}}, ("contention", "data")),
    ({"local_step_s": []}, ("imbalance", "communication")),
])  # fmt: skip
def test_parts_that_were_not_probed_merge_with_a_reason(probes, merged):
    run = attribute_strong(probes=probes)
    assert merged in seconds(run) and adds_up(run) and set(run.missing) & set(merged)
    assert set((probes or {}).get("reasons", {}).values()) <= set(run.missing.values())


@pytest.mark.parametrize(("setting", "reason"), [(False, "(measure.probes=false)"), (True, "a rank has no probes")])
def test_a_run_without_probes_says_why(setting, reason):
    result, bare, own = sample.weak_scaling_runs(probes=None)
    result.spec["measure"] = {"probes": setting}
    run = losses.attribute_run(result, losses.ReferenceRuns(bare, bare, own))
    assert reason in run.missing["drift"]


def test_a_run_on_one_device_has_only_overhead_and_a_bare_one_nothing_to_explain():
    own, bare = sample.one_device_run("ddp", sample.SELF_S), sample.one_device_run("bare_torch", sample.BARE_S)
    run = losses.attribute_run(own, losses.ReferenceRuns(bare, bare, own))
    assert run is not None and adds_up(run)
    assert seconds(run) == {("wrapper",): pytest.approx(sample.SELF_S - sample.BARE_S, abs=TOLERANCE_S)}
    assert run.missing == dict.fromkeys(("batch", *losses.LOSS_PARTS[2:]), losses.NO_OTHER_DEVICE)
    bare, other = (
        sample.one_device_run("bare_torch", sample.BARE_S, baseline="bare_torch", run_id=name) for name in ("a", "b")
    )
    for result, references in (
        (bare, (bare, bare, bare)), (record(status="failed", block_s=None), (bare, bare, bare)),
        (sample.two_device_run(), (None, None, None)), (other, (bare, bare, other)), (own, (None, None, own, own)),
    ):  # fmt: skip
        assert losses.attribute_run(result, losses.ReferenceRuns(*references)) is None


def test_the_strategy_itself_is_the_baseline_if_there_is_no_bare_run():
    result, _, _, own = sample.strong_scaling_runs()
    full = sample.one_device_run("ddp", sample.FULL_BARE_S, 20, scaling="strong")
    run = losses.attribute_run(result, losses.ReferenceRuns(None, None, own, full))
    assert run is not None and adds_up(run)
    assert (run.against, run.missing["wrapper"]) == ("self", losses.NO_BARE_RUN)
    assert seconds(run)["batch",] == pytest.approx(sample.SELF_S - sample.FULL_BARE_S / 2, abs=TOLERANCE_S)
    assert run.lost.value == pytest.approx(1 - sample.FULL_BARE_S / 2 / STEP_S)


def test_a_strategy_that_is_its_own_baseline_has_no_overhead():
    own = sample.one_device_run("simulated", sample.SELF_S, baseline="simulated")
    run = losses.attribute_run(
        sample.two_device_run(strategy="simulated", baseline="simulated"), losses.ReferenceRuns(own, own, own)
    )
    assert run is not None and adds_up(run)
    assert run.missing["wrapper"] == losses.NO_WRAPPER and run.part("wrapper") is None
    assert seconds(run)["contention",] == pytest.approx(sample.CONTENTION_S, abs=TOLERANCE_S)
    # Independent replicas have no imbalance and no communication.
    probes = {"sync_off_s": [], "local_step_s": [], "reasons": {"exposed": losses.INDEPENDENT_REPLICAS}}
    run = attribute_weak(independent=True, probes=probes)
    assert adds_up(run)
    assert [part.names for part in run.parts] == [("wrapper",), ("contention",), ("data",), ("drift",)]
    assert run.missing["imbalance"] == run.missing["communication"] == losses.INDEPENDENT_REPLICAS


def test_a_batch_that_no_single_device_can_have_is_named():
    result, full, _, _ = sample.strong_scaling_runs()
    result = dataclasses.replace(result, scale=dataclasses.replace(result.scale, global_batch=21))
    run = losses.attribute_run(result, losses.ReferenceRuns(full, None, None))
    assert "21 samples on 2 devices are 10.5 each" in run.missing["batch"]


def make_repeats(factors, probed):
    """Return repeats of a run in strong scaling whose own steps take these factors longer; some have no probes."""
    repeats = []
    for number, factor in enumerate(factors):
        result, full, bare, own = sample.strong_scaling_runs(**({} if number in probed else {"probes": None}))
        for rank in result.ranks:
            rank.block_s = [seconds * factor for seconds in rank.block_s]
        repeats.append(
            losses.measure_repeat(
                dataclasses.replace(result, run_id=str(number)), losses.ReferenceRuns(full, bare, own)
            )
        )
    return repeats


def test_repeats_without_probes_count_with_those_of_the_first():
    """What their steps take longer is in contention, which compares processes."""
    run = losses.attribute_repeats(make_repeats((1.0, 1.02, 1.04), [0]))
    one = attribute_strong()
    assert adds_up(run) and [part.names for part in run.parts] == [(name,) for name in losses.LOSS_PARTS]
    for name in ("data", "imbalance", "communication", "drift"):
        ours, alone = (msgspec.structs.astuple(each.part(name).step_s) for each in (run, one))
        assert ours == pytest.approx(alone, abs=TOLERANCE_S)
    contention = run.part("contention").step_s
    assert contention.value == pytest.approx(sample.CONTENTION_S + 0.02 * STEP_S, abs=TOLERANCE_S)
    spread = t.ppf(0.975, 2) * 0.02 * STEP_S / 3**0.5
    assert spread < contention.value - contention.low < 1.1 * spread


def test_what_one_repeat_lacks_of_one_device_is_missing_in_all():
    result, full, bare, own = sample.strong_scaling_runs()
    complete = losses.measure_repeat(result, losses.ReferenceRuns(full, bare, own))
    lacking = losses.measure_repeat(result, losses.ReferenceRuns(full, bare, None))
    run = losses.attribute_repeats([complete, lacking, complete])
    assert ("wrapper", "contention") in seconds(run) and adds_up(run) and "strategy=ddp" in run.missing["wrapper"]


BLOCKS = st.lists(st.floats(1e-4, 1.0), max_size=9)
INCOMPLETE_PROBES = st.fixed_dictionaries({}, optional={
    "sync_on_s": BLOCKS, "sync_off_s": BLOCKS, "fixed_batch_s": BLOCKS, "local_step_s": st.just([]),
    "steps": st.sampled_from([None, 1, 7]),
})  # fmt: skip


@given(INCOMPLETE_PROBES, st.sampled_from(["", "bare", "self", "bare self"]), st.booleans(), st.data())
def test_parts_always_add_up_to_what_is_lost(probes, without, independent, data):
    """Of one repeat, and of several that differ, of which only some were probed."""
    repeats = []
    for number in range(data.draw(st.integers(1, 4))):
        changes = {"probes": probes if number == 0 or data.draw(st.booleans()) else None, "independent": independent}
        result, full, bare, own = sample.strong_scaling_runs(**changes)
        factor = data.draw(st.floats(0.5, 2))
        for rank in result.ranks:
            rank.block_s = [seconds * factor for seconds in rank.block_s]
        references = losses.ReferenceRuns(full, None if "bare" in without else bare, None if "self" in without else own)
        repeats.append(losses.measure_repeat(result, references))
    run = losses.attribute_repeats(repeats)
    scale = 1 + sum(abs(part.share.value) for part in run.parts)
    assert abs(sum(part.share.value for part in run.parts) - run.lost.value) < 1e-9 * scale
    assert abs(sum(part.step_s.value for part in run.parts) - (run.step_s - run.ideal_s)) < 1e-9 * scale
    assert len({name for part in run.parts for name in part.names}) == (5 if independent else 7)
    assert run.repeats == len(repeats)
