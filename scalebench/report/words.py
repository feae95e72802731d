"""What flags and intervals say, in words people read. Layer 3."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

UNSTEADY = ("warmup_left", "drifts")  # flags that say why a series is not steady


def words(row: dict[str, Any]) -> list[str]:
    """What to know of a row that went well: its flags, a series that is not steady, differences that are none.

    A difference from a baseline is not resolved where the 95 % interval of the speedup holds 1, its limits included. A
    row is not told so of itself, nor twice where one run is both baselines, nor where there is no interval.
    """
    flags = text(row["flags"]).split()
    found = [flag.replace("_", " ") for flag in flags]
    if text(row["steady"]) == "False" and not set(flags) & set(UNSTEADY):
        found.append("not steady")
    bare, own, me = (text(row[name]) for name in ("baseline_bare_id", "baseline_self_id", "run_id"))
    if bare not in ("", me) and _holds_one(row, "speedup_bare"):
        found.append("no difference from bare resolved")
    if own not in ("", me, bare) and _holds_one(row, "speedup_self"):
        found.append("no difference from one device resolved")
    return found


def _holds_one(row: dict[str, Any], name: str) -> bool:
    """Whether there is an interval with 1 in it; an upper limit that the data cannot give is null."""
    low, high = number(row[f"{name}_low"]), number(row[f"{name}_high"])
    return low is not None and low <= 1 and (high is None or high >= 1)


def intervals(frame: pd.DataFrame) -> str:
    """What the intervals of these rows are over; empty where there are none."""
    launches = repeats(frame)
    over = frame["interval_over"]
    found = []
    if (over == "repeats").any():
        least, most = launches[over == "repeats"].min(), launches[over == "repeats"].max()
        found.append(f"over {least} launches" if least == most else f"over {least} to {most} launches")
    if (over == "blocks").any():
        found.append("over blocks of one launch: they miss what differs between launches (measure.repeats=3 shows it)")
    if ((launches == 2) & (frame["status"] == "ok")).any():
        found.append("two launches give none (three do)")
    return f"intervals: 95 %, {'; '.join(found)}" if found else ""


def repeats(frame: pd.DataFrame) -> pd.Series[Any]:
    """Launches behind each row; 1 in a frame of single runs."""
    import pandas as pd

    return frame["repeats"] if "repeats" in frame else pd.Series(1, index=frame.index)


def number(value: Any) -> float | None:
    return None if text(value) == "" else float(value)


def text(value: Any) -> str:
    return "" if value is None or str(value) in ("<NA>", "nan") else str(value)
