"""`scalebench compare A B`: which is faster, and how certain that is; for people and CI: docs/guides/compare.md."""

from __future__ import annotations

import argparse
import math
import shutil
import sys
from pathlib import Path

from scalebench.analysis import comparison
from scalebench.analysis.comparison import NO_VERDICT, TOO_LITTLE_DATA, Comparison, baseline_store
from scalebench.analysis.comparison.drift import ConfigurationHistory, find_changes
from scalebench.analysis.comparison.rows import ComparedRun, drop_copies, load_compared_runs
from scalebench.analysis.comparison.sessions import MIN_UNITS_FOR_TEST
from scalebench.cli.commands.arguments import CommandParser, folders_or_newest
from scalebench.core.errors import InputError
from scalebench.core.json_files import write_text
from scalebench.core.machine.machine import MachineClass, classify_machine
from scalebench.core.units import format_count
from scalebench.core.untrusted import clean_line
from scalebench.report import comparison as comparison_report
from scalebench.report.document import Chart

COMPARISON_FORMATS = ("text", "json", "junit", "markdown")
HISTORY_FORMATS = ("text", "json")


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument(
        "paths",
        nargs="*",
        metavar="DIR",
        help="A and B; or one, with --by, --against or --save: by default the newest sweep below ./multirun",
    )
    parser.add_argument("--by", metavar="KEY", help="compare the values of this key within the folder")
    parser.add_argument("--base", metavar="VALUE", help="the value of that key to compare the others with")
    parser.add_argument("--ignore", action="append", default=[], metavar="KEY", help="a key that may differ")
    parser.add_argument("--threshold", metavar="SHARE", help="smallest change that matters, such as 3%%; for CI")
    parser.add_argument("--against", metavar="NAME", help="compare with a saved baseline")
    parser.add_argument("--missing", choices=("fail", "ok"), default="fail", help="where that has too few sessions")
    parser.add_argument("--save", metavar="NAME", help="add the runs to a baseline, which keeps the last ten sessions")
    parser.add_argument(
        "--history", metavar="NAME", nargs="?", const="",
        help="draw the sessions of a baseline, with those of DIR if there are any, and mark the first that differs",
    )  # fmt: skip
    parser.add_argument("--replace", action="store_true", help="of --save: start that baseline anew")
    parser.add_argument("--same-session", action="store_true", help="count all runs as those of one session")
    parser.add_argument("--format", choices=COMPARISON_FORMATS, default="text")
    parser.add_argument("--out", metavar="FILE", help="write that format to a file, and print the text")
    parser.add_argument("--figures", metavar="FOLDER", help="also write bar charts of the comparison as PNG and SVG")


def main(options: argparse.Namespace) -> int:
    options.ignore = [key for keys in options.ignore for key in keys.split(",") if key]
    _check_options(options)
    if options.history is not None:
        return _show_history(options)
    options.paths = folders_or_newest(options.paths)
    if options.save is not None:
        return _save_baseline(options)
    threshold = None if options.threshold is None else parse_share(options.threshold)
    compared = _compare(options, threshold)
    is_excused = options.missing == "ok" and _lacks_baseline(compared)
    status = 0 if is_excused else comparison_report.EXIT_STATUS[compared.status]
    _print_comparison(options, compared, status)
    if options.figures is not None:
        _write_figures(comparison_report.make_comparison_charts(compared), Path(options.figures))
    return status


def _check_options(options: argparse.Namespace) -> None:
    """Raise InputError for options that do not go together."""
    modes = [name for name in ("save", "against", "by", "history") if getattr(options, name) is not None]
    if len(modes) > 1:
        raise InputError(f"compare: --{modes[0]} and --{modes[1]} do not go together")
    if options.base is not None and options.by is None:
        raise InputError("compare: --base names a value of the key of --by KEY")
    if options.missing == "ok" and options.against is None:
        raise InputError("compare: --missing ok is for --against NAME")
    if options.figures is not None and options.save is not None:
        raise InputError("compare: --figures is for a comparison, not for --save NAME")
    if options.history is not None and options.format not in HISTORY_FORMATS:
        raise InputError(f"compare: --history knows --format {' and '.join(HISTORY_FORMATS)}")
    if options.replace and options.save is None:
        raise InputError("compare: --replace is for --save NAME")
    if options.same_session and any(each is not None for each in (options.save, options.against, options.history)):
        raise InputError("compare: --same-session is for A and B, or --by KEY: a baseline is a set of sessions")
    if not modes and len(options.paths) != 2:
        raise InputError(
            "compare needs two folders, A and B; or one and --by KEY, --against NAME or --save NAME; or --history"
        )


def parse_share(text: str) -> float:
    """Parse `3%`, `3 %` or `0.03` as 0.03. Raise InputError for anything but a share from 0 to below 1."""
    number, is_percent = text.strip().removesuffix("%"), text.strip().endswith("%")
    try:
        value = float(number) / (100 if is_percent else 1)
    except ValueError:
        value = math.nan
    if not 0 <= value < 1:
        raise InputError(f"--threshold {text}: write a share of throughput from 0 to below 1, such as 3% or 0.03")
    return value


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


def _compare(options: argparse.Namespace, threshold: float | None) -> Comparison:
    sides = [load_compared_runs([path], number) for number, path in enumerate(options.paths)]
    if options.by is None and options.against is None:
        a, b = sides
        compared = comparison.compare(a, b, options.ignore, threshold, options.same_session)
        return _name_sides(compared, *options.paths)
    runs = drop_copies(run for side in sides for run in side)
    if options.by is not None:
        return comparison.compare_by(runs, options.by, options.base, options.ignore, threshold, options.same_session)
    folders = baseline_store.find_baseline_folders(options.against, _list_machine_classes(runs))
    if not folders:
        reason = baseline_store.explain_missing_baseline(options.against, _list_machine_classes(runs))
        return Comparison(None, options.ignore, threshold, [], [], reason, no_baseline=True)
    compared = comparison.compare(load_compared_runs(folders), runs, options.ignore, threshold)
    return _name_sides(compared, f"baseline '{options.against}'", ", ".join(options.paths))


def _name_sides(compared: Comparison, a: str, b: str) -> Comparison:
    compared.notes.insert(0, f"A is {a}, B is {b}")
    return compared


def _list_machine_classes(runs: list[ComparedRun]) -> list[MachineClass]:
    return [classify_machine(run.record.machine) for run in runs]


def _show_history(options: argparse.Namespace) -> int:
    """Draw the sessions of a baseline on each class of machine, and return 3 for a regression beyond the threshold."""
    threshold = None if options.threshold is None else parse_share(options.threshold)
    added = load_compared_runs(options.paths) if options.paths else []
    histories, name = [], options.history
    for kind, folder in baseline_store.find_history_folders(options.history):
        name = folder.name
        newer = [run for run in added if classify_machine(run.record.machine).fingerprint == kind.fingerprint]
        changes = find_changes(drop_copies([*load_compared_runs([str(folder)]), *newer]))
        histories.append(comparison_report.MachineHistory(str(kind), changes))
    status = _judge_histories([each for history in histories for each in history.configurations], threshold)
    exit_status = comparison_report.EXIT_STATUS[status]
    verdict = [] if threshold is None else [f"verdict: {status}"]
    text = comparison_report.format_blocks([*comparison_report.make_history_blocks(name, histories), *verdict])
    is_json = options.format == "json"
    content = comparison_report.make_history_json(name, histories, status, exit_status) if is_json else text
    _print_or_write(options.out, content, text)
    if options.figures is not None:
        _write_figures(comparison_report.make_history_charts(name, histories), Path(options.figures))
    return exit_status


def _judge_histories(configurations: list[ConfigurationHistory], threshold: float | None) -> str:
    """Return the outcome; only a threshold makes it a regression, or too little data."""
    if threshold is None:
        return comparison.OK
    changes = [each.change for each in configurations if each.change is not None]
    if any(change.ratio.ratio < 1 - threshold for change in changes):
        return comparison.REGRESSION
    return comparison.OK if all(each.has_verdict for each in configurations) else TOO_LITTLE_DATA


def _print_comparison(options: argparse.Namespace, compared: Comparison, status: int) -> None:
    """Print the comparison in the chosen format; with --out write that to the file, and print the text."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else comparison_report.WIDTH
    text = comparison_report.format_comparison(compared, width)
    content = {
        "text": lambda: comparison_report.format_comparison(compared) if options.out else text,
        "json": lambda: comparison_report.make_json(compared, status),
        "junit": lambda: comparison_report.make_junit(compared, status),
        "markdown": lambda: comparison_report.make_markdown(compared),
    }[options.format]()
    _print_or_write(options.out, content, text)


def _print_or_write(out: str | None, content: str, text: str) -> None:
    """Print the content; with --out write it to that file, and print the text."""
    if out is None:
        sys.stdout.write(content)
        return
    path = Path(out)
    try:
        write_text(path, content)
    except (OSError, ValueError) as error:  # ValueError for a path without a name, such as `.`
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"--out {path}: {reason}; choose another file") from error
    sys.stdout.write(text)
    print(f"written: {out}")


def _write_figures(charts: list[Chart], folder: Path) -> None:
    """Write the charts, and list the PNG files on standard error, so that JSON on standard output stays JSON."""
    from scalebench.report import figures

    try:
        written = figures.save_charts(charts, folder)
    except OSError as error:
        raise InputError(f"--figures {folder}: {error.strerror or error}; choose another folder") from error
    lines = [f"written: {clean_line(str(path))}" for path in written if path.suffix == ".png"]
    print("\n".join(lines or ["no figures: nothing to draw"]), file=sys.stderr)
