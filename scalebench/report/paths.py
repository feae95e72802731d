"""Paths in a report: links relative to its file, and `~` for the home folder of the user."""

from __future__ import annotations

import os
import re
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from scalebench.core.untrusted import clean_text
from scalebench.report.document import Cell

NUMBER_TYPES = (float, int, type(None))


class HomeFolder:
    """The home folder of the user, which is `~` in a report: reports are shown to others."""

    def __init__(self) -> None:
        home = Path(os.path.expanduser("~"))
        homes = {str(path) for path in (home, home.resolve()) if len(path.parts) > 1 and path.is_absolute()}
        self._homes = tuple(homes)
        names = "|".join(map(re.escape, sorted(homes, key=len, reverse=True))) or r"(?!)"
        self._pattern = re.compile(rf"(?<![\w.~-])(?:{names})(?![\w-]|\.\w)")

    def hide(self, text: str) -> str:
        """Return a text with `~` for the home folder where a path begins with it."""
        return self._pattern.sub("~", text) if "/" in text and any(home in text for home in self._homes) else text

    def hide_in(self, part: Any) -> Any:
        """Return a section, a block or any part of one with `~` in all its texts; itself, if there is none to write."""
        if isinstance(part, str):
            return self.hide(part)
        if isinstance(part, Cell):
            value = self.hide(part.value) if isinstance(part.value, str) else part.value
            texts = {"text": self.hide(part.text), "value": value, "note": self.hide(part.note)}
            same = all(getattr(part, name) == text for name, text in texts.items())
            return part if same else replace(part, **texts)  # type: ignore[arg-type]
        if isinstance(part, (list, tuple)):
            if all(type(each) in NUMBER_TYPES for each in part):  # by far the most
                return part
            changed = [self.hide_in(each) for each in part]
            return part if all(a is b for a, b in zip(changed, part, strict=True)) else changed
        if is_dataclass(part) and not isinstance(part, type):
            values = {each.name: getattr(part, each.name) for each in fields(part) if each.name != "id"}
            texts = {name: new for name, value in values.items() if (new := self.hide_in(value)) is not value}
            return replace(part, **texts) if texts else part
        return part


def make_relative_link(link: str, home: str | os.PathLike[str], folder: str | os.PathLike[str]) -> str:
    """Return a link from a document in `folder` to the file `link` below `home`.

    It always begins with a dot and has no colon, so that it can neither run a script nor leave the disk.
    """
    target = os.path.normpath(os.path.join(home, "./" + clean_text(link).lstrip("/")))
    return "./" + quote(os.path.relpath(target, folder).replace(os.sep, "/"), safe="/")
