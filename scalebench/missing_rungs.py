"""Which parts of the lost efficiency a run can have at all, and why one has no figure of its own. Layer 1."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from scalebench import probed
from scalebench.baselines import comparison_key
from scalebench.results import Result
from scalebench.rungs import PARTS, share_of_device

ALONE = "one device has nobody to share with, to wait for or to exchange with"
SAME_BATCH = "the baseline has the batch of a device too"
NO_WRAPPER = "the strategy is its own baseline"
NO_BARE = "there is no bare run: what is lost is against the strategy itself on one device, and this part is not in it"
APART = "replicas that exchange nothing do not wait for each other"
IN_PROBES = ("contention", "data", "straggler", "transfer", "drift")


def wanted(
    result: Result, bare_local: Result | None, own: Result | None, against: str
) -> tuple[list[str], dict[str, str]]:
    """(parts that there can be, why there cannot be the others)."""
    absent = {}
    if result.scale.gpus == 1:
        absent = dict.fromkeys(("batch", *IN_PROBES), ALONE)
    elif result.scale.scaling != "strong":
        absent["batch"] = SAME_BATCH
    if against == "self":
        absent["overhead"] = NO_BARE
    elif _one_strategy(result, bare_local, own):
        absent["overhead"] = NO_WRAPPER
    if not result.scale.lockstep:
        absent |= dict.fromkeys(("straggler", "transfer"), APART)
    return [name for name in PARTS if name not in absent], absent


def reasons(
    result: Result, bare_local: Result | None, own: Result | None, known: Collection[str], parts: Sequence[str]
) -> dict[str, str]:
    """Why parts that there are could not be told from others; with the run that would help, where one would."""
    found = {}
    if "batch" in parts and bare_local is None:
        found["batch"] = _no_run(result, result.scale.baseline_bare or result.scale.strategy)
    if "overhead" in parts and own is None:
        found["overhead"] = _no_run(result, result.scale.strategy)
    if "contention" not in parts:
        return found
    if "probed" not in known:
        return found | dict.fromkeys((name for name in IN_PROBES if name in parts), _no_probes(result))
    told = probed.reasons(result)
    if "held" not in known:
        found["data"] = told.get("data", "too few blocks for a figure")
    elif "own_data" not in known:
        found["data"] = "what one device loads was not measured: data holds all loading, and contention less by one's"
    if "transfer" in parts and "exposed" not in known:
        found["transfer"] = told.get("exposed", "too few blocks for a figure")
    if "straggler" in parts and "straggler" not in known:
        found["straggler"] = told.get("straggler", told.get("exposed", "too few updates for a figure"))
    return found


def _one_strategy(result: Result, bare_local: Result | None, own: Result | None) -> bool:
    if bare_local is None or own is None:
        return result.scale.framework == "none" and result.scale.strategy == result.scale.baseline_bare
    return bare_local.run_id == own.run_id or comparison_key(bare_local, True) == comparison_key(own, True)


def _no_run(result: Result, strategy: str) -> str:
    batch = share_of_device(result)
    if not batch.is_integer():
        return (
            f"{result.scale.global_batch} samples on {result.scale.gpus} devices are {batch:.4g} each, a batch that no "
            "run on one device can have"
        )
    strong = result.scale.scaling == "strong" and result.scale.gpus > 1
    value = "ladder" if strong else "auto"
    return (
        f"no good run of {strategy} on one device with a batch of {batch:.0f} is among these: baseline={value} adds it "
        f"in a sweep, by itself strategy={strategy} gpus=1 scaling=weak train.batch_per_device={batch:.0f}"
    )


def _no_probes(result: Result) -> str:
    asked = result.spec.get("measure", {}).get("probes")
    words = {None: "the record is of an older version", False: "measure.probes=false"}
    return f"no probes of an update ({words.get(asked, 'a rank has none')}): measure.probes=true takes it apart"
