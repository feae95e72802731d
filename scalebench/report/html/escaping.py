"""Text of results on its way into a page: it stays text, whatever somebody wrote into it. Layer 3.

HTML itself is escaped by Jinja; here is what it does not know: scripts, plotly's markup, links, control characters.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any
from urllib.parse import quote

from markupsafe import Markup, escape

CONTROLS = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")  # colours of a terminal, bells
FOR_SCRIPT = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&"}


def clean(value: Any) -> Any:
    """Text without what a page cannot show; anything else as it is. Half a character of UTF-16 becomes a mark."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return CONTROLS.sub("", value).encode("utf-8", "replace").decode("utf-8")


def for_script(data: Any) -> Markup:
    """JSON that neither ends the script it stands in nor begins a comment; all beyond ASCII is written as escapes."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return Markup(text.translate(FOR_SCRIPT))


def for_plotly(text: str) -> str:
    """Plotly reads <b> and <a href> in texts, and their entities; so everything becomes entities."""
    return str(escape(str(clean(text))))


def relative(link: str, home: str | os.PathLike[str], beside: str | os.PathLike[str]) -> str:
    """A link from a page in folder `beside` to a file that stands at `link` below `home`.

    It always begins with a dot and has no colon, so that it can neither run a script nor leave the disk.
    """
    target = os.path.normpath(os.path.join(home, "./" + str(clean(link)).lstrip("/")))
    return "./" + quote(os.path.relpath(target, beside).replace(os.sep, "/"), safe="/")
