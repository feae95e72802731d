"""Unknown names: one line with the nearest known one. Layer 0."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known name most like `word`, or None when none is near."""
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return found[0] if found else None


def no_such(kind: str, word: str, known: Iterable[str]) -> str:
    """`no strategy 'mirorred'; did you mean 'mirrored'?`, or the known names when none is near."""
    names = sorted(known)
    best = nearest(word, names)
    if best is not None:
        return f"no {kind} '{word}'; did you mean '{best}'?"
    return f"no {kind} '{word}'; known: {', '.join(names) or 'none'}"


class InputError(ValueError):
    """A user's mistake, said in one line: the thing, the reason and the way out. Exit status 2."""
