"""The parts of the lost efficiency: what is measured of a step, how lost time is split, and why a part is missing.

All seconds are of one step of one device's share of the work. Formulas: docs/explain/attribution.md.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from scalebench.analysis import step_breakdown, throughput
from scalebench.analysis.attribution.reference_runs import ReferenceRuns, samples_per_device
from scalebench.analysis.identity import identify
from scalebench.core.result import Result
from scalebench.core.stats.estimate_arithmetic import Coefficients, rate_to_seconds
from scalebench.core.stats.estimates import Estimate, estimate_mean

LOSS_PARTS = ("batch", "wrapper", "contention", "data", "imbalance", "communication", "drift")
PROBED_PARTS = ("contention", "data", "imbalance", "communication", "drift")
LEVEL_OF_PART = {"batch": "bare", "wrapper": "self"}  # part -> the one-device step that includes it
OTHER_RUNS = ("ideal", "bare", "self")  # steps of the runs on one device, in the order in which parts are added
Estimates = dict[str, Estimate]
Split = list[tuple[tuple[str, ...], Coefficients]]

NO_OTHER_DEVICE = "one device has nobody to share with, to wait for or to exchange with"
SAME_BATCH = "the baseline has the batch of a device too"
NO_WRAPPER = "the strategy is its own baseline"
NO_BARE_RUN = (
    "there is no bare run: what is lost is against the strategy itself on one device, and this part is not in it"
)
INDEPENDENT_REPLICAS = "replicas that exchange nothing do not wait for each other"


def estimate_step_s(result: Result, samples: float) -> Estimate | None:
    """Return the seconds that `samples` take, from throughput; None if that was not measured."""
    rate, interval = throughput.Measurement(result).throughput
    return None if rate is None else rate_to_seconds(rate, interval, samples)


def estimate_from_probes(result: Result) -> Estimates:
    """Return what the probes of a step measured, by name.

    `data`, `imbalance` and `exposed` are the frame's columns. `fixed_batch` is the step that they add to: one batch
    over and over, without gradient synchronization where that can be switched off; it is called `fed` where samples
    are read within the step. `probed` is the step with everything, which is the sum of that step, `data` and `exposed`.
    """
    estimates = {}
    for name, column in {"data": "data_s", "imbalance": "imbalance_s", "exposed": "sync_exposed_s"}.items():
        if figure := step_breakdown.figure(result, column):
            estimates[name] = figure if figure.has_limits else Estimate(figure.value)
    blocks = step_breakdown.variant_blocks(result)
    without = next((name for name in ("fixed_batch_s", "sync_off_s", "sync_on_s") if name in blocks), None)
    if without is None or "sync_on_s" not in blocks:
        return estimates  # the imbalance at most: the others need such blocks too
    base, probed = estimate_mean(blocks[without]), estimate_mean(blocks["sync_on_s"])
    steps = {"fixed_batch" if "data" in estimates else "fed": base, "probed": probed}
    return estimates | {name: step for name, step in steps.items() if step is not None}


def split_lost_time(possible: Sequence[str], measured: Collection[str]) -> Split:
    """Split the lost time, `step` - `ideal`, into parts: their names and the estimates that each is made of.

    A part has several names if what would separate them was not measured. The parts add up to the lost time, whatever
    was measured. `possible` are the parts that the run can have, in the order of LOSS_PARTS; `measured` the names of
    the estimates.
    """
    parts: Split = []
    # Runs on one device, from the ideal step up: a part whose run was not measured merges with the next one.
    merged: list[str] = []
    below = "ideal"
    for name, level in LEVEL_OF_PART.items():
        merged += [name] if name in possible else []
        if name in possible and level in measured:
            parts.append((tuple(merged), {level: 1.0, below: -1.0}))
            merged, below = [], level
    # Parts that the probes measured by themselves.
    probed: Split = []
    if "data" in possible and {"data", "fixed_batch"} <= set(measured):
        probed.append((("data",), {"data": 1.0} | ({"self_data": -1.0} if "self_data" in measured else {})))
    waits = {"imbalance": 1.0} if "imbalance" in possible and "imbalance" in measured else {}
    if waits:
        probed.append((("imbalance",), waits))
    if "communication" in possible and "exposed" in measured:
        is_merged = "imbalance" in possible and not waits
        names = ("imbalance", "communication") if is_merged else ("communication",)
        probed.append((names, {"exposed": 1.0, **{name: -factor for name, factor in waits.items()}}))
    # All other parts share the rest of the step with probes, or of the step itself.
    top = ["step"]
    if "probed" in measured:
        base = "fixed_batch" if "fixed_batch" in measured else "fed"
        top = [name for name in (base, "data", "exposed") if name in measured]  # whose sum is `probed`
        parts += [(("drift",), {"step": 1.0, "probed": -1.0})] if "drift" in possible else []
    separate = {name for names, _ in (*parts, *probed) for name in names}
    merged += [name for name in possible if name not in LEVEL_OF_PART and name not in separate]
    if not merged:
        raise ValueError(f"no part of {', '.join(possible)} is left for the rest")
    rest = dict.fromkeys(top, 1.0)
    for terms in ({below: 1.0}, *(terms for _, terms in probed)):
        for name, factor in terms.items():
            rest[name] = rest.get(name, 0.0) - factor
    parts += [*probed, (tuple(merged), {name: factor for name, factor in rest.items() if factor != 0})]
    return sorted(parts, key=lambda part: LOSS_PARTS.index(part[0][0]))


def find_possible_parts(result: Result, references: ReferenceRuns) -> tuple[list[str], dict[str, str]]:
    """Return the parts that a run can have at all, and why it cannot have the others."""
    absent = {}
    if result.scale.gpus == 1:
        absent = dict.fromkeys(("batch", *PROBED_PARTS), NO_OTHER_DEVICE)
    elif result.scale.scaling != "strong":
        absent["batch"] = SAME_BATCH
    if references.against == "self":
        absent["wrapper"] = NO_BARE_RUN
    elif is_own_baseline(result, references):
        absent["wrapper"] = NO_WRAPPER
    if result.scale.independent:
        absent |= dict.fromkeys(("imbalance", "communication"), INDEPENDENT_REPLICAS)
    return [name for name in LOSS_PARTS if name not in absent], absent


def explain_unmeasured_parts(
    result: Result, references: ReferenceRuns, measured: Collection[str], possible: Sequence[str]
) -> dict[str, str]:
    """Return why possible parts could not be separated from others, with the run that would help if there is one."""
    missing = {}
    if "batch" in possible and references.bare_local is None:
        missing["batch"] = _explain_missing_run(result, result.scale.baseline_bare or result.scale.strategy)
    if "wrapper" in possible and references.self_local is None:
        missing["wrapper"] = _explain_missing_run(result, result.scale.strategy)
    if "contention" not in possible:
        return missing
    if "probed" not in measured:
        reason = f"no probes of a step ({step_breakdown.explain_missing_probes(result)})"
        return missing | dict.fromkeys((name for name in PROBED_PARTS if name in possible), reason)
    reasons = step_breakdown.unmeasured_reasons(result)
    if "fixed_batch" not in measured:
        missing["data"] = reasons.get("data", "too few blocks for a figure")
    elif "self_data" not in measured:
        missing["data"] = "what one device loads was not measured: data holds all loading, and contention less by one's"
    if "communication" in possible and "exposed" not in measured:
        missing["communication"] = reasons.get("exposed", "too few blocks for a figure")
    if "imbalance" in possible and "imbalance" not in measured:
        missing["imbalance"] = reasons.get("imbalance", reasons.get("exposed", "too few steps for a figure"))
    return missing


def is_own_baseline(result: Result, references: ReferenceRuns) -> bool:
    """Return whether the strategy is its bare baseline."""
    bare, own = references.bare_local, references.self_local
    if bare is None or own is None:
        return result.scale.framework == "none" and result.scale.strategy == result.scale.baseline_bare
    return bare.run_id == own.run_id or identify(bare).strategy_key == identify(own).strategy_key


def _explain_missing_run(result: Result, strategy: str) -> str:
    batch = samples_per_device(result)
    if not batch.is_integer():
        return (
            f"{result.scale.global_batch} samples on {result.scale.gpus} devices are {batch:.4g} each, a batch that no "
            "run on one device can have"
        )
    strong = result.scale.scaling == "strong" and result.scale.gpus > 1
    value = "attribution" if strong else "auto"
    return (
        f"no good run of {strategy} on one device with a batch of {batch:.0f} is among these: baseline={value} adds it "
        f"in a sweep, by itself strategy={strategy} gpus=1 scaling=weak train.batch_per_device={batch:.0f}"
    )
