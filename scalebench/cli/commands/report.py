"""`scalebench report [DIR...]`: report finished runs as one HTML page, and also as CSV and figures."""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from scalebench.cli.commands.arguments import (
    FOLDERS_HELP,
    CommandParser,
    folders_or_newest,
    read_efficiency,
    read_names,
    refuse_unwritable,
)
from scalebench.core.errors import InputError
from scalebench.core.untrusted import clean_line

if TYPE_CHECKING:
    from scalebench.report.report_data import ReportData

DEFAULT_PATH = ""  # A switch without a file name writes beside the page.
# By option: what is written beside the page, and the module that writes it.
OUTPUTS = {"csv": ("report.csv", "tables"), "figures": ("figures", "figures")}


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("paths", metavar="DIR", nargs="*", help=FOLDERS_HELP)
    parser.add_argument("--out", metavar="FILE", help="the page; default: report.html in the first folder")
    parser.add_argument("--baseline", metavar="RUN", help="also give speedups over this run: its folder or run_id")
    parser.add_argument(
        "--reference", metavar="NAME,...", type=read_names, default=[], help="published studies to compare with"
    )
    parser.add_argument(
        "--efficiency", metavar="SHARE", type=read_efficiency, default=0.8, help="lowest useful one; default 0.8"
    )
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
    paths = [Path(path) for path in folders_or_newest(options.paths)]
    for path in paths:
        if not path.exists():
            raise InputError(f"{path} does not exist; give the folder of a run or a sweep")
    from scalebench.report.report_data import load_report_data  # imports pandas, for which `--help` need not wait

    data = load_report_data(paths, options.efficiency, options.baseline, options.reference, options.full_paths)
    folder = paths[0] if paths[0].is_dir() else paths[0].parent
    page = Path(options.out) if options.out else folder / "report.html"
    if page.is_dir():
        raise InputError(f"{page} is a folder; --out takes the name of a file, such as {page / 'report.html'}")
    written = [_write_output("html.page", data, page)]
    for kind, (name, module) in OUTPUTS.items():
        if (path := getattr(options, kind)) is not None:
            written.append(_write_output(module, data, page.parent / name if path == DEFAULT_PATH else Path(path)))
    print("\n".join(clean_line(str(path)) for path in written))
    return 0


def _write_output(module: str, data: ReportData, path: Path) -> Path:
    """Write to `path` and return it. Raise InputError where the disk is full or the folder is not writable."""
    with refuse_unwritable(path, "--out=FILE writes elsewhere"):
        import_module(f"scalebench.report.{module}").write(data, path)
    return path
