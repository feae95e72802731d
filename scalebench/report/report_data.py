"""The data that a report is made from: the rows of its runs, their records, and the files in their folders.

Records may come from anybody: core/untrusted says which files that they name are read.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from scalebench.analysis import collectives, load, scaling_curves
from scalebench.analysis.identity import INPUT_COLUMNS, KEY_VALUE_COLUMNS, SETTING_COLUMNS, column_key, group_by
from scalebench.analysis.ranking import Advice, list_advice
from scalebench.analysis.read_runs import RunFiles
from scalebench.analysis.repeats import Configurations
from scalebench.core.json_files import read_tail
from scalebench.core.result import Result, read_result
from scalebench.core.run_folder import RESULT_FILE
from scalebench.core.units import format_count
from scalebench.core.untrusted import clean_text
from scalebench.report import document as doc

if TYPE_CHECKING:
    import pandas as pd

    from scalebench.analysis.attribution.causes import AttributedRun
    from scalebench.analysis.load import Survey

MAX_DETAILED_RUNS = 200  # runs of which a report shows more than their row
MAX_CACHED_RECORDS = 2 * MAX_DETAILED_RUNS  # in memory: the records of failed runs are read in addition
MAX_LOG_LINES = 30
MAX_LOG_BYTES = 64 * 1024  # a log may be larger than memory
MAX_LINE_LENGTH = 500
NUMBER_TYPES = (float, int, type(None))

Row = dict[str, Any]  # the cells of the frame that DETAIL_COLUMNS and the name columns list, None for null
GLOBAL_NAME_COLUMNS = ("hardware", "scaling")  # part of every name where any two of the listed runs differ in them
BATCH_RATE_COLUMNS = ("base_batch", "learning_rate")  # these also follow from the batch
NAME_COLUMNS = ("model", "dataset", "batch_per_device", *KEY_VALUE_COLUMNS, *BATCH_RATE_COLUMNS, *INPUT_COLUMNS,
                *SETTING_COLUMNS, "repeat", "status")  # fmt: skip
DETAIL_COLUMNS = (
    "run_id strategy gpus path reason flags steady step_s throughput_samples_per_s final_loss metric metric_name "
    "started_at global_batch stopped_by"
).split()
REPEAT_COLUMNS = ["fingerprint", "machine", "framework_version"]  # equal in all repeats of a configuration
DOT_COLUMNS = [
    *("throughput_samples_per_s", "epoch_s", "device_hours_per_epoch", "energy_j_per_epoch", "sync_per_epoch_s"),
    *(f"{figure}_{kind}" for figure in ("speedup", "efficiency") for kind in ("self", "bare", "given")),
]
RUN_COLUMNS = tuple(dict.fromkeys([*DETAIL_COLUMNS, *GLOBAL_NAME_COLUMNS, *NAME_COLUMNS]))


@dataclass
class ReportData:
    """Everything a report shows. Sections take figures from `frame` and `pooled`, and read a single record only for
    what no column holds."""

    paths: list[Path]  # as passed by the user; links of the report are relative to the first one's folder
    frame: pd.DataFrame  # a row per run, as scalebench.load returns it
    pooled: pd.DataFrame  # a row per configuration, as scalebench.pooled returns it
    unreadable: list[tuple[Path, str]] = field(default_factory=list)  # file, and one line with the reason
    min_efficiency: float = 0.8
    baseline_name: str | None = None  # label of the run that `--baseline` names, for a column's head
    published: pd.DataFrame | None = None  # rows of published studies (--reference)
    configurations: Configurations = field(default_factory=Configurations)  # ratios between pooled rows
    files: RunFiles = field(default_factory=lambda: RunFiles([]))  # all that was searched
    probe_folders: list[Path] = field(default_factory=list)  # of runs that measured collective operations or bandwidths
    full_paths: bool = False  # else those below the home folder begin with ~

    @cached_property
    def curves(self) -> list[scaling_curves.Curve]:
        """The curves of the pooled rows, made once: it takes a second for 10,000 rows, and many sections draw them.

        A row also has the limits of its epoch, which are those of throughput, inverted; one of several repeats has
        REPEAT_ROWS, the DOT_COLUMNS of each repeat, for the dots of charts.
        """
        curves = scaling_curves.make_curves(self.pooled)
        for row in (row for curve in curves for row in curve.rows):
            epoch_s, rate = row["epoch_s"], row[doc.THROUGHPUT]
            for end, limit in (("low", row["throughput_high"]), ("high", row["throughput_low"])):
                row[f"epoch_s_{end}"] = epoch_s * rate / limit if epoch_s and limit else None
        if (self.pooled["repeats"] > 1).any():
            figures = self.frame.loc[self.frame["status"] == "ok", REPEAT_COLUMNS + DOT_COLUMNS]
            repeats = group_by(scaling_curves.plain_rows(figures), lambda row: column_key(row, REPEAT_COLUMNS))
            for row in (row for curve in curves for row in curve.rows if row["repeats"] > 1):
                row[doc.REPEAT_ROWS] = repeats.get(column_key(row, REPEAT_COLUMNS), [])
        return curves

    @cached_property
    def operations(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        """The collective operations and the transfers that runs measured on request, as scalebench.collectives and
        scalebench.bandwidth return them."""
        return read_operations(self.probe_folders)

    @cached_property
    def advice(self) -> list[Advice]:
        """The advice for each group of curves, made once: the answer and its evidence are two sections."""
        return list_advice(self.curves, self.configurations.estimate_ratio)

    @cached_property
    def detailed_run_ids(self) -> list[str]:
        """The runs shown in detail: all of them, or the first repeat of each configuration up to MAX_DETAILED_RUNS."""
        run_ids = [str(name) for name in self.frame["run_id"]]
        if len(run_ids) <= MAX_DETAILED_RUNS:
            return run_ids
        return [str(name) for name in self.pooled["run_id"]][:MAX_DETAILED_RUNS]

    @cached_property
    def attributed_runs(self) -> dict[str, AttributedRun]:
        """The attribution of the configurations with a baseline, up to MAX_DETAILED_RUNS, by the run_id of the pooled
        row. All repeats count: with fewer the parts that compare processes would have no limits, and could be no cause.
        """
        from scalebench.analysis.attribution import attribute_configurations
        from scalebench.analysis.attribution import lost_efficiency as losses
        from scalebench.analysis.attribution.causes import AttributedRun

        ok = self.frame[self.frame["status"] == "ok"]
        finder = losses.ReferenceRunFinder(map(self.result, ok.loc[ok["gpus"] == 1, "run_id"]))
        names, measured = [str(name) for name in self.pooled["run_id"]][:MAX_DETAILED_RUNS], set(ok["run_id"])
        run_ids = [run_id for name in names for run_id in self.configurations.list_repeats(name)]
        results = [self.result(run_id) for run_id in run_ids if run_id in measured]
        repeats = (losses.measure_repeat(result, finder.find(result)) for result in results)
        by_id = {repeat.result.run_id: repeat for repeat in repeats if repeat is not None}
        rows = scaling_curves.plain_rows(self.pooled)
        return {
            parts.run_id: AttributedRun(parts, first.result, first.references, rows, self.configurations)
            for parts in attribute_configurations(list(by_id.values()))
            for first in [by_id[parts.run_id]]
        }

    @property
    def home(self) -> Path:
        """The folder that links are relative to."""
        return self.paths[0].parent if self.paths[0].is_file() else self.paths[0]

    @cached_property
    def folders(self) -> dict[str, Path]:
        """The folder of each run, by its run_id."""
        return dict(zip(map(str, self.frame["run_id"]), map(Path, self.frame["path"]), strict=True))

    @cached_property
    def result(self) -> Callable[[str], Result]:
        """Reads the full record of a run by its run_id, and holds some: 10,000 would not fit into memory."""
        return lru_cache(MAX_CACHED_RECORDS)(lambda run_id: read_result(self.folders[run_id] / RESULT_FILE))

    def make_link(self, path: Path) -> str:
        """Return `path` relative to the report's home."""
        return Path(os.path.relpath(path.resolve(), self.home.resolve())).as_posix()


def read_operations(folders: Sequence[Path]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the frames of collective operations and of transfers of the runs in these folders, one record after the
    other: 10,000 of them would not fit into memory."""
    files = [folder / RESULT_FILE for folder in folders]
    return collectives.make_collective_table(map(read_result, files)), collectives.make_bandwidth_table(
        map(read_result, files)
    )


def load_report_data(
    paths: Sequence[Path],
    min_efficiency: float = 0.8,
    baseline: str | Path | None = None,
    references: Sequence[str] = (),
    full_paths: bool = False,
) -> ReportData:
    """Load all readable runs at or below `paths`; the other files are listed as `unreadable`.

    `baseline` names a run that speedups are also computed against (load.resolve_named_baseline), `references` published
    studies whose rows are shown beside the measured ones. With `full_paths` the home folder is written out.
    Raises InputError if no result can be read, or if the baseline or a study does not exist.
    """
    from scalebench.analysis.published import load_published

    options = {"min_efficiency": min_efficiency, "full_paths": full_paths}
    published = load_published(list(references)) if references else None
    return make_report_data(paths, load.survey(list(paths), baseline), published=published, **options)


def make_report_data(paths: Sequence[Path], survey: Survey, **options: Any) -> ReportData:
    """Make report data from runs that have already been read; `options` are fields of it."""
    return ReportData(
        list(paths), survey.frame, survey.pooled, survey.unreadable, baseline_name=survey.baseline_label,
        configurations=survey.configurations, files=survey.files, probe_folders=survey.probe_folders, **options,
    )  # fmt: skip


def list_detailed_runs(report_data: ReportData) -> list[Row]:
    """Return the rows of the runs shown in detail, each run once, in the order of `detailed_run_ids`."""
    position = {run_id: number for number, run_id in enumerate(report_data.detailed_run_ids)}
    frame = select_run_columns(report_data.frame)
    rows = scaling_curves.plain_rows(frame[frame["run_id"].isin(position)].drop_duplicates("run_id"))
    return sorted(rows, key=lambda row: position[row["run_id"]])


def select_run_columns(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a frame, which has many more columns, with those that describe a single run."""
    return frame[[name for name in RUN_COLUMNS if name in frame]]


def name_runs(rows: Sequence[Row]) -> dict[str, str]:
    """Map each run_id to a unique name: `ddp_gloo on 4 devices`, and what distinguishes it if that is not enough."""

    def list_differing(rows: Sequence[Row], names: Sequence[str]) -> list[str]:
        return [name for name in names if len({row[name] for row in rows}) > 1]

    names: dict[str, str] = {}
    uses = Counter[str]()
    for (strategy, gpus), members in group_by(rows, lambda row: (row["strategy"], row["gpus"])).items():
        columns = list_differing(rows, GLOBAL_NAME_COLUMNS) + list_differing(members, NAME_COLUMNS)
        for row in members:
            parts = [f"{strategy} on {format_count(gpus, 'device')}"]
            for column in columns:
                value = row[column]
                if value not in (None, "") and (column, value) != ("status", "ok"):
                    value = value + 1 if column == "repeat" else value  # people count from one, as progress does
                    text = f"{value:.4g}" if isinstance(value, float) else str(value)
                    parts.append(text if column in KEY_VALUE_COLUMNS else f"{column.replace('_', ' ')} {text}")
            name = ", ".join(parts)
            uses[name] += 1  # two sweeps may both hold runs of the same configuration and repeat
            names[row["run_id"]] = name if uses[name] == 1 else f"{name} #{uses[name]}"
    return names


def list_left_out_runs(report_data: ReportData) -> list[doc.Paragraph]:
    """Return a paragraph if not all runs are shown in detail."""
    limit, count = len(report_data.detailed_run_ids), len(report_data.frame)
    text = f"Single runs are shown for the first repeat of {limit} configurations, out of {count:,} runs."
    return [doc.Paragraph(text)] if limit < count else []


def list_left_out_configurations(report_data: ReportData) -> list[doc.Paragraph]:
    """Return a paragraph if not all configurations are attributed."""
    what = "configurations are attributed, each over all its repeats"
    return doc.note_left_out(MAX_DETAILED_RUNS, len(report_data.pooled), what)


def select_first_repeats(rows: Sequence[Row], count: int) -> list[Row]:
    """Return at most `count` rows in their order, preferring earlier repeats."""
    first = sorted(range(len(rows)), key=lambda i: (rows[i]["repeat"] or 0, i))[:count]
    return [rows[i] for i in sorted(first)]


def read_log_tail(path: Path) -> str:
    """Return the last lines of a log as plain text, whatever its bytes are. Raises OSError if it cannot be read.

    A progress bar that overwrites itself counts as one line for each time it was drawn.
    """
    lines = clean_text(read_tail(path, MAX_LOG_BYTES)).splitlines()[-MAX_LOG_LINES:]
    return "\n".join(line[:MAX_LINE_LENGTH] for line in lines)


class HomeFolder:
    """The home folder of the user, which is `~` in a report: reports are shown to others."""

    def __init__(self) -> None:
        home = Path(os.path.expanduser("~"))
        homes = {str(path) for path in (home, home.resolve()) if len(path.parts) > 1 and path.is_absolute()}
        names = "|".join(map(re.escape, sorted(homes, key=len, reverse=True))) or r"(?!)"
        self._pattern = re.compile(rf"(?<![\w.~-])(?:{names})(?![\w-]|\.\w)")

    def hide(self, text: str) -> str:
        """Return a text with `~` for the home folder where a path begins with it."""
        return self._pattern.sub("~", text) if "/" in text else text

    def hide_in(self, part: Any) -> Any:
        """Return a section, a block or any part of one with `~` in all its texts but ids, by which pages link."""
        if isinstance(part, str):
            return self.hide(part)
        if isinstance(part, (list, tuple)):
            return part if all(type(each) in NUMBER_TYPES for each in part) else [self.hide_in(each) for each in part]
        if not is_dataclass(part) or isinstance(part, type):
            return part
        values = [(each.name, getattr(part, each.name)) for each in fields(part) if each.name != "id"]
        changes = {name: new for name, value in values if (new := self.hide_in(value)) is not value}
        return replace(part, **changes) if changes else part  # most parts have no path, and copies take time


def make_relative_link(link: str, home: str | os.PathLike[str], folder: str | os.PathLike[str]) -> str:
    """Return a link from a document in `folder` to the file `link` below `home`.

    It always begins with a dot and has no colon, so that it can neither run a script nor leave the disk.
    """
    target = os.path.normpath(os.path.join(home, "./" + clean_text(link).lstrip("/")))
    return "./" + quote(os.path.relpath(target, folder).replace(os.sep, "/"), safe="/")
