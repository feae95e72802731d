"""Figures of the frame as cells, the table of all configurations, and files that hold every column."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from scalebench.analysis.identity import KEY_VALUE_COLUMNS
from scalebench.analysis.load import Survey, survey
from scalebench.analysis.scaling_curves import plain_rows
from scalebench.analysis.time_to_target import make_training_table as make_training_frame
from scalebench.analysis.verdicts import explain_no_verdict
from scalebench.core.stats.estimates import Estimate
from scalebench.core.untrusted import clean_text
from scalebench.report import document as doc
from scalebench.report.flag_text import describe_intervals, describe_row, to_number, to_text
from scalebench.report.report_data import HomeFolder, read_operations

if TYPE_CHECKING:
    import pandas as pd

SORT_COLUMNS = ["model", "dataset", "hardware", "scaling", "strategy", "gpus", "repeat", "started_at"]
SHARED_COLUMNS = ("model", "hardware", "scaling")  # shown once, above the table, if all rows agree
# Shown as columns if rows differ in them, and otherwise not at all.
DIFFERING_COLUMNS = (
    *("dataset", "feed", "prefetch", "batch_per_device", "model_params", "precision", "data_format"),
    *("bind", "layout", "transports", "optimizer", "learning_rate_rule", "base_batch", "learning_rate"),
    *("weight_decay", "accumulate", "target", "seed"),
)
# Likewise; null, which is no choice, counts as a value.
CHOICE_COLUMNS = ("model_options", "device_ids", "environment", "train_options")

THROUGHPUT_HEAD = "samples/s (95 %)"
STATUS_CHIPS: dict[str, Literal["good", "off"]] = {"ok": "good", "unsupported": "off"}  # others are bad

FORMULA_START = re.compile(r"\s*[=+\-@\uff1d\uff0b\uff0d\uff20]|\s")  # also full-width, which spreadsheets take as well

SETTING_START = re.compile(r"\s+(?=[\w.]+=)")  # of the next `key=value`; a value may have spaces

CellMaker = Callable[[dict[str, Any]], doc.Cell]


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
    frame, pooled = runs.frame, runs.pooled
    tables = {"results": frame} | ({"pooled": pooled} if (pooled["repeats"] > 1).any() else {})
    if frame["training_id"].notna().any():
        tables["trainings"] = make_training_frame(frame)
    tables |= name_operation_tables(*read_operations(runs.probe_folders))
    for name, table in tables.items():
        table.to_csv(folder / f"{name}.csv", index=False)
        table.to_parquet(folder / f"{name}.parquet", index=False)
    return frame


def name_operation_tables(operations: pd.DataFrame, transfers: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the frames that have rows, by the names of their files."""
    tables = {"collectives": operations, "bandwidth": transfers}
    return {name: table for name, table in tables.items() if len(table)}


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
    first = {name: figures.pop(name) for name in ("gpus", THROUGHPUT_HEAD)}
    items, rows = drop_common_settings(plain_rows(frame.sort_values(SORT_COLUMNS))), []
    for row in items:
        cells = [doc.make_cell(format_setting(row[name])) for name in labels] + [make(row) for make in first.values()]
        cells.append(doc.Cell(row["status"], row["status"], chip=STATUS_CHIPS.get(row["status"], "bad")))
        cells.append(notes.make_cell(list_remarks(row, explains=True)))
        rows.append(doc.Row([*cells, *(make(row) for make in figures.values())], doc.get_tags(row)))
    heads, numeric = [*labels, *first, "status", "remarks", *figures], frozenset([*first, *figures])
    caption = doc.join_sentences(heading, describe_intervals(items))
    return doc.Table("strategies", "Configurations", heads, rows, numeric, caption, notes.list_notes())


def make_figure_columns(frame: pd.DataFrame, varying: list[str], baseline_name: str | None) -> dict[str, CellMaker]:
    """Return the columns that hold figures, as far as any row has one."""

    def make_column(name: str, show: Callable[[dict[str, Any], str], str]) -> CellMaker:
        return lambda row: doc.make_cell(text, row[name]) if (text := show(row, name)) else doc.Cell("")

    def show_overhead(row: dict[str, Any], name: str) -> str:
        """Show it for the one-device row that it was measured on; other rows would only repeat it."""
        return format_percent_column(row, name) if row["run_id"] == row["baseline_self_id"] else ""

    def show_data_share(row: dict[str, Any], name: str) -> str:
        """Return `2.0 % [1.6, 2.4]`: the share of a step that loading its batch adds to the device's work."""
        if (value := row[name]) is None:
            return ""
        limits, step_s = [row[f"data_s_{end}"] for end in ("low", "high")], row["step_s"]
        shares = [f"{100 * limit / step_s:z.1f}" for limit in limits if limit is not None and step_s]
        return f"{100 * value:z.1f} % [{', '.join(shares)}]" if len(shares) == 2 else f"{100 * value:z.1f} %"

    def show_text(row: dict[str, Any], name: str) -> str:
        return to_text(row[name])

    columns: dict[str, CellMaker] = {"gpus": make_column("gpus", show_text)}
    if (frame["nodes"] > 1).any():
        columns["nodes"] = make_column("nodes", show_text)
    if "repeats" in frame and (frame["repeats"] > 1).any():
        columns["repeats"] = make_column("repeats", show_text)
    columns[THROUGHPUT_HEAD] = make_throughput_cell
    if frame["overhead_share"].notna().any():  # a bare strategy alone has none
        columns["overhead at 1"] = make_column("overhead_share", show_overhead)
    kinds = {"bare": "bare", "self": "self"}
    if baseline_name is not None and frame["speedup_given"].notna().any():
        kinds["given"] = f"over {baseline_name}"
    for figure, show in (("speedup", format_ratio_column), ("efficiency", format_percent_column)):
        for kind, text in kinds.items():
            if f"{figure}_{kind}" in frame:
                columns[f"{figure} {text}"] = make_column(f"{figure}_{kind}", show)
    if frame["mfu"].notna().any():
        columns["MFU"] = make_column("mfu", lambda row, name: format_percent(to_number(row[name])))
    columns["epoch"] = make_column("epoch_s", lambda row, name: format_seconds(row[name]))
    if {"feed", "prefetch"} & set(varying) and frame["data_share"].notna().any():
        columns["data"] = make_column("data_share", show_data_share)
    return columns


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
    names += [name for name in DIFFERING_COLUMNS if differs(name, (*group, "model_options"), null_is_a_value=False)]
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
    return f"{value:.4g}" if isinstance(value, float) and value == value else to_text(value)


def format_throughput(row: Mapping[str, Any], unit: str = "", notes_repeat: bool = True) -> str:
    """Return `12,345 ± 0.8 %`, the figure alone if there is no interval, and nothing if none was measured.

    An interval over blocks misses what differs between starts, so it is `± 0.8 % within this repeat` if
    `notes_repeat`.
    """
    value, low, high = (to_number(row[name]) for name in (doc.THROUGHPUT, "throughput_low", "throughput_high"))
    if value is None:
        return ""
    figure = f"{value:,.0f}{unit}" if value >= 100 else f"{value:.3g}{unit}"
    if low is None or high is None:
        return figure
    within = " within this repeat" if notes_repeat and row["interval_over"] == "blocks" else ""
    return f"{figure} ± {100 * (high - low) / 2 / value:.1f} %{within}"


def make_throughput_cell(row: Mapping[str, Any]) -> doc.Cell:
    return doc.make_cell(format_throughput(row), row[doc.THROUGHPUT])


def format_ratio(value: float | None, low: float | None = None, high: float | None = None) -> str:
    """Return `1.86 [1.82, 1.90]`, empty for None."""
    if value is None:
        return ""
    return f"{value:.2f}" if low is None or high is None else f"{value:.2f} [{low:.2f}, {high:.2f}]"


def explain_doubt(ratio: Estimate, *rows: Mapping[str, Any]) -> str:
    """Return why the ratio of these rows decides nothing; empty if it does."""
    if not ratio.has_limits:
        return f"not sure: {explain_no_verdict(*rows) or 'no interval'}"
    return "no difference resolved" if ratio.low <= 1 <= ratio.high else ""


def format_ratio_column(row: Mapping[str, Any], name: str) -> str:
    return format_ratio(*doc.get_figure(row, name))


def format_percent(value: float | None, low: float | None = None, high: float | None = None) -> str:
    """Return `93 % [91, 95]`, empty for None."""
    if value is None:
        return ""
    share = f"{100 * value:z.0f} %"  # z: no "-0"
    return share if low is None or high is None else f"{share} [{100 * low:z.0f}, {100 * high:z.0f}]"


def format_percent_column(row: Mapping[str, Any], name: str) -> str:
    return format_percent(*doc.get_figure(row, name))


def format_seconds(value: Any) -> str:
    value_s = to_number(value)
    return "" if value_s is None else f"{value_s:,.0f} s" if value_s >= 1000 else f"{value_s:.3g} s"


def list_remarks(row: dict[str, Any], explains: bool = False) -> list[str]:
    """List why a run is not ok, or what to know about one that is; with `explains`, what its flags mean."""
    if row["status"] != "ok":
        return [to_text(row["reason"])]
    missing = find_missing_baselines(row)
    return [*describe_row(row, explains), *([f"no {' and '.join(missing)} baseline"] if missing else [])]


BASELINE_COLUMNS = ["status", "strategy", "max_batch_per_device", "baseline_bare_id", "baseline_self_id"]


def find_missing_baselines(row: dict[str, Any]) -> list[str]:
    """List the baselines, bare and self, that a successful run lacks. A largest-batch search needs none."""
    if row["status"] != "ok" or to_number(row["max_batch_per_device"]) is not None:
        return []
    kinds = ("self",) if row["strategy"] == "script" else ("bare", "self")  # a user's program has no other
    return [kind for kind in kinds if to_text(row[f"baseline_{kind}_id"]) == ""]
