"""What a report is about: the rows, the records behind them, and what was asked for. Layer 3.

Runs without a row: what they were, and when they last gave a sign. Layer 3.

Files in a run's folder that a report reads or points at. Layer 3.

A record may be anybody's: what it names is read only as a plain file of its own folder.

Runs that a report tells one by one: which they are, and what they are called. Layer 3.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalebench.analysis import load as frames
from scalebench.analysis import scaling_curves as drawn
from scalebench.analysis.scaling_curves import plain_row
from scalebench.analysis.identity import SETTING_COLUMNS, KEY_VALUE_COLUMNS, INPUT_COLUMNS
from scalebench.core.json_files import read_json
from scalebench.core.result import Result, read_result
from scalebench.core.run_folder import RESULT_FILE, SPEC_FILE
from scalebench.measure.progress import RankProgress, read_progress
from scalebench.report.flag_text import text

if TYPE_CHECKING:
    import pandas as pd

    from scalebench.analysis.load import Survey

DETAILED = 200  # runs of which a report tells more than their row
MOST_RECORDS = 2 * DETAILED  # in memory: those of failed runs come on top


@dataclass
class Evidence:
    """Sections read figures from `frame` and `pooled`, and only what no column has from single records."""

    paths: list[Path]  # as given; the first one's folder is the report's home
    frame: pd.DataFrame  # a row per run, as scalebench.load gives
    pooled: pd.DataFrame  # a row per configuration, as scalebench.pooled gives
    unreadable: list[tuple[Path, str]] = field(default_factory=list)  # file and one line that says why
    wanted_efficiency: float = 0.8
    given: str | None = None  # what `--baseline` names, in words for a column's head
    published: pd.DataFrame | None = None  # rows of published studies, --reference
    _records: dict[str, Result] = field(default_factory=dict)  # read so far

    @cached_property
    def curves(self) -> list[drawn.Curve]:
        """Of the pooled rows, made once: a second for ten thousand, and many sections draw them."""
        return drawn.make_curves(self.pooled)

    @cached_property
    def detailed(self) -> list[str]:
        """run_id of the runs that are told in detail: all, or the first launch of each configuration up to DETAILED."""
        ids = [str(name) for name in self.frame["run_id"]]
        return ids if len(ids) <= DETAILED else [str(name) for name in self.pooled["run_id"]][:DETAILED]

    def folder(self, run_id: str) -> Path:
        """Of that run. KeyError for none."""
        return self._folders[run_id]

    def result(self, run_id: str) -> Result:
        """The whole record of a run, read again: ten thousand of them would not fit into memory."""
        if run_id not in self._records:
            if len(self._records) >= MOST_RECORDS:
                self._records.clear()
            self._records[run_id] = read_result(self.folder(run_id) / RESULT_FILE)
        return self._records[run_id]

    @cached_property
    def _folders(self) -> dict[str, Path]:
        names = zip(self.frame["run_id"], self.frame["path"], strict=True)
        return {str(run_id): Path(str(path)) for run_id, path in names}


def gather(
    paths: Sequence[Path],
    wanted_efficiency: float = 0.8,
    baseline: str | Path | None = None,
    references: Sequence[str] = (),
) -> Evidence:
    """All runs at or below `paths` that can be read; the others are its `unreadable`. `baseline` names a run that
    speedups are against too (given.find_given), `references` published studies whose rows are to be shown beside ours.

    InputError where there is not one result that can be read, and for a baseline or a study that is none.
    """
    published = None
    if references:
        from scalebench.analysis.published import load_published

        published = load_published(list(references))
    return of_survey(paths, frames.survey(list(paths), baseline), wanted_efficiency, published)


def of_survey(
    paths: Sequence[Path], found: Survey, wanted_efficiency: float = 0.8, published: pd.DataFrame | None = None
) -> Evidence:
    """Of what has been read at or below `paths`."""
    return Evidence(list(paths), found.frame, found.pooled, found.unreadable, wanted_efficiency, found.baseline_label, published)


MOST_RANKS = 64  # of whose files the last sign is looked for


@dataclass(frozen=True)
class Unfinished:
    """A run that goes on, or whose program was ended before it could write a row. "" is what is not known."""

    folder: Path
    tags: dict[str, str]  # model, strategy, hardware, as far as they are known
    gpus: str
    phase: str
    last_sign: str  # time of day, UTC


def unfinished(paths: Sequence[Path]) -> Iterator[Unfinished]:
    """Those at or below `paths` with a spec and no result, in the order of their folders."""
    folders = {spec.parent for path in paths if path.is_dir() for spec in path.rglob(SPEC_FILE)}
    for folder in sorted(folders):
        if not (folder / RESULT_FILE).exists():
            last = _last(folder)
            phase, sign = ("", "") if last is None else (str(last.phase), _time(last.at_s))
            yield Unfinished(folder, *_what(folder), phase, sign)


def _what(folder: Path) -> tuple[dict[str, str], str]:
    """Tags and devices by the spec, which may be half written, or anything."""
    try:
        tree = read_json(folder / SPEC_FILE)
    except (OSError, ValueError):
        return {}, ""
    found = {name: _at(tree, "config", name, "name") for name in ("model", "strategy", "hardware")}
    return {name: str(value) for name, value in found.items() if value is not None}, str(_at(tree, "gpus") or "")


def _at(tree: Any, *keys: str) -> Any:
    for key in keys:
        tree = tree.get(key) if isinstance(tree, dict) else None
    return tree


def _last(folder: Path) -> RankProgress | None:
    """The latest word of any rank."""
    found = [progress for rank in range(MOST_RANKS) if (progress := read_progress(folder, rank)) is not None]
    known = [progress for progress in found if isinstance(progress.at_s, (int, float))]
    return max(known, key=lambda progress: progress.at_s, default=None)


def _time(at_s: float) -> str:
    try:
        return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return ""


TAIL_LINES = 30
TAIL_BYTES = 64 * 1024  # a log may be larger than memory
LONGEST_LINE = 500
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")  # colours and movements of a terminal
CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x9f]")


def inside(folder: Path, name: str) -> Path | None:
    """The plain file `name` of `folder`; None where it is none, or lies elsewhere, also by a link."""
    given = Path(name)
    if "\0" in name or given.is_absolute() or ".." in given.parts:
        return None
    try:
        path = (folder / given).resolve()
        return path if path.is_file() and path.is_relative_to(folder.resolve()) else None
    except OSError:  # a name that is too long
        return None


def home(evidence: Evidence) -> Path:
    """The folder that links are relative to."""
    first = evidence.paths[0]
    return first.parent if first.is_file() else first


def link(evidence: Evidence, path: Path) -> str:
    """To `path` from the report's home."""
    return Path(os.path.relpath(path.resolve(), home(evidence).resolve())).as_posix()


def tail(path: Path, lines: int = TAIL_LINES) -> str:
    """The last lines of a log as plain text, whatever its bytes are; OSError where it cannot be read.

    A progress bar that overwrites itself is as many lines as it was drawn.
    """
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - TAIL_BYTES))
        content = file.read(TAIL_BYTES)
    found = ESCAPES.sub("", content.decode("utf-8", "replace")).splitlines()
    kept = [CONTROL.sub("\N{REPLACEMENT CHARACTER}", line)[:LONGEST_LINE] for line in found[-lines:]]
    return "\n".join(kept)


Row = dict[str, Any]  # cells of the frame that NEEDED names, None for null
TOLD_IF_DIFFERENT = ("hardware", "scaling")  # of all runs told together, whatever else tells them apart
RATES = ("base_batch", "learning_rate")  # which also follow from the batch
APART = ("model", "dataset", "batch_per_device", *KEY_VALUE_COLUMNS, *RATES, *INPUT_COLUMNS, *SETTING_COLUMNS, "repeat", "status")
NEEDED = (
    "run_id strategy gpus path reason flags steady step_s throughput_samples_per_s final_loss metric metric_name "
    "started_at global_batch stopped_by"
).split()


def detailed(evidence: Evidence) -> list[Row]:
    """Of the frame, each run once, in the order in which the evidence tells them."""
    place = {run_id: number for number, run_id in enumerate(evidence.detailed)}
    frame = evidence.frame
    wanted = frame[frame["run_id"].isin(place)].drop_duplicates("run_id")
    found = plain(wanted.to_dict("records"))
    return sorted(found, key=lambda row: place[row["run_id"]])


def plain(rows: Iterable[dict[Any, Any]]) -> list[Row]:
    """The cells that are needed here; the frame has many more."""
    kept = (*NEEDED, *TOLD_IF_DIFFERENT, *APART)
    return [plain_row({name: row[name] for name in kept if name in row}) for row in rows]


def names(rows: Sequence[Row]) -> dict[str, str]:
    """run_id -> `ddp_gloo on 4 devices`, and what tells it from the others where that does not."""
    everywhere = [name for name in TOLD_IF_DIFFERENT if _differ(rows, name)]
    alike: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        alike.setdefault((text(row["strategy"]), row["gpus"]), []).append(row)
    found: dict[str, str] = {}
    for (strategy, gpus), members in alike.items():
        telling = everywhere + [name for name in APART if _differ(members, name)]
        base = f"{strategy} on {gpus} {'device' if gpus == 1 else 'devices'}"
        for row in members:
            found[row["run_id"]] = _unused(", ".join([base, *_told(row, telling)]), set(found.values()))
    return found


def left_out(evidence: Evidence) -> str:
    """A sentence where not all runs are told one by one; else empty."""
    if len(evidence.detailed) == len(evidence.frame):
        return ""
    return (
        f"Single runs are told of the first launches of {len(evidence.detailed)} configurations, out of "
        f"{len(evidence.frame):,} runs: a report reads {DETAILED} records at the most."
    )


def first_launches(rows: Sequence[Row], most: int, what: Callable[[Row], bool] = lambda row: True) -> list[Row]:
    """At most `most` of them, those of earlier repeats before later ones, given back in their order."""
    fit = [row for row in rows if what(row)]
    kept = sorted(range(len(fit)), key=lambda i: (fit[i]["repeat"] or 0, i))[:most]
    return [fit[i] for i in sorted(kept)]


def _differ(rows: Sequence[Row], name: str) -> bool:
    return len({row[name] for row in rows}) > 1


def _told(row: Row, telling: Sequence[str]) -> list[str]:
    known = [(name, _short(row[name])) for name in telling if text(row[name]) and (name, row[name]) != ("status", "ok")]
    return [value if name in KEY_VALUE_COLUMNS else f"{name.replace('_', ' ')} {value}" for name, value in known]


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else text(value)


def _unused(name: str, used: set[str]) -> str:
    """Runs of one configuration and repeat, as of two sweeps, are numbered."""
    number, found = 1, name
    while found in used:
        number += 1
        found = f"{name} #{number}"
    return found
