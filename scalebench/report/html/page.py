"""`write`: a report as one HTML file that needs nothing else: no server, no network, no other file. Layer 3."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from scalebench.report import sections
from scalebench.report.blocks import Chart, Section
from scalebench.report.evidence import Evidence
from scalebench.report.html.escaping import clean
from scalebench.report.html.header import header
from scalebench.report.html.render import Renderer, choices, folder_of

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
