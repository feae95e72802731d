"""Step models of measured scaling curves: each quantity from the run's own probes, else from the hardware's YAML."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from scalebench.analysis.batches import fit_step_time
from scalebench.analysis.columns import RATE
from scalebench.analysis.prediction import link_rates, step_model
from scalebench.analysis.prediction.extrapolation import MeasuredStep
from scalebench.analysis.prediction.link_rates import ReadRecord, Row, SyncsByLink
from scalebench.analysis.prediction.step_model import Links, StepModel
from scalebench.analysis.scaling_curves import Curve
from scalebench.core.errors import InputError
from scalebench.core.result import Result

MAX_GROWTH = 0.2  # more is not a property of the devices
MIN_SYNC_SHARE = 0.01  # of a step; what hides less says nothing about overlap
Hardware = Mapping[str, Any]  # as in a YAML of conf/hardware


def sync_kind(result: Result) -> str:
    """Return what the devices of this run exchange, as its strategy's YAML says: one of SYNC_KINDS."""
    sync = result.spec.get("strategy", {}).get("sync")
    if sync is None:
        raise InputError("its record does not say what its strategy exchanges (strategy.sync): run it again")
    return str(sync)


def list_points(curve: Curve) -> list[MeasuredStep]:
    """Return the measured steps of a curve; of a step shortened by the end of an epoch its samples count."""
    return [
        MeasuredStep(row["gpus"], row["global_batch"] / row["gpus"], row["global_batch"] / row[RATE])
        for row in curve.rows
    ]


def find_links(hardware: Hardware, rows: Sequence[Row], syncs: SyncsByLink | None = None) -> Links:
    """Return the links of some hardware: measured on these rows, with `syncs`, else those of its YAML.

    A rate is None where neither is known. A node has at least the devices that ran on one of this hardware, and this
    machine has all of its workers, however few its cores.
    """
    links = hardware.get("links") or {}
    most_in_a_node = max(-(-row["gpus"] // row["nodes"]) for row in rows)
    per_node = hardware.get("gpus_per_node") or most_in_a_node
    kind = links.get("kind") or ("nvlink" if "nvlink" in str(links.get("intra_node")).lower() else "peer")
    if kind not in step_model.LINK_EFFICIENCIES:
        raise InputError(f"hardware.links.kind={kind} should be one of {', '.join(step_model.LINK_EFFICIENCIES)}")
    nominal = (float(links.get(name) or 0) or None for name in ("intra_node_bytes_per_s", "inter_node_bytes_per_s"))
    per_node = per_node if syncs is None else max(per_node, most_in_a_node)
    if hardware.get("this_machine") and hardware.get("devices") == "cpu" and hardware.get("max_nodes") == 1:
        per_node = math.inf
    all_links = step_model.make_links(per_node, kind, *nominal)
    all_links = replace(
        all_links,
        latency_s=float(links.get("intra_node_latency_s") or all_links.latency_s),
        network_latency_s=float(links.get("inter_node_latency_s") or all_links.network_latency_s),
        oversubscription=float(links.get("oversubscription") or 1.0),
    )
    for row in rows:
        rate = link_rates.fit_link_rate((syncs or {}).get(link_rates.link_key(row), ()))
        if rate is not None:
            prefix, shared_by = ("", 1.0) if row["nodes"] == 1 else ("network_", all_links.oversubscription)
            measured: dict[str, Any] = {f"{prefix}bytes_per_s": rate.bytes_per_s * shared_by}
            if rate.latency_s is not None:
                measured[f"{prefix}latency_s"] = rate.latency_s
            all_links = replace(all_links, **measured)
    return all_links


def make_step_model(rows: Sequence[Row], links: Links, read: ReadRecord, batch_rows: Sequence[Row] = ()) -> StepModel:
    """Make the model of the last row's strategy, without the seconds of a sample, which follow from measured points.

    `rows` are of one model in ascending order of devices, `batch_rows` of one device with different batches. InputError
    names what was not measured.
    """
    last = rows[-1]
    kind, sizes = sync_kind(read(last)), link_rates.message_bytes(last, read)
    spec = read(last).spec
    hardware = spec.get("hardware") or {}
    size = last["gradient_bytes"] or sum(sizes) or rows[0]["gradient_bytes"] or 0
    host_sample_s, shares_cores = _host_sample_s(last, read), bool(hardware.get("nodes_share_cores"))
    if kind in step_model.CUT_MODEL:
        if len(rows) == 1:
            raise InputError(f"no formula says how a model scales that is cut: measure gpus={2 * last['gpus']}")
        return StepModel(1.0, links, kind, pass_s=_half_batch(batch_rows), growth=0.0, host_sample_s=host_sample_s,
                         nodes_share_cores=shares_cores)  # fmt: skip
    if len(rows) == 1 and not size and kind != step_model.NO_SYNC:
        raise InputError(f"how many bytes it sends is not known: measure gpus={2 * last['gpus']}")
    model = StepModel(
        1.0, links, kind, float(size), max(1, len(sizes)), pass_s=_half_batch(batch_rows),
        optimizer_s=_first(rows, "optimizer_s"), host_sample_s=host_sample_s, nodes_share_cores=shares_cores,
        shards=int((spec.get("strategy", {}).get("options") or {}).get("shards") or 0),
    )  # fmt: skip
    forward_s, backward_s = _first(rows, "forward_s"), _first(rows, "backward_s")
    if forward_s and backward_s:
        model = replace(model, backward_share=backward_s / (forward_s + backward_s))
    if read(last).scale.device == "cpu":  # where it takes the cores that compute
        model = replace(model, overlap=0.0, computes_on_host=True)
    # Overlap and growth as the probes measured them on the most devices.
    for row in rows:
        if row["gpus"] == 1 or not row["step_s"]:
            continue
        isolated, exposed, backward = (row[name] for name in ("sync_isolated_s", "sync_exposed_s", "backward_s"))
        if row["imbalance_s"] is not None:
            wait = row["imbalance_s"] / row["step_s"] / float(step_model.expected_maximum(np.array(float(row["gpus"]))))
            growth = min(MAX_GROWTH, max(step_model.GROWTH, wait))  # there are other losses than waiting
            model = replace(model, growth=growth)
        is_long = isolated is not None and isolated > MIN_SYNC_SHARE * row["step_s"]
        if is_long and exposed is not None and backward and backward > 0 and model.messages > 1:
            hidden = (isolated - exposed) / (backward * (1 - 1 / model.messages))
            model = replace(model, overlap=min(1.0, max(0.0, hidden)))
    return model


def _first(rows: Sequence[Row], name: str) -> float:
    """Return the first measured value, 0 at least; 0 where there is none."""
    return max(0.0, next((float(row[name]) for row in rows if row[name] is not None), 0.0))


def _half_batch(rows: Sequence[Row]) -> float:
    """Return the samples that take as long as the fixed part of a pass; 0 where batches were not varied."""
    optimizer_s = _first(rows, "optimizer_s")
    points = [(row["global_batch"], row["global_batch"] / row[RATE] - optimizer_s) for row in rows]
    fit = fit_step_time([point for point in points if point[1] > 0])
    return 0.0 if fit is None else fit.half_batch or 0.0


def _host_sample_s(row: Row, read: ReadRecord) -> float:
    """Return the seconds of all processors of a node for a sample; 0 if not measured.

    Processors that are devices themselves are taken also while their workers wait, since all wait for one
    synchronization: more workers than cores cannot use that time.
    """
    result = read(row)
    hardware, cores_used = result.spec.get("hardware") or {}, row["cpu_util_ours_mean"]
    cores = hardware.get("cpus_per_node")
    beside = row["gpus"] / (1 if hardware.get("nodes_share_cores") else row["nodes"])
    if result.scale.device == "cpu":
        cores_used = min(1.0, beside * (hardware.get("cpus_per_device") or 1) / cores) if cores else None
    elif cores_used is not None and cores:  # a share of the cores that the run had of a node
        cores_used *= min(1.0, result.machine.cpus / cores)
    if cores_used is None or not row["step_s"]:
        return 0.0
    return float(cores_used * row["step_s"] / (beside * row["global_batch"] / row["gpus"]))
