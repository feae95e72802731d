"""`scalebench compare A B`: what is faster, and how surely; for people and for CI, see docs/comparing.md."""

from __future__ import annotations

import argparse
import math
import os
import shutil
import sys
from pathlib import Path

from scalebench.analysis import comparison
from scalebench.analysis.comparison import Comparison, baseline_store
from scalebench.analysis.comparison.pairing import Launch, launches, once
from scalebench.cli.commands.arguments import CommandParser
from scalebench.core.errors import InputError
from scalebench.core.machine.machine_class import Kind, kind_of
from scalebench.report import comparison_text

FORMATS = ("text", "json", "junit", "markdown")


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("paths", nargs="*", metavar="DIR", help="A and B; or one, with --by, --against or --save")
    parser.add_argument("--by", metavar="KEY", help="compare the values of this key within the folder")
    parser.add_argument("--base", metavar="VALUE", help="the value of that key to compare the others with")
    parser.add_argument("--ignore", action="append", default=[], metavar="KEY", help="a key that may differ")
    parser.add_argument("--threshold", metavar="SHARE", help="smallest change that matters, such as 3%%; for CI")
    parser.add_argument("--against", metavar="NAME", help="compare with a saved baseline")
    parser.add_argument("--missing", choices=("fail", "ok"), default="fail", help="where that baseline does not exist")
    parser.add_argument("--save", metavar="NAME", help="save the runs as a baseline")
    parser.add_argument("--replace", action="store_true", help="of --save: replace a baseline of that name")
    parser.add_argument("--format", choices=FORMATS, default="text")
    parser.add_argument("--out", metavar="FILE", help="write that format to a file, and print the text")


def main(chosen: argparse.Namespace) -> int:
    chosen.ignore = [key for word in chosen.ignore for key in word.split(",") if key]
    _check(chosen)
    if chosen.save is not None:
        return _save(chosen)
    threshold = None if chosen.threshold is None else share(chosen.threshold)
    found = _compared(chosen, threshold)
    status = 0 if found.no_baseline and chosen.missing == "ok" else comparison_text.EXIT_STATUS[found.status]
    _show(chosen, found, status)
    return status


def _check(chosen: argparse.Namespace) -> None:
    """Words that make no sense together: InputError."""
    ways = [name for name in ("save", "against", "by") if getattr(chosen, name) is not None]
    if len(ways) > 1:
        raise InputError(f"compare: --{ways[0]} and --{ways[1]} do not go together")
    if chosen.base is not None and chosen.by is None:
        raise InputError("compare: --base names a value of the key of --by KEY")
    if chosen.missing == "ok" and chosen.against is None:
        raise InputError("compare: --missing ok is for --against NAME")
    if chosen.replace and chosen.save is None:
        raise InputError("compare: --replace is for --save NAME")
    if not ways and len(chosen.paths) != 2:
        raise InputError("compare needs two folders, A and B; or one and --by KEY, --against NAME or --save NAME")
    if not chosen.paths:
        raise InputError(f"compare --{ways[0]} needs the folder of a run or a sweep")


def share(word: str) -> float:
    """`3%`, `3 %` and `0.03` as 0.03; InputError for what is no share from 0 to below 1."""
    number, percent = word.strip().removesuffix("%"), word.strip().endswith("%")
    try:
        value = float(number) / (100 if percent else 1)
    except ValueError:
        value = math.nan
    if not 0 <= value < 1:
        raise InputError(f"--threshold {word}: write a share of throughput from 0 to below 1, such as 3% or 0.03")
    return value


def _save(chosen: argparse.Namespace) -> int:
    for kind, folder, runs in baseline_store.save(chosen.save, chosen.paths, chosen.replace):
        print(f"baseline '{chosen.save}': {runs} {'run' if runs == 1 else 'runs'} of {kind}: {folder}")
    return 0


def _compared(chosen: argparse.Namespace, threshold: float | None) -> Comparison:
    sides = [launches([path], number) for number, path in enumerate(chosen.paths)]
    if chosen.by is not None:
        every = once(launch for side in sides for launch in side)
        return comparison.compare_by(every, chosen.by, chosen.base, chosen.ignore, threshold)
    if chosen.against is None:
        return _named(comparison.compare(*sides, chosen.ignore, threshold), *chosen.paths)
    here = once(launch for side in sides for launch in side)
    folders = baseline_store.load_folder(chosen.against, _kinds(here))
    if not folders:
        reason = baseline_store.no_baseline(chosen.against, _kinds(here))
        return Comparison(None, chosen.ignore, threshold, [], [], reason, no_baseline=True)
    found = comparison.compare(launches(folders), here, chosen.ignore, threshold)
    return _named(found, f"baseline '{chosen.against}'", ", ".join(chosen.paths))


def _named(found: Comparison, a: str, b: str) -> Comparison:
    found.notes.insert(0, f"A is {a}, B is {b}")
    return found


def _kinds(found: list[Launch]) -> list[Kind]:
    return [kind_of(launch.record.machine) for launch in found]


def _show(chosen: argparse.Namespace, found: Comparison, status: int) -> None:
    """To the terminal in the format that was chosen; with --out that goes to the file, and the text to the terminal."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else comparison_text.WIDTH
    text = comparison_text.format_comparison(found, width)
    made = {
        "text": lambda: comparison_text.format_comparison(found) if chosen.out else text,
        "json": lambda: comparison_text.make_json(found, status),
        "junit": lambda: comparison_text.make_junit(found, status),
        "markdown": lambda: comparison_text.make_markdown(found),
    }[chosen.format]()
    if chosen.out is None:
        sys.stdout.write(made)
        return
    write_whole(Path(chosen.out), made)
    sys.stdout.write(text)
    print(f"written: {chosen.out}")


def write_whole(path: Path, text: str) -> None:
    """The file whole or not at all; InputError where it cannot be written."""
    temporary = path.parent / f".{path.name}.{os.getpid()}"
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise InputError(f"--out {path}: {error.strerror or error}; choose another file") from error
