"""The parser, the values of options and the console that commands share; an error is one line."""

from __future__ import annotations

import argparse
import contextlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from scalebench.core.spec import Config

PLAIN_WIDTH_CHARACTERS = 400  # of a table in a file or a pipe: one line for each row
FOLDERS_HELP = "folder of a run or a sweep, or a result.json; default: the newest sweep below ./multirun"
MAX_COUNT = 10_000_000
T = TypeVar("T")


def folders_or_newest(folders: list[str]) -> list[str]:
    """Return these folders; where there are none, the newest sweep below ./multirun, which a line on stderr names.
    Runs in them whose program was killed get their results, so that they are rows."""
    from scalebench.core.run_folder import LOCK_FILE
    from scalebench.core.sweep_file import SWEEP_FILE, find_newest_sweep
    from scalebench.sweeps.console import Console

    if not folders:
        newest = find_newest_sweep()
        Console.print_error(f"{newest} is the newest {'sweep' if (newest / SWEEP_FILE).exists() else 'run'}")
        folders = [str(newest)]
    for lock in [lock for folder in folders for lock in Path(folder).rglob(LOCK_FILE)]:
        from scalebench.runner.parent import finish_killed_run  # imports much that commands seldom need

        finish_killed_run(lock.parent)
    return folders


def read_names(text: str) -> list[str]:
    """Read the names in `a, b`, as the type of an option."""
    return [name.strip() for name in text.split(",") if name.strip()]


def _make_reader(what: str, is_valid: Callable[[float], bool], form: Callable[[float], T]) -> Callable[[str], T]:
    """Return the type of an option that should be `what`; 3% is read as 0.03."""

    def read(text: str) -> T:
        number = text.strip().removesuffix("%")
        try:
            value = float(number) / (1 if number == text.strip() else 100)
        except ValueError:
            value = math.nan
        if not is_valid(value):
            raise argparse.ArgumentTypeError(f"'{text}' should be {what}")
        return form(value)

    return read


read_row = _make_reader("the number of a row, such as 3", lambda n: n % 1 == 0, int)
read_count = _make_reader(f"a whole number from 1 to {MAX_COUNT:,}", lambda n: 0 < n <= MAX_COUNT and n % 1 == 0, int)
read_positive = _make_reader("a number above 0", lambda n: 0 < n < math.inf, float)
read_efficiency = _make_reader("a share above 0 and up to 1, such as 0.8", lambda n: 0 < n <= 1, float)
read_threshold = _make_reader(
    "a share of throughput from 0 to below 1, such as 3% or 0.03", lambda n: 0 <= n < 1, float
)


def read_counts(text: str) -> list[int]:
    return [read_count(part) for part in read_names(text)]


def compose_overrides(overrides: Sequence[str], *further: str) -> Config:
    """Compose a config. Raise InputError for anything wrong with its overrides; `further` are none of the user's."""
    from scalebench.config.compose import compose_config  # imports Hydra, which takes longer than a command's --help
    from scalebench.config.error_messages import EXPECTED_ERRORS, explain_error
    from scalebench.core.errors import InputError

    try:
        return compose_config([*further, *overrides])
    except EXPECTED_ERRORS as error:
        raise InputError(explain_error(error, list(overrides))) from error


@contextlib.contextmanager
def refuse_unwritable(path: Path, way_out: str) -> Iterator[None]:
    """Raise InputError where the block cannot write to the path, as on a full disk."""
    from scalebench.core.errors import InputError

    try:
        yield
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}; {way_out}") from error


def count_verdicts(results: Iterable[Any], texts: Mapping[str, str]) -> str:
    """Return how many of the results have each verdict: `3 ok, 1 differs`."""
    counts = Counter(result.verdict for result in results)
    return ", ".join(f"{counts[verdict]} {text}" for verdict, text in texts.items())


def make_console() -> Console:
    """Return a console for tables, in which brackets, as in scalebench-train[torch], are text and not markup, and the
    texts of plugins do nothing to a terminal."""
    from rich.console import Console

    from scalebench.core.untrusted import clean_text

    class CleanConsole(Console):
        def render_str(self, text: str, **settings: Any) -> Text:
            return super().render_str(clean_text(text), **settings)

    console = CleanConsole(markup=False, highlight=False)
    console.width = console.width if console.is_terminal else PLAIN_WIDTH_CHARACTERS
    return console


class CommandParser(argparse.ArgumentParser):
    """Raises InputError where argparse would print its usage and exit. No abbreviated options."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **settings})

    def read(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse arguments and options in any order. Raise InputError for anything unknown."""
        from scalebench.core.errors import InputError, unknown_name_message

        options, unknown = self.parse_known_intermixed_args(arguments)
        if unknown:
            command, argument = self._command(), unknown[0].partition("=")[0]
            if argument.startswith("-"):
                names = [name for action in self._actions for name in action.option_strings if name.startswith("--")]
                raise InputError(f"{command}: {unknown_name_message('option', argument, names)}")
            raise InputError(f"{command} takes no further arguments, not '{unknown[0]}'")
        return options

    def error(self, message: str) -> NoReturn:
        from scalebench.core.errors import InputError  # here and above: `--help` need not wait for it

        way_out = "" if " should be " in message else f"; {self.prog} --help has the usage"
        raise InputError(f"{self._command()}: {message}{way_out}")

    def _command(self) -> str:
        return self.prog.removeprefix("scalebench ")
