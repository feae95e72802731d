"""The errors that a user can put right, each in one line, and how unknown names and foreign exceptions are reported."""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Iterable, Sequence

MAX_MESSAGE_CHARACTERS = 300
MAX_NEAREST_NAMES = 4
MIN_STEM_CHARACTERS = 3  # of a name that others continue; a shorter one is near to everything
REMOTE_PLACE = re.compile(r"\bCaught \S+ (in .+)\.$", re.MULTILINE)  # of PyTorch, before the traceback of a worker
_WORD = re.compile(r"[a-z0-9]+")
NAME_CUTOFF, SHORT_NAME_CUTOFF = 0.75, 0.6  # of difflib's ratio


class InputError(ValueError):
    """A user's mistake in one line: what is wrong, the reason and the way out. Exit status 2."""


class PluginError(InputError):
    """A fault of a plugin or of a user's own function: it fails the runs that need it, but not the sweep."""

    def __init__(self, line: str, log: str = "") -> None:
        """Keep the line, and in `log` the traceback for the log of the run."""
        super().__init__(line)
        self.log = log


def nearest_name(name: str, candidates: Iterable[str]) -> str | None:
    """Return the candidate that is spelt most like `name`, or None when none is near."""
    by_lower = {candidate.lower(): candidate for candidate in candidates}
    # In a short name, one wrong letter weighs more.
    cutoff = SHORT_NAME_CUTOFF if len(name) <= MIN_STEM_CHARACTERS else NAME_CUTOFF
    matches = difflib.get_close_matches(name.lower(), list(by_lower), n=1, cutoff=cutoff)
    return by_lower[matches[0]] if matches else None


def nearest_names(name: str, candidates: Iterable[str]) -> list[str]:
    """Return the candidates that `name` may stand for: those of the same words, those that continue it, or it but for
    its number, or the nearest one. Empty where none is near."""
    names, typed = list(candidates), name.lower()
    if same := [each for each in names if sorted(_WORD.findall(each.lower())) == sorted(_WORD.findall(typed))]:
        return same[:MAX_NEAREST_NAMES]
    stem = typed.rstrip("0123456789")
    if len(stem) >= MIN_STEM_CHARACTERS and (longer := [each for each in names if each.lower().startswith(stem)]):
        return sorted(longer, key=split_number)[:MAX_NEAREST_NAMES]
    nearest = nearest_name(name, names)
    return [] if nearest is None else [nearest]


def split_number(name: str) -> tuple[str, int, str]:
    """Return a sort key of names that puts resnet50 before resnet101."""
    digits = re.search(r"\d+", name)
    return re.sub(r"\d+", "", name), int(digits[0]) if digits else 0, name


def unknown_name_message(kind: str, name: str, candidates: Iterable[str], way_out: str | None = None) -> str:
    """Return `no strategy 'mirorred'; did you mean 'mirrored'?`. Where no name is near, `way_out` follows, else all
    names."""
    return f"no {kind} '{name}'; {suggest_names(name, candidates, way_out)}"


def check_type(key: str, value: object, default: object) -> None:
    """Raise InputError for a value of another type than its default; None has none."""
    kinds = (int, float) if type(default) is float else (type(default),)
    if default is not None and type(value) not in kinds:
        raise InputError(f"{key}={value!r} should be {type(default).__name__}, as its default {default!r}")


def suggest_names(name: str, candidates: Iterable[str], way_out: str | None = None) -> str:
    """Return `did you mean 'mirrored'?`; where no name is near, `way_out`, else all names."""
    names = sorted(candidates)
    nearest = nearest_names(name, names)
    return (
        f"did you mean {join_alternatives(nearest)}?" if nearest else way_out or f"known: {', '.join(names) or 'none'}"
    )


def join_alternatives(names: Sequence[str]) -> str:
    """Return `'a', 'b' or 'c'`."""
    quoted = [f"'{name}'" for name in names]
    return " or ".join([", ".join(quoted[:-1]), quoted[-1]] if len(quoted) > 1 else quoted)


def describe_exception(error: BaseException) -> str:
    """Return the type and message of a foreign exception in one line of limited length."""
    remote = find_remote_cause(str(error))
    if remote is not None:
        return remote[:MAX_MESSAGE_CHARACTERS]
    text = " ".join(str(error).split())[:MAX_MESSAGE_CHARACTERS]
    if isinstance(error, (ImportError, AttributeError)) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def find_remote_cause(text: str) -> str | None:
    """Return where another process or thread failed, and its exception, of a message that holds its traceback, as that
    of a DataLoader's worker does: `in DataLoader worker process 0: ValueError: no label`. None: it holds none."""
    head, marker, tail = text.rpartition("Traceback (most recent call last):\n")
    lines = itertools.dropwhile(lambda line: line.startswith("  ") or not line.strip(), tail.splitlines())
    cause = " ".join(" ".join(lines).split())
    if not marker or not cause:
        return None
    places = REMOTE_PLACE.findall(head)
    return f"{places[-1]}: {cause}" if places else cause
