"""What a model takes and what a machine gives, of rows that were measured: operations a second of a device without any
strategy, the optimizer's seconds, and the link by the exchange of gradients alone. Layer 1."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from scalebench.batch_knee import fit
from scalebench.link_rate import Exchange, LinkRate, link_rate
from scalebench.parallel_choice import Rates, Work
from scalebench.results import Result
from scalebench.spec import InputError

RATE = "throughput_samples_per_s"
PROBES = "measured without the parts of its update: measure.probes=true, and a measure.probe_s above its seconds"
LINK = ("hardware", "machine", "framework", "gpus", "nodes")  # rows that exchange over one link

Row = Mapping[str, Any]
Read = Callable[[Row], Result]  # the whole record of a row; InputError where it has gone since
Links = dict[tuple[Any, ...], list[Exchange]]


class Pace(NamedTuple):
    """One device without any strategy: an update over b samples takes pass_s + b * sample_s + optimizer_s."""

    pass_s: float  # 0 where one batch alone was measured, or smaller ones are the faster by the sample
    sample_s: float
    optimizer_s: float


def pace_of(bares: Sequence[Row]) -> Pace:
    """Of bare rows on one device with one batch or several, the nearest first, whose optimizer counts. InputError says
    what is not known."""
    if not bares:
        raise InputError("no bare run on one device was measured: baseline=bare adds it")
    if bares[0]["optimizer_s"] is None:
        raise InputError(f"the bare run was {PROBES}")
    points = [(float(row["global_batch"]), _worked_s(row)) for row in bares if row["optimizer_s"] is not None]
    batch, worked_s = points[0]
    if worked_s <= 0:
        raise InputError("the optimizer takes all of the bare run's update")
    line = fit([point for point in points if point[1] > 0])
    optimizer_s = max(0.0, bares[0]["optimizer_s"])  # a difference of two means
    if line is None or line.alpha_s < 0 or line.beta_s <= 0:
        return Pace(0.0, worked_s / batch, optimizer_s)
    return Pace(line.alpha_s, line.beta_s, optimizer_s)


def work_of(data: Row, bare: Row, pace: Pace, read: Read) -> Work:
    """Of the row with all parameters on each device, and of one device. InputError says what is not known."""
    gradient_bytes = bare["gradient_bytes"] if data["gradient_bytes"] is None else data["gradient_bytes"]
    if bare["flops_per_sample"] is None or gradient_bytes is None:
        raise InputError("what a sample costs, or how many parameters there are, is not known of this model")
    messages = len(_message_bytes(data, read)) or 1
    return Work(bare["flops_per_sample"], gradient_bytes, messages, pace.optimizer_s, pace.pass_s)


def rates_of(work: Work, pace: Pace, link: LinkRate | float | None) -> Rates:
    """InputError where no link is known."""
    if link is None:
        raise InputError(f"no link is known: the data-parallel run did not go well, or was {PROBES}")
    flops_per_s = work.flops_per_sample / pace.sample_s
    if isinstance(link, LinkRate):
        return Rates(flops_per_s, link.bytes_per_s, link.latency_s or 0.0)
    return Rates(flops_per_s, link)


def _worked_s(row: Row) -> float:
    """An update without the optimizer."""
    return float(row["global_batch"] / row[RATE] - max(0.0, row["optimizer_s"]))


def exchanges(rows: Iterable[Row], read: Read) -> Links:
    """Of data-parallel rows: those of each link."""
    found: Links = {}
    for row in rows:
        if row["gpus"] < 2 or not row["sync_isolated_s"] or not (sizes := _message_bytes(row, read)):
            continue
        one = Exchange(row["gpus"], len(sizes), sum(sizes), row["sync_isolated_s"])
        found.setdefault(key_of_link(row), []).append(one)
    return found


def link_of(row: Row, links: Links, read: Read) -> LinkRate | float | None:
    """As measured among these; else bytes a second that the hardware's YAML has of a source, for devices of one node or
    of several; None where neither is known."""
    measured = link_rate(links.get(key_of_link(row), []))
    if measured is not None:
        return measured
    name = "intra_node_bytes_per_s" if row["nodes"] == 1 else "inter_node_bytes_per_s"
    value = (read(row).spec.get("hardware", {}).get("links") or {}).get(name)
    return float(value) if value else None


def key_of_link(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in LINK)


def _message_bytes(row: Row, read: Read) -> list[int]:
    try:
        return read(row).sync.message_bytes
    except InputError:
        return []
