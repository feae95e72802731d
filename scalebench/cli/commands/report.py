"""`scalebench report [DIR...]`: report finished runs as one HTML page, and also as Markdown, CSV and figures."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from scalebench.cli.commands.arguments import (
    FOLDERS_HELP,
    CommandParser,
    check_efficiency,
    folders_or_newest,
    split_names,
)
from scalebench.core.errors import InputError
from scalebench.core.untrusted import clean_line

if TYPE_CHECKING:
    from scalebench.report.report_data import ReportData

DEFAULT_PATH = ""  # of a switch without a file name: beside the report
OUTPUT_FILES = {"markdown": "report.md", "csv": "report.csv", "figures": "figures"}


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("paths", metavar="DIR", nargs="*", help=FOLDERS_HELP)
    parser.add_argument("--out", metavar="FILE", help="the page; default: report.html in the first folder")
    parser.add_argument("--baseline", metavar="RUN", help="also give speedups over this run: its folder or run_id")
    parser.add_argument("--reference", metavar="NAME,...", default="", help="published studies to compare with")
    parser.add_argument("--efficiency", metavar="SHARE", type=float, default=0.8, help="lowest useful one; default 0.8")
    parser.add_argument("--full-paths", action="store_true", help="write your home folder out, instead of as ~")
    for kind, name in OUTPUT_FILES.items():
        parser.add_argument(
            f"--{kind}", metavar="PATH", nargs="?", const=DEFAULT_PATH, help=f"default: {name} by the page"
        )


def main(options: argparse.Namespace) -> int:
    if not options.paths:
        for kind in OUTPUT_FILES:  # options that take the argument after them
            if (path := getattr(options, kind)) and Path(path).is_dir() and kind != "figures":
                raise InputError(f"--{kind}={path} took a folder as its file; write: report {path} --{kind}")
    check_efficiency(options.efficiency)
    paths = [Path(path) for path in folders_or_newest(options.paths)]
    for path in paths:
        if not path.exists():
            raise InputError(f"{path} does not exist; give the folder of a run or a sweep")
    from scalebench.report.report_data import load_report_data  # imports pandas, for which `--help` need not wait

    names = split_names(options.reference)
    data = load_report_data(paths, options.efficiency, options.baseline, names, options.full_paths)
    page = Path(options.out) if options.out else _folder_of(paths[0]) / "report.html"
    written = [_write_output(_write_page, data, page)]
    for kind, name in OUTPUT_FILES.items():
        path = getattr(options, kind)
        if path is not None:
            target = Path(path) if path != DEFAULT_PATH else page.parent / name
            written.append(_write_output(WRITERS[kind], data, target))
    print("\n".join(clean_line(str(path)) for path in written))
    return 0


def _folder_of(path: Path) -> Path:
    return path if path.is_dir() else path.parent


def _write_output(write: Callable[[ReportData, Path], object], data: ReportData, path: Path) -> Path:
    """Write to `path` and return it. Raise InputError where the disk is full or the folder is not writable."""
    try:
        write(data, path)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}; --out=FILE writes elsewhere") from error
    return path


def _write_page(data: ReportData, path: Path) -> None:
    if path.is_dir():
        raise InputError(f"{path} is a folder; --out takes the name of a file, such as {path / 'report.html'}")
    from scalebench.report.html import page

    page.write(data, path)


def _write_markdown(data: ReportData, path: Path) -> None:
    from scalebench.report import markdown

    markdown.write(data, path)


def _write_csv(data: ReportData, path: Path) -> None:
    """Write the runs to `path`, and what some measured on request beside it: report.collectives.csv."""
    from scalebench.report import tables

    tables.write_spreadsheet(data.frame, path, data.full_paths)
    for name, frame in tables.name_operation_tables(*data.operations).items():
        tables.write_spreadsheet(frame, path.with_name(f"{path.stem}.{name}.csv"), data.full_paths)


def _write_figures(data: ReportData, path: Path) -> None:
    from scalebench.report import figures

    figures.write(data, path)


WRITERS: dict[str, Callable[[ReportData, Path], None]] = {
    "markdown": _write_markdown,
    "csv": _write_csv,
    "figures": _write_figures,
}
