"""The errors that a user can put right, each in one line, and how unknown names and foreign exceptions are reported."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

MAX_MESSAGE_CHARACTERS = 300


class InputError(ValueError):
    """A user's mistake in one line: what is wrong, the reason and the way out. Exit status 2."""


class PluginError(InputError):
    """A fault of a plugin or of a user's own function: it fails the runs that need it, but not the sweep."""

    def __init__(self, line: str, log: str = "") -> None:
        """Keep the line, and in `log` the traceback for the log of the run."""
        super().__init__(line)
        self.log = log


def nearest_name(name: str, candidates: Iterable[str]) -> str | None:
    """Return the candidate that is most like `name`, or None when none is near."""
    matches = difflib.get_close_matches(name, list(candidates), n=1, cutoff=0.6)
    return matches[0] if matches else None


def unknown_name_message(kind: str, name: str, candidates: Iterable[str]) -> str:
    """Return `no strategy 'mirorred'; did you mean 'mirrored'?`, with all names instead when none is near."""
    names = sorted(candidates)
    nearest = nearest_name(name, names)
    if nearest is not None:
        return f"no {kind} '{name}'; did you mean '{nearest}'?"
    return f"no {kind} '{name}'; known: {', '.join(names) or 'none'}"


def describe_exception(error: BaseException) -> str:
    """Return the type and message of a foreign exception in one line of limited length."""
    text = " ".join(str(error).split())[:MAX_MESSAGE_CHARACTERS]
    if isinstance(error, (ImportError, AttributeError)) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
