"""`write`: a report as one HTML file that needs nothing else: no server, no network, no other file. Layer 3.

What a page says first: of which runs it is, when it was made, and on what they ran. Layer 3.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from scalebench import __version__
from scalebench.core.errors import InputError
from scalebench.core.machine.machine import describe_machine
from scalebench.report import sections
from scalebench.report.document import Chart, Section
from scalebench.report.html.escaping import clean
from scalebench.report.html.render import Renderer, choices, folder_of
from scalebench.report.report_data import Evidence

STATUSES = "ok failed oom timeout cancelled unsupported".split()  # in the order of the page


@dataclass(frozen=True)
class Header:
    title: str
    made: str
    version: str
    paths: Sequence[str]
    runs: int
    statuses: Sequence[tuple[str, int]]
    unreadable: int
    machines: Sequence[str]  # "alpha: 8 x NVIDIA A100-SXM4-40GB, 48 cores, 1000 GiB"


def header(evidence: Evidence) -> Header:
    counts = {str(name): int(count) for name, count in evidence.frame["status"].value_counts().items()}
    order = [*STATUSES, *sorted(set(counts) - set(STATUSES))]
    first = evidence.paths[0] if evidence.paths else None
    return Header(
        title=f"Scaling report: {folder_of(first).resolve().name}" if first else "Scaling report",
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        version=__version__,
        paths=[str(path) for path in evidence.paths],
        runs=len(evidence.frame),
        statuses=[(name, counts[name]) for name in order if counts.get(name)],
        unreadable=len(evidence.unreadable),
        machines=_machines(evidence),
    )


def _machines(evidence: Evidence) -> list[str]:
    """In words, of the first run on each hardware; its name alone where that record is gone meanwhile."""
    found = []
    for name, run_id in evidence.frame.groupby("hardware", sort=True)["run_id"].first().items():
        try:
            found.append(f"{name}: {describe_machine(evidence.result(str(run_id)).machine)}")
        except (InputError, OSError):
            found.append(str(name))
    return found


SCRIPTS = "theme.js charts.js tables.js filters.js page.js".split()
STRICT = '"use strict";\n'


def write(evidence: Evidence, path: Path, made: Iterable[Section] | None = None) -> Path:
    """The report of `evidence` at `path`, whose folder is made; `made`: other sections than those that there are.

    A page that is there is replaced at the end, and as a whole. OSError where it cannot be written.
    """
    path = Path(path)
    text = document(evidence, path.parent, list(sections.sections(evidence) if made is None else made))
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        unfinished.write_text(text, encoding="utf-8", newline="\n")
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
    return path


def document(evidence: Evidence, beside: Path, made: list[Section]) -> str:
    """The whole page, for a file in folder `beside`."""
    home = folder_of(evidence.paths[0]) if evidence.paths else beside
    scripts = {"page_js": _script(STRICT + "\n".join(map(asset, SCRIPTS))), "plotly_js": _script(_plotly(made))}
    return str(
        _template().render(
            header=header(evidence),
            sections=Renderer(made, home.resolve(), beside.resolve()).views(),
            choices=choices(made),
            css=Markup(asset("page.css")),
            policy=policy(scripts.values()),
            **scripts,
        )
    )


def policy(scripts: Iterable[str]) -> str:
    """Content-Security-Policy: these scripts and no others, and no request at all.

    Plotly sets styles and hands out pictures as blob: and data:. Scripts are named by their hashes, so that not one
    that slipped in as text could run.
    """
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts if s
    )
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def asset(name: str) -> str:
    return resources.files(__package__).joinpath("assets", name).read_text(encoding="utf-8")


def _plotly(made: list[Section]) -> str:
    """Nearly five megabytes, so only where there is a chart."""
    if not any(isinstance(block, Chart) for section in made for block in section.blocks):
        return ""
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())


def _script(text: str) -> Markup:
    if "</script" in text.lower() or "<!--" in text:
        raise ValueError("a script that holds the end of a script cannot stand in a page")
    return Markup(text.replace("\r\n", "\n"))


def _template() -> Any:
    environment = Environment(
        loader=PackageLoader("scalebench.report.html", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=clean,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html")
