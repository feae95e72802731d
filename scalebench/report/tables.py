"""The frame for people: a terminal table, and files that hold every column. Layer 3."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf
from rich import box
from rich.table import Table
from rich.text import Text

from scalebench.analysis.load import Survey, survey
from scalebench.analysis.time_to_target import make_training_table as trainings
from scalebench.report.flag_text import intervals, number, repeats, text, words_words

if TYPE_CHECKING:
    import pandas as pd

ORDER = ["model", "dataset", "hardware", "scaling", "strategy", "gpus", "repeat", "started_at"]
SHARED = ("model", "hardware", "scaling")  # told once, above the table, when all rows agree
# Told in a column of their own when rows differ in them, and else not at all.
DIFFERING = (
    *("dataset", "feed", "prefetch", "batch_per_device", "model_params", "precision", "data_format"),
    *("bind", "layout", "transports", "optimizer", "learning_rate_rule", "base_batch", "learning_rate"),
    *("weight_decay", "accumulate", "target", "seed"),
)
CHOSEN = ("device_ids", "environment", "train_options")  # likewise; null, which is no choice, is a value of its own


def write_tables(folder: Path, found: Survey | None = None) -> pd.DataFrame:
    """results.csv and results.parquet of all runs below `folder` that can be read, beside them; where runs are
    repeated, also pooled.csv and pooled.parquet with a row for each configuration; where runs train to a stop, also
    trainings.csv and trainings.parquet with a row for each training, over its seeds. Gives the first. `found` is what
    somebody has read there already."""
    found = found or survey(folder)
    frame, together = found.frame, found.pooled
    tables = {"results": frame} | ({"pooled": together} if (together["repeats"] > 1).any() else {})
    if frame["training_id"].notna().any():
        tables["trainings"] = trainings(frame)
    for name, table in tables.items():
        table.to_csv(folder / f"{name}.csv", index=False)
        table.to_parquet(folder / f"{name}.parquet", index=False)
    return frame


def summary(frame: pd.DataFrame, given: str | None = None) -> Table:
    """Strategy by devices: throughput with interval, overhead, speedup, efficiency, epoch time, status and reason.

    Of a frame of pooled launches also their number, where there are several; below it what the intervals are over.
    `given` is the baseline that was asked for, in words: its speedups have a column of their own.
    """
    (head, varying), foot = shared(frame), intervals(frame)
    table = Table(
        title=Text(head) if head else None,
        caption=Text(foot) if foot else None,
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        collapse_padding=True,
    )
    for name in [*varying, "strategy"]:
        table.add_column(name)
    overheads = ["overhead at 1"] if frame["overhead_share"].notna().any() else []  # a bare strategy alone has none
    several = ["nodes"] if (frame["nodes"] > 1).any() else []
    launches = ["launches"] if (repeats(frame) > 1).any() else []
    over_given = [f"speedup over {given}"] if given is not None else []
    scaled = ("speedup bare", "speedup self", *over_given, "efficiency self", "epoch")
    fed = ["data"] if {"feed", "prefetch"} & set(varying) and frame["data_share"].notna().any() else []
    for name in ("gpus", *several, *launches, "samples/s (95 %)", *overheads, *scaled, *fed):
        table.add_column(Text(name), justify="right")
    for name in ("status", "remarks"):
        table.add_column(name)
    for row in frame.sort_values(ORDER).to_dict("records"):
        cells = [setting(row[name]) for name in [*varying, "strategy", "gpus"]]
        cells += [text(row["nodes"])] if several else []
        cells += [text(row["repeats"])] if launches else []
        cells += [throughput(row), overhead(row)] if overheads else [throughput(row)]
        cells += [ratio(row, "speedup_bare"), ratio(row, "speedup_self")]
        cells += [ratio(row, "speedup_given")] if over_given else []
        cells += [percent(row, "efficiency_self"), seconds(row["epoch_s"]), *([data(row)] if fed else [])]
        cells += [text(row["status"]), remarks(row)]
        # Text, not str: rich would take brackets in a reason for markup.
        table.add_row(*map(Text, cells))
    return table


def setting(value: Any) -> str:
    """`0.000473`, not the seventeen digits of a rate that was drawn."""
    return f"{value:.4g}" if isinstance(value, float) and value == value else text(value)


def shared(frame: pd.DataFrame) -> tuple[str, list[str]]:
    """(what all rows share, in words; the columns that tell rows of one strategy and number of devices apart)."""
    same = {name: frame[name].iloc[0] for name in SHARED if frame[name].nunique() == 1}
    head = ", ".join(f"{name} {value}" for name, value in same.items())
    return head, [name for name in SHARED if name not in same] + _differing(frame)


def _differing(frame: pd.DataFrame) -> list[str]:
    """What rows of one model, scaling and number of devices differ in, as a sweep over it makes them."""
    same = ["model", "hardware", "scaling", "gpus"]
    found = [name for name in DIFFERING if (frame.groupby(same, dropna=False)[name].nunique() > 1).any()]
    found += [name for name in CHOSEN if (frame.groupby(same, dropna=False)[name].nunique(dropna=False) > 1).any()]
    # Strategies have options of their own, which say nothing beside another strategy's; null: as they come.
    options = frame.groupby([*same, "strategy"], dropna=False)["options"].nunique(dropna=False)
    return [*found, "options"] if (options > 1).any() else found


def throughput(row: dict[str, Any]) -> str:
    """`12,345 ± 0.8 %`; without an interval the figure alone, and nothing where nothing was measured."""
    value, low, high = (number(row[k]) for k in ("throughput_samples_per_s", "throughput_low", "throughput_high"))
    if value is None:
        return ""
    figure = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    return figure if low is None or high is None else f"{figure} ± {100 * (high - low) / 2 / value:.1f} %"


def ratio(row: dict[str, Any], name: str) -> str:
    """`1.86 [1.82, 1.90]`"""
    value, low, high = (number(row[k]) for k in (name, f"{name}_low", f"{name}_high"))
    if value is None:
        return ""
    return f"{value:.2f}" if low is None or high is None else f"{value:.2f} [{low:.2f}, {high:.2f}]"


def overhead(row: dict[str, Any]) -> str:
    """`17 % [15, 19]` in the row of the one device that it was measured on; more devices would only repeat it."""
    return percent(row, "overhead_share") if text(row["run_id"]) == text(row["baseline_self_id"]) else ""


def percent(row: dict[str, Any], name: str) -> str:
    """`93 % [91, 95]`"""
    value, low, high = (number(row[k]) for k in (name, f"{name}_low", f"{name}_high"))
    if value is None:
        return ""
    share = f"{100 * value:z.0f} %"  # z: no "-0"
    return share if low is None or high is None else f"{share} [{100 * low:z.0f}, {100 * high:z.0f}]"


def data(row: dict[str, Any]) -> str:
    """`2.0 % [1.6, 2.4]`: the share of an update that its batch costs beside the device's work."""
    value, step_s = number(row["data_share"]), number(row["step_s"])
    ends = [number(row[f"data_s_{end}"]) for end in ("low", "high")]
    if value is None:
        return ""
    share = f"{100 * value:z.1f} %"
    known = [f"{100 * end / step_s:z.1f}" for end in ends if end is not None and step_s]
    return f"{share} [{', '.join(known)}]" if len(known) == len(ends) else share


def seconds(value: Any) -> str:
    known = number(value)
    return "" if known is None else f"{known:,.0f} s" if known >= 1000 else f"{known:.3g} s"


def remarks(row: dict[str, Any]) -> str:
    """Why a run is not ok, or what to know of one that is."""
    if row["status"] != "ok":
        return text(row["reason"])
    found = words_words(row)
    if missing := missing_baselines(row):
        found.append(f"no {' and '.join(missing)} baseline")
    return ", ".join(found)


def missing_baselines(row: dict[str, Any]) -> list[str]:
    """Of a run that went well: those of bare and self that are not among the rows. The largest batch that fits is
    compared with nothing."""
    if row["status"] != "ok" or number(row["max_batch_per_device"]) is not None:
        return []
    return [kind for kind in ("bare", "self") if text(row[f"baseline_{kind}_id"]) == ""]


def baseline_commands(frame: pd.DataFrame) -> list[str]:
    """The sweeps that measure the rows without a baseline together with what they are compared with."""
    rows = [row for row in frame.sort_values(ORDER).to_dict("records") if missing_baselines(row)]
    return list(dict.fromkeys(map(_baseline_command, rows)))


def _baseline_command(row: dict[str, Any]) -> str:
    overrides = Path(str(row["path"])) / ".hydra" / "overrides.yaml"  # what the user typed, where Hydra kept it
    chosen = [f"strategy={row['strategy']}", f"gpus={row['gpus']}"]
    if overrides.is_file():
        typed = [str(word) for word in OmegaConf.load(overrides)]
        left_out = ("hydra.", "repeat=") if _unrolled(overrides.with_name("config.yaml")) else ("hydra.",)
        typed = [word for word in typed if not word.startswith(left_out)]
        named = {word.partition("=")[0] for word in typed}
        chosen = typed + [word for word in chosen if word.partition("=")[0] not in named]
    return f"python -m scalebench --multirun {shlex.join(chosen)}"


def _unrolled(config: Path) -> bool:
    """Whether measure.repeats gave the run its number, as it will again."""
    return config.is_file() and (OmegaConf.select(OmegaConf.load(config), "measure.repeats") or 1) > 1
