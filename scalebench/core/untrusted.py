"""Files and texts that others wrote: read within limits, and shown so that they can do nothing to a terminal or a page.

A result may come from anybody. So a file beside it counts only if it is a plain file inside the run's own folder, and a
bad one is one line, beside which the others are read.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

MAX_FILE_BYTES = 256 * 2**20  # the record of a thousand ranks has some ten
MAX_SMALL_FILE_BYTES = 16 * 2**20  # of one config, or one state
MAX_LIST_BYTES = 64 * 1024
TERMINAL_COLOURS = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")  # and cursor movements
# Line breaks and tabs stay, and what only joins or separates letters (joiners of scripts and emoji, hard spaces).
CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff\ufffe\uffff]")
# C1 controls, which some terminals obey, line separators, and marks that are invisible or turn the direction of text,
# by which a command may look other than it is.
INVISIBLE_CHARACTERS = re.compile(
    r"[\x80-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    r"\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e007f]"
)


class FileRefused(ValueError):
    """A file that is not read, and why, in words that follow its name."""


def read_plain_file(path: Path, follow_link: bool = False, max_bytes: int = MAX_FILE_BYTES) -> bytes:
    """Return the content of a plain file.

    Raises FileRefused for a pipe (opening it would wait for a writer), a device, a link unless `follow_link`, and a
    file of more than `max_bytes`; OSError for one that is missing or must not be read, and for a folder.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow_link else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        if path.is_symlink() and not follow_link:
            raise FileRefused("is a link; put the file itself there") from error
        if path.is_socket():
            raise FileRefused("is not a plain file; remove it") from error
        raise
    with open(descriptor, "rb", buffering=0) as file:  # which raises IsADirectoryError
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise FileRefused("is not a plain file; remove it")
        if status.st_size > max_bytes:
            raise FileRefused(f"is larger than {max_bytes:,} bytes; remove it")
        return file.read()  # read(max_bytes) would set that much memory aside, for each file


def find_run_file(folder: Path, name: str) -> Path | None:
    """Return the plain file `name` of `folder`; None if there is none, or if it is elsewhere, also through a link."""
    relative = Path(name)
    if "\0" in name or relative.is_absolute() or ".." in relative.parts:
        return None
    try:
        path = (folder / relative).resolve()
        return path if path.is_file() and path.is_relative_to(folder.resolve()) else None
    except OSError:  # a name that is too long
        return None


def read_text_list(folder: Path, name: str) -> list[str]:
    """Return the texts of a YAML file that holds one flat list of them; empty if there is no such file.

    Nothing is resolved or expanded: ${oc.env:HOME} stays these letters. Raises FileRefused for a file outside the
    folder and for anything but such a list, OSError.
    """
    import msgspec  # not above: Horovod is built before it is there

    if not os.path.lexists(folder / name):
        return []
    path = find_run_file(folder, name)
    if path is None:
        raise FileRefused("is not a plain file inside the folder of its run; remove it")
    try:
        return msgspec.yaml.decode(read_plain_file(path, max_bytes=MAX_LIST_BYTES), type=list[str])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        if isinstance(error, FileRefused):
            raise
        raise FileRefused(f"is not a flat list of texts ({' '.join(str(error).split())[:200]}); remove it") from error


def clean_text(text: str) -> str:
    """Return a text that shows all it has, and does nothing: terminal colours are dropped, control characters and lone
    surrogates become U+FFFD, marks that are invisible or turn the direction of text are written `<U+202E>`. Carriage
    returns begin a line."""
    if text.isprintable():
        return text
    text = TERMINAL_COLOURS.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    text = CONTROL_CHARACTERS.sub("\N{REPLACEMENT CHARACTER}", text)
    return INVISIBLE_CHARACTERS.sub(lambda match: f"<U+{ord(match[0]):04X}>", text)


def clean_line(text: str) -> str:
    """Return a text as `clean_text` does, in one line."""
    return " ".join(clean_text(text).split())
