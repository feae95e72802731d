"""`scalebench report DIR...`: the report of finished runs as one HTML page, and also Markdown, CSV and figures."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from scalebench.cli.commands.arguments import CommandParser
from scalebench.core.errors import InputError

if TYPE_CHECKING:
    from scalebench.report.report_data import ReportData

DEFAULT_PATH = ""  # a switch without its file: a name beside the report
OUTPUT_FILES = {"markdown": "report.md", "csv": "report.csv", "figures": "figures"}


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("paths", metavar="DIR", nargs="*", help="folder of a run or a sweep")
    parser.add_argument("--out", metavar="FILE", help="the page; default: report.html in the first folder")
    parser.add_argument("--baseline", metavar="RUN", help="also give speedups over this run: its folder or run_id")
    parser.add_argument("--reference", metavar="NAME,...", default="", help="published studies to compare with")
    parser.add_argument("--efficiency", metavar="SHARE", type=float, default=0.8, help="lowest useful one; default 0.8")
    for kind, name in OUTPUT_FILES.items():
        parser.add_argument(
            f"--{kind}", metavar="PATH", nargs="?", const=DEFAULT_PATH, help=f"default: {name} by the page"
        )


def main(words: argparse.Namespace) -> int:
    if not words.paths:
        for kind in OUTPUT_FILES:  # which take the word behind them
            if (taken := getattr(words, kind)) and Path(taken).is_dir() and kind != "figures":
                raise InputError(f"--{kind}={taken} took a folder as its file; write: report {taken} --{kind}")
        raise InputError("report needs the folder of a run or a sweep, such as: python -m scalebench report multirun")
    if not 0 < words.efficiency <= 1:
        raise InputError(f"--efficiency={words.efficiency:g} should be a share above 0 and up to 1, such as 0.8")
    paths = [Path(path) for path in words.paths]
    for path in paths:
        if not path.exists():
            raise InputError(f"{path} does not exist; give the folder of a run or a sweep")
    report_data = importlib.import_module("scalebench.report.report_data").load_report_data(
        paths, words.efficiency, baseline=words.baseline, references=_split_names(words.reference)
    )
    page = Path(words.out) if words.out else _folder_of(paths[0]) / "report.html"
    made = [_write_output(_write_page, report_data, page)]
    for kind, name in OUTPUT_FILES.items():
        chosen = getattr(words, kind)
        if chosen is not None:
            made.append(
                _write_output(
                    WRITERS[kind], report_data, Path(chosen) if chosen != DEFAULT_PATH else page.parent / name
                )
            )
    print("\n".join(map(str, made)))
    return 0


def _split_names(words: str) -> list[str]:
    return [name.strip() for name in words.split(",") if name.strip()]


def _folder_of(path: Path) -> Path:
    return path if path.is_dir() else path.parent


def _write_output(write: Callable[[ReportData, Path], object], report_data: ReportData, path: Path) -> Path:
    """What `write` leaves at `path`; a full disk or a folder that nobody may write to is one line."""
    try:
        write(report_data, path)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}; --out=FILE writes elsewhere") from error
    return path


def _write_page(report_data: ReportData, path: Path) -> None:
    if path.is_dir():
        raise InputError(f"{path} is a folder; --out takes the name of a file, such as {path / 'report.html'}")
    importlib.import_module("scalebench.report.html.page").write(report_data, path)


def _write_markdown(report_data: ReportData, path: Path) -> None:
    importlib.import_module("scalebench.report.markdown").write(report_data, path)


def _write_csv(report_data: ReportData, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    report_data.frame.to_csv(path, index=False)


def _write_figures(report_data: ReportData, path: Path) -> None:
    importlib.import_module("scalebench.report.figures").write(report_data, path)


WRITERS: dict[str, Callable[[ReportData, Path], None]] = {
    "markdown": _write_markdown,
    "csv": _write_csv,
    "figures": _write_figures,
}
