"""Figures of the frame as cells, the table of all configurations, and files that hold every column."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from scalebench.analysis.columns import HEADS, TOKEN_RATES, estimate_of
from scalebench.analysis.identity import KEY_VALUE_COLUMNS
from scalebench.analysis.load import Survey, survey
from scalebench.analysis.scaling_curves import plain_rows
from scalebench.analysis.time_to_target import make_training_table as make_training_frame
from scalebench.analysis.verdicts import explain_no_verdict
from scalebench.core import units
from scalebench.core.stats.estimates import Estimate
from scalebench.core.untrusted import clean_text
from scalebench.report import document as doc
from scalebench.report.flag_text import describe_intervals, describe_row
from scalebench.report.report_data import HomeFolder, ReportData, read_operations

if TYPE_CHECKING:
    import pandas as pd

SORT_COLUMNS = ["model", "dataset", "hardware", "scaling", "strategy", "gpus", "repeat", "started_at"]
SHARED_COLUMNS = ("model", "hardware", "scaling")  # shown once, above the table, if all rows agree
# Shown as columns if rows differ in them, and otherwise not at all.
DIFFERING_COLUMNS = (
    "dataset feed prefetch batch_per_device sequence_length model_params precision data_format compile bind layout "
    "transports optimizer learning_rate_rule base_batch learning_rate weight_decay accumulate target seed"
).split()
# Likewise; null, which is not a choice, counts as a value.
CHOICE_COLUMNS = ("model_options", "device_ids", "environment", "train_options", "other_settings")

THROUGHPUT_HEAD, TOKENS_HEAD = HEADS[doc.THROUGHPUT], HEADS["tokens_per_s"]
STATUS_CHIPS: dict[str, Literal["good", "off"]] = {"ok": "good", "unsupported": "off"}  # others are bad
FORMULA_START = re.compile(r"\s*[=+\-@\uff1d\uff0b\uff0d\uff20]|\s")  # also full-width, which spreadsheets take as well
SETTING_START = re.compile(r"\s+(?=[\w.]+=)")  # of the next `key=value`; a value may have spaces
CellMaker = Callable[[dict[str, Any]], doc.Cell]


class Kind(NamedTuple):
    """How the figures of a column look."""

    unit: str  # of its axis
    show: Callable[[Any], str]  # of a figure; also of an estimate where the column has limits


format_whole_percent = partial(units.format_percent, decimals=0)
# By the beginning or the ending of a column's name; the first that fits.
KINDS = {
    doc.THROUGHPUT: Kind("", "{:,.0f}".format),
    "tokens_per_s": Kind("", "{:,.0f}".format),
    "speedup_": Kind("", units.format_ratio),
    "efficiency_": Kind("share", format_whole_percent),
    "overhead_share": Kind("share", format_whole_percent),
    "mfu": Kind("share", format_whole_percent),
    "_bytes_per_s": Kind("bytes/s", lambda value: f"{units.format_bytes(value)}/s"),
    "_bytes_per_step": Kind("bytes", units.format_bytes),
    "_bytes": Kind("bytes", units.format_bytes),
    "_bytes_max": Kind("bytes", units.format_bytes),
    "_mhz_mean": Kind("", "{:,.0f} MHz".format),
    "_mhz_min": Kind("", "{:,.0f} MHz".format),
    "_w_mean": Kind("", "{:,.0f} W".format),
    "_util_mean": Kind("share", units.format_percent),
    "cpu_util_": Kind("share", units.format_percent),
    "_share": Kind("share", units.format_percent),
    "_s": Kind("s", units.format_seconds),
    "step_s_": Kind("s", units.format_seconds),
    "hours_per_epoch": Kind("device-hours", units.format_device_hours),
    "hours_to_target": Kind("device-hours", units.format_device_hours),
    "_j_per_epoch": Kind("J", lambda value: f"{units.format_number(value)} J"),
    "_j_to_target": Kind("J", lambda value: f"{units.format_number(value)} J"),
}


@cache
def find_kind(column: str) -> Kind:
    kinds = (kind for part, kind in KINDS.items() if column.startswith(part) or column.endswith(part))
    return next(kinds, Kind("", format_plain))


def format_plain(value: Any) -> str:
    """Return `1,234` for a count, `0.0005` for another figure, and `yes` or `no`."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def make_cell(row: Mapping[str, Any], column: str) -> doc.Cell:
    """Show any column of the frame, with its limits if it has some; empty where nothing was measured."""
    value = row.get(column)
    if value is None or isinstance(value, str):
        return doc.make_cell(value or "")
    if column == doc.THROUGHPUT:
        return doc.make_cell(format_throughput(row), value)
    figure = estimate_of(row, column)
    has_limits = figure is not None and figure.has_limits
    return doc.make_cell(find_kind(column).show(figure if has_limits else value), value)


class Footnotes:
    """Remarks below a table, each with a mark: a, b, ..., z, aa, ab."""

    def __init__(self) -> None:
        self._marks: dict[str, str] = {}

    def mark(self, remarks: Sequence[str]) -> list[str]:
        """Return the marks of these remarks, in their order below the table; equal remarks have one mark."""
        for remark in remarks:
            self._marks.setdefault(remark, _make_mark(len(self._marks)))
        return [mark for remark, mark in self._marks.items() if remark in remarks]

    def make_cell(self, remarks: Sequence[str]) -> doc.Cell:
        """Make a cell of marks, which shows the remarks on demand."""
        text = "; ".join(remarks)
        return doc.Cell(" ".join(self.mark(remarks)), text or None, note=text)

    def list_notes(self) -> list[tuple[str, str]]:
        """Return each mark and its remark."""
        return [(mark, remark) for remark, mark in self._marks.items()]


def _make_mark(number: int) -> str:
    before, letter = divmod(number, 26)
    return (_make_mark(before - 1) if before else "") + chr(ord("a") + letter)


def write_tables(folder: Path, runs: Survey | None = None) -> pd.DataFrame:
    """Write results.csv and results.parquet with all readable runs below `folder` into it, and return their frame.

    Runs that measured collective operations or bandwidths also leave collectives and bandwidth in both formats.
    Where runs are repeated, pooled has a row for each configuration, and where runs train to a stop, trainings has a
    row for each training, over its seeds, likewise. `runs` are the runs of the folder if they have been read already.
    """
    runs = runs or survey(folder)
    tables = {"results": runs.frame}
    if (runs.pooled["repeats"] > 1).any():
        tables["pooled"] = runs.pooled
    if runs.frame["training_id"].notna().any():
        tables["trainings"] = make_training_frame(runs.frame)
    for name, table in (tables | name_operation_tables(*read_operations(runs.probe_folders))).items():
        table.to_csv(folder / f"{name}.csv", index=False)
        table.to_parquet(folder / f"{name}.parquet", index=False)
    return runs.frame


def name_operation_tables(operations: pd.DataFrame, transfers: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the frames that have rows, by the names of their files."""
    tables = {"collectives": operations, "bandwidth": transfers}
    return {name: table for name, table in tables.items() if len(table)}


def write(report_data: ReportData, path: Path) -> None:
    """Write the runs of a report to `path`, and what some measured on request beside it: report.collectives.csv."""
    write_spreadsheet(report_data.frame, path, report_data.full_paths)
    for name, frame in name_operation_tables(*report_data.operations).items():
        write_spreadsheet(frame, path.with_name(f"{path.stem}.{name}.csv"), report_data.full_paths)


def write_spreadsheet(frame: pd.DataFrame, path: Path, full_paths: bool = False) -> None:
    """Write a frame as CSV for a spreadsheet: texts that it would take for a formula begin with an apostrophe, and the
    home folder is `~` unless `full_paths`. `write_tables` writes the exact texts."""
    hide = str if full_paths else HomeFolder().hide

    def neutralise(text: str) -> str:
        text = hide(clean_text(text))
        return f"'{text}" if FORMULA_START.match(text) else text

    texts = {name: frame[name].map(neutralise, na_action="ignore") for name in frame.select_dtypes("string")}
    path.parent.mkdir(parents=True, exist_ok=True)
    frame.assign(**texts).to_csv(path, index=False)


def make_configuration_table(frame: pd.DataFrame, baseline_name: str | None = None) -> doc.Table:
    """Make the table of strategies by devices: throughput with interval, status and remarks, overhead, speedup,
    efficiency, model FLOPs utilization, epoch time.

    In a frame of pooled repeats it also has their number, if there are several. `baseline_name` is the label of the
    baseline that the user named, whose speedups have columns of their own.
    """
    heading, varying = split_shared_columns(frame)
    labels, figures, notes = [*varying, "strategy"], make_figure_columns(frame, varying, baseline_name), Footnotes()
    # Status and remarks come before most figures, so that they are visible before the table is scrolled.
    first = {name: figures.pop(name) for name in (doc.DEVICES, THROUGHPUT_HEAD)}
    items, rows = drop_common_settings(plain_rows(frame.sort_values(SORT_COLUMNS))), []
    for row in items:
        cells = [doc.make_cell(format_setting(row[name])) for name in labels] + [make(row) for make in first.values()]
        cells.append(doc.Cell(row["status"], row["status"], chip=STATUS_CHIPS.get(row["status"], "bad")))
        cells.append(notes.make_cell(list_remarks(row, explains=True)))
        rows.append(doc.Row([*cells, *(make(row) for make in figures.values())], doc.get_tags(row)))
    heads, numeric = [*labels, *first, "status", "remarks", *figures], frozenset([*first, *figures])
    caption = doc.join_sentences(heading, describe_intervals(items))
    return doc.Table("configurations", "Configurations", heads, rows, numeric, caption, notes.list_notes())


def make_figure_columns(frame: pd.DataFrame, varying: list[str], baseline_name: str | None) -> dict[str, CellMaker]:
    """Return the columns that hold figures, as far as any row has one, by their heads."""
    columns = {doc.DEVICES: "gpus"}
    columns |= {name: name for name in ("nodes", "repeats") if name in frame and (frame[name] > 1).any()}
    columns |= {THROUGHPUT_HEAD: doc.THROUGHPUT, TOKENS_HEAD: "tokens_per_s", "overhead at 1": "overhead_share"}
    kinds = {"bare": "bare", "self": "self", **({"given": f"over {baseline_name}"} if baseline_name else {})}
    columns |= {f"{figure} {text}": f"{figure}_{kind}" for figure in ("speedup", "efficiency")
                for kind, text in kinds.items()}  # fmt: skip
    columns |= {"MFU": "mfu", "epoch": "epoch_s"}
    optional = [
        name for head, name in columns.items() if head.startswith((TOKENS_HEAD, "overhead", "MFU")) or "_given" in name
    ]
    makers: dict[str, CellMaker] = {
        head: partial(make_cell, column=name)
        for head, name in columns.items()
        if name in frame and (name not in optional or frame[name].notna().any())
    }
    if "overhead at 1" in makers:  # other rows than the one that it was measured on would only repeat it
        makers["overhead at 1"] = lambda row: make_cell(
            row if row["run_id"] == row["baseline_self_id"] else {}, "overhead_share"
        )
    if {"feed", "prefetch"} & set(varying) and frame["data_share"].notna().any():
        makers["data"] = _make_data_cell
    return makers


def _make_data_cell(row: dict[str, Any]) -> doc.Cell:
    """Show the share of a step that loading its batch adds to the device's work, with limits: `2.0 % [1.6, 2.4]`."""
    cell, step_s = make_cell(row, "data_share"), row["step_s"]
    limits = [f"{100 * row[name] / step_s:z.1f}" for name in ("data_s_low", "data_s_high") if row[name] and step_s]
    return doc.Cell(f"{cell.text} [{', '.join(limits)}]", cell.value) if cell.text and len(limits) == 2 else cell


def split_shared_columns(frame: pd.DataFrame) -> tuple[str, list[str]]:
    """Return what all rows share, as text, and the columns in which rows of one strategy and device count differ, as a
    sweep over them does."""
    same = {name: frame[name].iloc[0] for name in SHARED_COLUMNS if frame[name].nunique() == 1}
    group = (*SHARED_COLUMNS, "gpus")
    rows = plain_rows(frame[[*group, "strategy", "options", *DIFFERING_COLUMNS, *CHOICE_COLUMNS]])

    def differs(name: str, keys: tuple[str, ...], null_is_a_value: bool = True) -> bool:
        values: dict[tuple[Any, ...], set[Any]] = {}
        for row in rows:
            if null_is_a_value or row[name] is not None:
                values.setdefault(tuple(row[key] for key in keys), set()).add(row[name])
        return any(len(of_group) > 1 for of_group in values.values())

    names = [name for name in SHARED_COLUMNS if name not in same]
    # Position embeddings follow from the length, and the batch of a user's script from its arguments.
    sources = {"model_params": ("sequence_length",), "batch_per_device": ("strategy", "options")}
    for name in DIFFERING_COLUMNS:
        keys = (*group, "model_options", *sources.get(name, ()))
        names += [name] if differs(name, keys, null_is_a_value=False) else []
    names += [name for name in CHOICE_COLUMNS if differs(name, group)]
    # Each strategy has its own options, which say nothing beside another strategy's; null means default options.
    names += ["options"] if differs("options", (*group, "strategy")) else []
    return ", ".join(f"{name} {value}" for name, value in same.items()), names


def drop_common_settings(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows without the options that all rows of a strategy and model share, and without the environment
    variables and settings of training that all rows of a model share: they distinguish no rows."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        for name in KEY_VALUE_COLUMNS:
            strategy = row["strategy"] if name == "options" else None
            groups.setdefault((name, strategy, *(row[shared] for shared in SHARED_COLUMNS)), []).append(row)
    for (name, *_), members in groups.items():
        settings = [split_settings(row[name]) for row in members]
        common = set.intersection(*map(set, settings))
        for row, own in zip(members, settings, strict=True):
            row[name] = " ".join(setting for setting in own if setting not in common) or None
    return rows


def split_settings(text: str | None) -> list[str]:
    """Split `loop=fit sizes=[1, 2]` into its settings."""
    return SETTING_START.split(text) if text else []


def format_setting(value: Any) -> str:
    """Return `0.000473`, not the seventeen digits of a learning rate that a search has drawn."""
    return f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)


def format_throughput(row: Mapping[str, Any], unit: str = "", notes_repeat: bool = True) -> str:
    """Return `12,345 ± 0.8 %`, the figure alone if there is no interval, and nothing if none was measured.

    An interval over blocks misses what differs between starts, so it is `± 0.8 % within this repeat` if
    `notes_repeat`. With a unit tokens/s follow, where samples are sequences of them.
    """
    value, low, high = (row[name] for name in (doc.THROUGHPUT, "throughput_low", "throughput_high"))
    if value is None:
        return ""
    figure = f"{value:,.0f}{unit}" if value >= 100 else f"{value:.3g}{unit}"
    tokens = f" ({format_tokens(row)})" if unit and row.get("tokens_per_s") is not None else ""
    if low is None or high is None:
        return f"{figure}{tokens}"
    within = " within this repeat" if notes_repeat and row["interval_over"] == "blocks" else ""
    return f"{figure} ± {100 * (high - low) / 2 / value:.1f} %{within}{tokens}"


def format_tokens(row: Mapping[str, Any]) -> str:
    """Return `790,080 tokens/s`, and those of a device where there are several; empty where samples are no
    sequences."""
    if row.get("tokens_per_s") is None:
        return ""
    total, each = (find_kind(name).show(row[name]) for name in TOKEN_RATES)
    return f"{total} tokens/s" if total == each else f"{total} tokens/s, {each} per device"


def explain_doubt(ratio: Estimate, *rows: Mapping[str, Any]) -> str:
    """Return why the ratio of these rows decides nothing; empty if it does."""
    if not ratio.has_limits:
        return f"not sure: {explain_no_verdict(*rows) or 'no interval'}"
    return "no difference resolved" if ratio.low <= 1 <= ratio.high else ""


def list_remarks(row: dict[str, Any], explains: bool = False) -> list[str]:
    """List why a run is not ok, or what to know about one that is; with `explains`, what its flags mean."""
    if row["status"] != "ok":
        return [row["reason"] or ""]
    missing = find_missing_baselines(row)
    return [*describe_row(row, explains), *([f"no {' and '.join(missing)} baseline"] if missing else [])]


BASELINE_COLUMNS = ["status", "strategy", "max_batch_per_device", "baseline_bare_id", "baseline_self_id"]


def find_missing_baselines(row: dict[str, Any]) -> list[str]:
    """List the baselines, bare and self, that a successful run lacks. A largest-batch search needs none."""
    if row["status"] != "ok" or row["max_batch_per_device"] is not None:
        return []
    kinds = ("self",) if row["strategy"] == "script" else ("bare", "self")  # a user's program has no other
    return [kind for kind in kinds if row[f"baseline_{kind}_id"] is None]
