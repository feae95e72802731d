"""What docs/guides/plugins.md prints: its files, its commands with what they answer, its table of faults."""

import re
from pathlib import Path
from typing import NamedTuple

from tests.conftest import ROOT

TEXT = (ROOT / "docs/guides/plugins.md").read_text(encoding="utf-8")
ANY = "..."


class Command(NamedTuple):
    """A line behind `$ ` and the lines below it, where ANY stands for whatever there is."""

    arguments: str
    answer: list[str]


def files():
    """Path within the distribution -> text, of the blocks that a path introduces."""
    actual = re.findall(r"^`([\w./-]+)`:\n\n```\w+\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    return {Path(path): text for path, text in actual}


def blocks(kind):
    return re.findall(rf"^```{kind}\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def commands():
    actual = []
    for line in "".join(blocks("console")).splitlines():
        if line.startswith("$ "):
            actual.append(Command(line.removeprefix("$ "), []))
        else:
            actual[-1].answer.append(line)
    return actual


def faults():
    table = TEXT.split("| what is wrong | the line |")[1].split("\n\n")[0]
    return dict(re.findall(r"^\| ([^|]+) \| `(.+)` \|$", table, re.MULTILINE))


def answers(expected, printed):
    """Whether the printed lines are the expected ones, but for blanks. A line of ANY stands for any lines."""
    parts = [r"(?:.*\n)*?" if line.strip() == ANY else _line(line) for line in expected]
    lines = [" ".join(line.split()) for line in printed.splitlines()]
    text = "".join(f"{line}\n" for line in lines if line)
    return re.fullmatch("".join(parts), text) is not None


def _line(line):
    return ".*".join(re.escape(" ".join(part.split())) for part in line.split(ANY)).replace(".*", " ?.* ?") + "\n"
