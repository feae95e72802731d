"""Where a larger batch stops to pay, in words. Layer 3."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scalebench.batch_curves import BATCH, over_batches
from scalebench.batch_knee import SHARE, Knee, StepFit, fit, knee, step_points
from scalebench.curves import Curve, curves
from scalebench.report import units

if TYPE_CHECKING:
    import pandas as pd

MOST = 8  # curves told of one by one
FAR = 0.9  # of the fitted limit; a series whose highest throughput is below it has not come to its end


def sentences(pooled: pd.DataFrame) -> list[str]:
    """One for each configuration and number of devices of which the throughput is known with two batches or more."""
    if (pooled.groupby("gpus", dropna=False)[BATCH].nunique() < 2).all():
        return []  # without the second that curves of ten thousand rows take
    found = over_batches(curves(pooled))
    several = len({curve.tags["model"] for curve in found}) > 1
    said = [sentence(curve, curve.tags["model"] if several else "") for curve in found]
    told = [one for one in said if one is not None]
    more = len(told) - MOST
    return told[:MOST] + ([f"knees: {more} more are in the report and by scalebench.load"] if more > 0 else [])


def sentence(curve: Curve, of: str = "") -> str | None:
    """`knee: 700 per device (ddp_gloo, 2 devices): 93 % of the highest throughput, that at 5,000; ...`, without a full
    stop; None where there is no curve."""
    found = knee(curve.rows)
    if found is None:
        return None
    who = f"({of} with {curve.name})" if of else f"({curve.name})"
    line = fit(step_points(curve.rows))
    parts = [f"{_head(found, who, curve)}{_doubt(found)}", *([] if line is None else _line(line, found, curve))]
    return "; ".join(parts)


def at(found: Knee) -> str:
    """`700`; `5,000 or more`, `75 or less` where what was measured ends there."""
    if found.last:
        return f"{found.batch:,} or more"
    return f"{found.batch:,} or less" if found.first else f"{found.batch:,}"


def half(line: StepFit) -> str:
    """`420 [390, 450]` samples; empty where the line has none."""
    if line.half_batch is None:
        return ""
    if line.low is None or line.high is None:
        return units.figure(line.half_batch)
    return f"{units.figure(line.half_batch)} [{units.figure(line.low)}, {units.figure(line.high)}]"


def _head(found: Knee, who: str, curve: Curve) -> str:
    share = f"{100 * found.share:.0f} %"
    if found.last:
        before = curve.rows[-2]
        return (
            f"no knee up to {found.batch:,} per device {who}: {before[BATCH]:,} has less than {100 * SHARE:g} % of its "
            "throughput, which may rise beyond"
        )
    head = f"knee: {found.batch:,} per device{' or less' if found.first else ''} {who}: "
    if found.batch == found.highest:
        return f"{head}no measured batch has a higher throughput"
    return f"{head}{share} of the highest throughput, that of {found.highest:,}"


def _doubt(found: Knee) -> str:
    others = [f"{batch:,}" for batch in found.candidates or () if batch != found.batch]
    if found.candidates is None:
        return ", with no interval to tell neighbours from it"
    if not others:
        return ", and no neighbour could be it by its interval"
    return f"; by their intervals {' or '.join(others)} could be it"


def _line(line: StepFit, found: Knee, curve: Curve) -> list[str]:
    said = [f"n_1/2 {half(line)}"] if line.half_batch is not None else []
    limit = None if line.limit is None else line.limit * curve.rows[0]["gpus"]
    if limit is not None and line.points > 2 and found.highest_rate < FAR * limit and not found.last:
        said.append(f"the highest is {100 * found.highest_rate / limit:.0f} % of what the line of its updates goes to")
    return said
