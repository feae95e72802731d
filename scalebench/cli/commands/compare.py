"""`scalebench compare A B`: which is faster, and how certain that is; for people and CI: docs/guides/compare.md."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from scalebench.analysis import comparison
from scalebench.analysis.comparison import NO_VERDICT, TOO_LITTLE_DATA, Comparison, baseline_store
from scalebench.analysis.comparison.rows import drop_copies, load_compared_runs
from scalebench.analysis.comparison.sessions import MIN_UNITS_FOR_TEST
from scalebench.cli.commands.arguments import (
    CommandParser,
    folders_or_newest,
    read_names,
    read_threshold,
    refuse_unwritable,
)
from scalebench.core.errors import InputError
from scalebench.core.json_files import write_output
from scalebench.core.machine.machine import classify_machine
from scalebench.core.units import format_count
from scalebench.core.untrusted import clean_line
from scalebench.report import comparison as comparison_report

COMPARISON_FORMATS = ("text", "json", "junit", "markdown")


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument(
        "paths",
        nargs="*",
        metavar="DIR",
        help="A and B; or one, with --by, --against or --save: by default the newest sweep below ./multirun",
    )
    parser.add_argument("--by", metavar="KEY", help="compare the values of this key within the folder")
    parser.add_argument("--base", metavar="VALUE", help="the value of that key to compare the others with")
    parser.add_argument(
        "--ignore", action="extend", type=read_names, default=[], metavar="KEY", help="a key that may differ"
    )
    parser.add_argument(
        "--threshold", metavar="SHARE", type=read_threshold, help="smallest change that matters, such as 3%%; for CI"
    )
    parser.add_argument("--against", metavar="NAME", help="compare with a saved baseline")
    parser.add_argument("--missing", choices=("fail", "ok"), default="fail", help="where that has too few sessions")
    parser.add_argument("--save", metavar="NAME", help="add the runs to a baseline, which keeps the last ten sessions")
    parser.add_argument("--replace", action="store_true", help="of --save: start that baseline over")
    parser.add_argument("--same-session", action="store_true", help="count all runs as those of one session")
    parser.add_argument("--format", choices=COMPARISON_FORMATS, default="text")
    parser.add_argument("--out", metavar="FILE", help="write that format to a file, and print the text")
    parser.add_argument("--figures", metavar="FOLDER", help="also write bar charts of the comparison as PNG and SVG")


def main(options: argparse.Namespace) -> int:
    _check_options(options)
    options.paths = folders_or_newest(options.paths)
    if options.save is not None:
        return _save_baseline(options)
    compared = _compare(options)
    is_excused = options.missing == "ok" and _lacks_baseline(compared)
    status = 0 if is_excused else comparison_report.EXIT_STATUS[compared.status]
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else comparison_report.WIDTH
    text = comparison_report.format_comparison(compared, width)
    content = {
        "text": lambda: comparison_report.format_comparison(compared) if options.out else text,
        "json": lambda: comparison_report.make_json(compared, status),
        "junit": lambda: comparison_report.make_junit(compared, status),
        "markdown": lambda: comparison_report.make_markdown(compared),
    }[options.format]()
    if options.out is None:
        sys.stdout.write(content)
    else:
        with refuse_unwritable(Path(options.out), "--out=FILE writes elsewhere"):
            write_output(Path(options.out), content)
        sys.stdout.write(text)
        print(f"written: {options.out}")
    if options.figures is not None:
        from scalebench.report import figures

        with refuse_unwritable(Path(options.figures), "--figures=FOLDER writes elsewhere"):
            written = figures.save_charts(comparison_report.make_comparison_charts(compared), Path(options.figures))
        lines = [f"written: {clean_line(str(path))}" for path in written if path.suffix == ".png"]
        print("\n".join(lines or ["no figures: nothing to draw"]), file=sys.stderr)  # standard output may be JSON
    return status


def _check_options(options: argparse.Namespace) -> None:
    """Raise InputError for options that do not go together."""
    modes = [name for name in ("save", "against", "by") if getattr(options, name) is not None]
    is_baseline = any(mode != "by" for mode in modes)
    refusals = {
        f": {' and '.join(f'--{mode}' for mode in modes[:2])} do not go together": len(modes) > 1,
        ": --base names a value of the key of --by KEY": options.base is not None and options.by is None,
        ": --missing ok is for --against NAME": options.missing == "ok" and options.against is None,
        ": --figures is for a comparison, not for --save NAME": options.figures is not None and modes == ["save"],
        ": --replace is for --save NAME": options.replace and modes != ["save"],
        ": --same-session is for A and B, or --by KEY: a baseline is a set of sessions": options.same_session
        and is_baseline,
        " needs two folders, A and B; or one and --by KEY, --against NAME or --save NAME": not modes
        and len(options.paths) != 2,
    }
    for text, is_refused in refusals.items():
        if is_refused:
            raise InputError(f"compare{text}")


def _save_baseline(options: argparse.Namespace) -> int:
    for saved in baseline_store.save_baseline(options.save, options.paths, options.replace):
        counts = f"{format_count(saved.runs, 'run')} in {format_count(saved.sessions, 'session')}"
        few = f" (a verdict needs {MIN_UNITS_FOR_TEST} sessions)" if saved.sessions < MIN_UNITS_FOR_TEST else ""
        print(f"baseline '{options.save}': {counts} of {saved.kind}: {saved.folder}{few}")
    return 0


def _lacks_baseline(compared: Comparison) -> bool:
    """Return whether nothing is lacking but sessions of the baseline."""
    lacking = [pair for pair in compared.pairs if pair.verdict == NO_VERDICT]
    few = all(len(pair.a.sessions) < MIN_UNITS_FOR_TEST for pair in lacking)
    return compared.no_baseline or (compared.status == TOO_LITTLE_DATA and few)


def _compare(options: argparse.Namespace) -> Comparison:
    sides = [load_compared_runs([path], number) for number, path in enumerate(options.paths)]
    names, ignored, threshold = options.paths, options.ignore, options.threshold
    if options.by is not None or options.against is not None:
        runs = drop_copies(run for side in sides for run in side)
        if options.by is not None:
            return comparison.compare_by(runs, options.by, options.base, ignored, threshold, options.same_session)
        classes = [classify_machine(run.record.machine) for run in runs]
        folders = baseline_store.find_baseline_folders(options.against, classes)
        if not folders:
            reason = baseline_store.explain_missing_baseline(options.against, classes)
            return Comparison(None, ignored, threshold, [], [], reason, no_baseline=True)
        sides, names = [load_compared_runs(folders), runs], [f"baseline '{options.against}'", ", ".join(options.paths)]
    a, b = sides
    compared = comparison.compare(a, b, ignored, threshold, options.same_session)
    compared.notes.insert(0, f"A is {names[0]}, B is {names[1]}")
    return compared
