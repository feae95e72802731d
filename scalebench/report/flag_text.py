"""What a flag of a row means to its reader, and what to do about it. Layer 3. docs/record.md has what raises each.

What flags and intervals say, in words people read. Layer 3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

NOT_STEADY = "not_steady"  # a series that is told unsteady without a flag that says why

ADVICE = {
    "over_in_warmup": (
        "The training came to its stop before the pace of its updates had settled, so there is no throughput. Its "
        "curve stands; a later train.stop, or a smaller measure.warmup_steps, gives both."
    ),
    "oversubscribed": (
        "More threads than cores: ranks wait for each other's cores, which is no property of the strategy. "
        "Use fewer devices, or a machine with more cores."
    ),
    "approximate": (
        "Its updates are not those of the baseline on the same samples, by the strategy's own word (approximate in its "
        "YAML), so that its speed is that of another training. Compare what it reaches, too: train.stop.target."
    ),
    "foreign_process": (
        "Another program computed on a GPU of the run: its figures are of a shared GPU. End that program "
        "(nvidia-smi names it), and run again."
    ),
    "busy_machine": (
        "Other programs used the cores meanwhile, and what is measured may be slower for it. Run again when "
        "the machine is quiet, or with measure.repeats=3 to see how much it matters."
    ),
    "hot_at_start": (
        "A GPU was already near the temperature at which it slows itself down. Let the machine cool first "
        "(measure.cool_down_s), and look at its air flow."
    ),
    "throttled": (
        "Something held a GPU's clocks back while it was measured (throttle_reasons): power limit, heat or "
        "brake. Compare clocks and power of the runs, or set one lower clock for all (nvidia-smi -lgc)."
    ),
    "unequal_clocks": (
        "The GPUs ran at different clocks, and the slowest sets the pace of all. Set one clock for all "
        "(nvidia-smi -lgc), or choose alike GPUs with hardware.device_ids."
    ),
    "swapping": (
        "The machine moved memory to or from disk while it was measured. Use smaller batches or fewer "
        "workers, or end what else needs memory."
    ),
    "gpu_lost": (
        "A GPU fell off the bus: its figures end there. Look into the kernel's log (dmesg, Xid), and have the "
        "card checked."
    ),
    "unequal_nodes": (
        "The nodes are of different kinds, and the slowest sets the pace of all. Take nodes of one kind "
        "(hardware.slurm.constraint, hardware.hosts)."
    ),
    "clocks_differ": (
        "The clocks of the nodes are more than 0.1 s apart. No figure suffers, for each is of one clock, but times "
        "in their logs and files do not compare. Have them kept by NTP or chrony."
    ),
    "no_interval": (
        "There is no interval, so nothing says how sure the figure is: too few blocks, or two launches. "
        "Measure longer (measure.max_s), or with measure.repeats=3."
    ),
    "target_missed": (
        "The interval is wider than was asked for (measure.target). Measure longer (measure.max_s), or on a "
        "quieter machine."
    ),
    "warmup_left": (
        "The first measured blocks were still warm-up, and are left out of the figures. A longer warm-up "
        "(measure.warmup_max_s) takes them out beforehand."
    ),
    "drifts": (
        "The speed changed while it was measured, so that one figure does not describe it. Look at the clocks "
        "and temperatures of the run, and measure longer (measure.min_s)."
    ),
    "superlinear": (
        "More than N times as fast on N devices. Ask why before believing it: caches that now suffice, or a "
        "baseline that was slow for another reason."
    ),
    "superlinear_within_noise": (
        "More than N times as fast on N devices, but the interval holds N times too: take it for linear."
    ),
    NOT_STEADY: "Its series is not steady, so that one figure does not describe it. Measure longer (measure.min_s).",
}


def words(flag: str) -> str:
    """As tables show it."""
    return flag.replace("_", " ")


def advice(flag: str) -> str:
    """A sentence or two; of a flag of a later version that nothing is known here."""
    return ADVICE.get(
        flag, "This version of scalebench does not know this flag: docs/record.md of the one that ran it does."
    )


UNSTEADY = ("warmup_left", "drifts")  # flags that say why a series is not steady


def words_words(row: dict[str, Any]) -> list[str]:
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
