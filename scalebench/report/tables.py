"""The frame for people: a terminal table, results.csv and results.parquet. Layer 3."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf
from rich import box
from rich.table import Table
from rich.text import Text

from scalebench.frame import load

if TYPE_CHECKING:
    import pandas as pd

ORDER = ["model", "dataset", "hardware", "scaling", "strategy", "gpus", "repeat", "started_at"]
SHARED = ("model", "hardware", "scaling")  # told once, above the table, when all rows agree
# Told in a column of their own when rows differ in them, and else not at all.
DIFFERING = ("dataset", "feed", "prefetch", "batch_per_device", "model_params", "precision", "data_format")


def write_tables(folder: Path) -> pd.DataFrame:
    """results.csv and results.parquet of all runs below `folder`, beside them."""
    frame = load(folder)
    frame.to_csv(folder / "results.csv", index=False)
    frame.to_parquet(folder / "results.parquet", index=False)
    return frame


def summary(frame: pd.DataFrame) -> Table:
    """Strategy by devices: throughput with interval, overhead, speedup, efficiency, epoch time, status and reason."""
    shared = {name: frame[name].iloc[0] for name in SHARED if frame[name].nunique() == 1}
    varying = [name for name in SHARED if name not in shared] + _differing(frame)
    head = ", ".join(f"{name} {value}" for name, value in shared.items())
    table = Table(title=Text(head) if head else None, title_justify="left", box=box.SIMPLE_HEAD, collapse_padding=True)
    for name in [*varying, "strategy"]:
        table.add_column(name)
    overheads = ["overhead at 1"] if frame["overhead_share"].notna().any() else []  # a bare strategy alone has none
    scaled = ("speedup bare", "speedup self", "efficiency self", "epoch")
    for name in ("gpus", "samples/s (95 %)", *overheads, *scaled):
        table.add_column(name, justify="right")
    for name in ("status", "remarks"):
        table.add_column(name)
    for row in frame.sort_values(ORDER).to_dict("records"):
        cells = [_text(row[name]) for name in [*varying, "strategy", "gpus"]]
        cells += [throughput(row), overhead(row)] if overheads else [throughput(row)]
        cells += [ratio(row, "speedup_bare"), ratio(row, "speedup_self")]
        cells += [percent(row, "efficiency_self"), seconds(row["epoch_s"]), _text(row["status"]), remarks(row)]
        # Text, not str: rich would take brackets in a reason for markup.
        table.add_row(*map(Text, cells))
    return table


def _differing(frame: pd.DataFrame) -> list[str]:
    """What rows of one model, scaling and number of devices differ in, as a sweep over it makes them."""
    same = ["model", "hardware", "scaling", "gpus"]
    found = [name for name in DIFFERING if (frame.groupby(same, dropna=False)[name].nunique() > 1).any()]
    # Strategies have options of their own, which say nothing beside another strategy's; null: as they come.
    options = frame.groupby([*same, "strategy"], dropna=False)["options"].nunique(dropna=False)
    return [*found, "options"] if (options > 1).any() else found


def throughput(row: dict[str, Any]) -> str:
    """`12,345 ± 0.8 %`; without an interval the figure alone, and nothing where nothing was measured."""
    value, low, high = (_number(row[k]) for k in ("throughput_samples_per_s", "throughput_low", "throughput_high"))
    if value is None:
        return ""
    figure = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    return figure if low is None or high is None else f"{figure} ± {100 * (high - low) / 2 / value:.1f} %"


def ratio(row: dict[str, Any], name: str) -> str:
    """`1.86 [1.82, 1.90]`"""
    value, low, high = (_number(row[k]) for k in (name, f"{name}_low", f"{name}_high"))
    if value is None:
        return ""
    return f"{value:.2f}" if low is None or high is None else f"{value:.2f} [{low:.2f}, {high:.2f}]"


def overhead(row: dict[str, Any]) -> str:
    """`17 % [15, 19]` in the row of the one device that it was measured on; more devices would only repeat it."""
    return percent(row, "overhead_share") if _text(row["run_id"]) == _text(row["baseline_self_id"]) else ""


def percent(row: dict[str, Any], name: str) -> str:
    """`93 % [91, 95]`"""
    value, low, high = (_number(row[k]) for k in (name, f"{name}_low", f"{name}_high"))
    if value is None:
        return ""
    share = f"{100 * value:z.0f} %"  # z: no "-0"
    return share if low is None or high is None else f"{share} [{100 * low:z.0f}, {100 * high:z.0f}]"


def seconds(value: Any) -> str:
    number = _number(value)
    return "" if number is None else f"{number:.3g} s"


def remarks(row: dict[str, Any]) -> str:
    """Why a run is not ok, or what to know of one that is."""
    if row["status"] != "ok":
        return _text(row["reason"])
    words = _text(row["flags"]).split()
    if missing := missing_baselines(row):
        words.append(f"no {' and '.join(missing)} baseline")
    return ", ".join(words)


def missing_baselines(row: dict[str, Any]) -> list[str]:
    """Of a run that went well: those of bare and self that are not among the rows."""
    if row["status"] != "ok":
        return []
    return [kind for kind in ("bare", "self") if _text(row[f"baseline_{kind}_id"]) == ""]


def baseline_commands(frame: pd.DataFrame) -> list[str]:
    """The sweeps that measure the rows without a baseline together with what they are compared with."""
    rows = [row for row in frame.sort_values(ORDER).to_dict("records") if missing_baselines(row)]
    return list(dict.fromkeys(map(_baseline_command, rows)))


def _baseline_command(row: dict[str, Any]) -> str:
    overrides = Path(str(row["path"])) / ".hydra" / "overrides.yaml"  # what the user typed, where Hydra kept it
    words = [f"strategy={row['strategy']}", f"gpus={row['gpus']}"]
    if overrides.is_file():
        typed = [str(word).replace("'null'", "null") for word in OmegaConf.load(overrides)]
        typed = [word for word in typed if not word.startswith("hydra.")]
        named = {word.partition("=")[0] for word in typed}
        words = typed + [word for word in words if word.partition("=")[0] not in named]
    return f"python -m scalebench --multirun {shlex.join(words)}"


def _number(value: Any) -> float | None:
    return None if _text(value) == "" else float(value)


def _text(value: Any) -> str:
    return "" if value is None or str(value) in ("<NA>", "nan") else str(value)
