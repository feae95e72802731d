"""Step models of measured scaling curves: each quantity from the run's own probes, else from the hardware's YAML. Rates
of links are those of isolated synchronizations of gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from scalebench.analysis.columns import RATE
from scalebench.analysis.prediction import step_model
from scalebench.analysis.prediction.step_model import Links, StepModel, ring_bytes
from scalebench.core.errors import InputError
from scalebench.core.result import Result
from scalebench.core.stats.estimate_arithmetic import fit_least_squares

MAX_GROWTH = 0.2  # more is not a property of the devices
MIN_RISE = 1e-9  # of a line, over its fixed cost; less is rounding
MIN_SYNC_SHARE = 0.01  # of a step; what hides less says nothing about overlap
LINK_COLUMNS = ("hardware", "machine", "framework", "backend_used", "gpus", "nodes")  # rows that use one link

Row = Mapping[str, Any]
Hardware = Mapping[str, Any]  # as in a YAML of conf/hardware
ReadRecord = Callable[[Row], Result]  # returns the complete record of a row; InputError if it was deleted


RatesByLink = dict[tuple[Any, ...], list[float]]  # bytes/s of each device in a ring


def group_rates_by_link(rows: Iterable[Row], read: ReadRecord) -> RatesByLink:
    """Group the rates of isolated synchronizations by their link."""
    by_link: RatesByLink = {}
    for row in rows:
        if row["gpus"] > 1 and row["sync_isolated_s"] and (sizes := message_bytes(row, read)):
            rate = ring_bytes(sum(sizes), row["gpus"]) / row["sync_isolated_s"]
            by_link.setdefault(link_key(row), []).append(rate)
    return by_link


def fit_link_rate(rates: Sequence[float]) -> float | None:
    """Return the bytes per second by the least squares of relative deviations; None without measurements. It is an
    effective rate, which includes latencies and the summation."""
    return math.fsum(rate * rate for rate in rates) / math.fsum(rates) if rates else None


def link_key(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in LINK_COLUMNS)


def message_bytes(row: Row, read: ReadRecord) -> list[int]:
    try:
        return read(row).sync.message_bytes
    except InputError:
        return []


def find_links(hardware: Hardware, rows: Sequence[Row], rates: RatesByLink | None = None) -> Links:
    """Return the links of some hardware: measured on these rows, with `rates`, else those of its YAML.

    A rate is None where neither is known. A node has at least the devices that ran on one of this hardware, and this
    machine has all of its workers, however few its cores.
    """
    links = hardware.get("links") or {}
    most_in_a_node = max(-(-row["gpus"] // row["nodes"]) for row in rows)
    per_node = hardware.get("gpus_per_node") or most_in_a_node
    kind = links.get("kind") or ("nvlink" if "nvlink" in str(links.get("intra_node")).lower() else "peer")
    if kind not in step_model.LINK_EFFICIENCIES:
        raise InputError(f"hardware.links.kind={kind} should be one of {', '.join(step_model.LINK_EFFICIENCIES)}")
    nominal = [links.get(name) or None for name in ("intra_node_bytes_per_s", "inter_node_bytes_per_s")]
    if not all(isinstance(rate, int | float | None) for rate in nominal):
        raise InputError(f"hardware.links has bytes per second, not {' and '.join(map(str, nominal))}")
    per_node = per_node if rates is None else max(per_node, most_in_a_node)
    if hardware.get("this_machine") and hardware.get("devices") == "cpu" and hardware.get("max_nodes") == 1:
        per_node = math.inf
    all_links = step_model.make_links(per_node, kind, *nominal)
    for row in rows:
        if (rate := fit_link_rate((rates or {}).get(link_key(row), ()))) is not None:
            name = "bytes_per_s" if row["nodes"] == 1 else "network_bytes_per_s"
            all_links = replace(all_links, **{name: rate})
    return all_links


def sync_kind(result: Result) -> str:
    """Return what the devices of this run exchange, as its strategy's YAML says: one of SYNC_KINDS."""
    sync = result.spec.get("strategy", {}).get("sync")
    if sync is None:
        raise InputError("its record does not say what its strategy exchanges (strategy.sync): run it again")
    return str(sync)


def make_step_model(rows: Sequence[Row], links: Links, read: ReadRecord, batch_rows: Sequence[Row] = ()) -> StepModel:
    """Make the model of the last row's strategy, without the seconds of a sample, which follow from measured points.

    `rows` are of one model in ascending order of devices, `batch_rows` of one device with different batches. InputError
    names what was not measured.
    """
    last, result = rows[-1], read(rows[-1])
    kind, sizes = sync_kind(result), message_bytes(last, read)
    size = last["gradient_bytes"] or sum(sizes) or rows[0]["gradient_bytes"] or 0

    def first(of: Sequence[Row], name: str) -> float:
        """Return the first measured value, 0 at least; 0 where there is none."""
        return max(0.0, next((float(row[name]) for row in of if row[name] is not None), 0.0))

    # The samples that take as long as the fixed part of a pass; 0 where batches were not varied.
    points = [(row["global_batch"], row["global_batch"] / row[RATE] - first(batch_rows, "optimizer_s"))
              for row in batch_rows]  # fmt: skip
    model = StepModel(
        1.0, links, kind, pass_s=fit_half_batch([point for point in points if point[1] > 0]),
        host_sample_s=_host_sample_s(last, result),
        nodes_share_cores=bool((result.spec.get("hardware") or {}).get("nodes_share_cores")),
    )  # fmt: skip
    if kind in step_model.CUT_MODEL:
        if len(rows) == 1:
            raise InputError(f"no formula says how a model scales that is cut: measure gpus={2 * last['gpus']}")
        return replace(model, growth=0.0)
    if len(rows) == 1 and not size and kind != step_model.NO_SYNC:
        raise InputError(f"how many bytes it sends is not known: measure gpus={2 * last['gpus']}")
    model = replace(model, sync_bytes=float(size), messages=max(1, len(sizes)), optimizer_s=first(rows, "optimizer_s"))
    forward_s, backward_s = first(rows, "forward_s"), first(rows, "backward_s")
    if forward_s and backward_s:
        model = replace(model, backward_share=backward_s / (forward_s + backward_s))
    if result.scale.device == "cpu":  # where it takes the cores that compute
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


def fit_half_batch(points: Sequence[tuple[float, float]]) -> float:
    """Return the samples that take as long as the fixed part of a step (n_1/2), from (samples, seconds) by the least
    squares of relative deviations; 0 where the line has no such part, or batches were not varied.

    Source: Hockney and Jesshope 1988, "Parallel Computers 2", chapter 1.3.
    """
    if len({samples for samples, _ in points}) < 2:
        return 0.0
    fit = fit_least_squares([(1 / seconds, samples / seconds) for samples, seconds in points], [1.0] * len(points))
    if fit is None:
        return 0.0  # sizes that differ by rounding only
    fixed_s, sample_s = map(float, fit.coefficients)
    rises = sample_s * max(samples for samples, _ in points) > MIN_RISE * fixed_s
    return fixed_s / sample_s if fixed_s > 0 and rises else 0.0


def _host_sample_s(row: Row, result: Result) -> float:
    """Return the seconds of all processors of a node for a sample; 0 if not measured.

    Processors that are devices themselves are taken also while their workers wait, since all wait for one
    synchronization: more workers than cores cannot use that time.
    """
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
