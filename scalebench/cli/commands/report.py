"""`scalebench report [DIR...]`: report finished runs as one HTML page, and also as Markdown, CSV and figures."""

from __future__ import annotations

import argparse
from importlib import import_module
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

DEFAULT_PATH = ""  # A switch without a file name writes beside the page.
# By option: what is written beside the page, and the module that writes it.
OUTPUTS = {"markdown": ("report.md", "markdown"), "csv": ("report.csv", "tables"), "figures": ("figures", "figures")}


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("paths", metavar="DIR", nargs="*", help=FOLDERS_HELP)
    parser.add_argument("--out", metavar="FILE", help="the page; default: report.html in the first folder")
    parser.add_argument("--baseline", metavar="RUN", help="also give speedups over this run: its folder or run_id")
    parser.add_argument("--reference", metavar="NAME,...", default="", help="published studies to compare with")
    parser.add_argument("--efficiency", metavar="SHARE", type=float, default=0.8, help="lowest useful one; default 0.8")
    parser.add_argument("--full-paths", action="store_true", help="write your home folder out, instead of as ~")
    for kind, (name, _) in OUTPUTS.items():
        parser.add_argument(
            f"--{kind}", metavar="PATH", nargs="?", const=DEFAULT_PATH, help=f"default: {name} by the page"
        )


def main(options: argparse.Namespace) -> int:
    if not options.paths:
        for kind in OUTPUTS:  # options that take the argument after them
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
    if page.is_dir():
        raise InputError(f"{page} is a folder; --out takes the name of a file, such as {page / 'report.html'}")
    written = [_write_output("html.page", data, page)]
    for kind, (name, module) in OUTPUTS.items():
        if (path := getattr(options, kind)) is not None:
            written.append(_write_output(module, data, page.parent / name if path == DEFAULT_PATH else Path(path)))
    print("\n".join(clean_line(str(path)) for path in written))
    return 0


def _folder_of(path: Path) -> Path:
    return path if path.is_dir() else path.parent


def _write_output(module: str, data: ReportData, path: Path) -> Path:
    """Write to `path` and return it. Raise InputError where the disk is full or the folder is not writable."""
    try:
        import_module(f"scalebench.report.{module}").write(data, path)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}; --out=FILE writes elsewhere") from error
    return path
