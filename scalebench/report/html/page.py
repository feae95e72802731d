"""Writes a report as one HTML file that needs no server, no network and no other file."""

from __future__ import annotations

import base64
import contextlib
import hashlib
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from scalebench import __version__
from scalebench.analysis.ranking import join_with_and
from scalebench.analysis.scaling_curves import format_group_title, group_curves, plain_rows
from scalebench.core.config_files import read_strategy_config
from scalebench.core.errors import InputError
from scalebench.core.json_files import write_output
from scalebench.core.machine.machine import describe_machine
from scalebench.core.units import format_count
from scalebench.core.untrusted import clean_text
from scalebench.report import document as doc
from scalebench.report.html.render import list_filters, make_views
from scalebench.report.report_data import HomeFolder, ReportData, make_relative_link
from scalebench.report.sections import make_sections

if TYPE_CHECKING:
    import pandas as pd

SCRIPTS = "theme.js charts.js tables.js filters.js page.js".split()
# From npm's plotly.js-basic-dist-min 4.1.1, unchanged: lines and bars, in a quarter of the size of Python's bundle.
PLOTLY = "plotly-basic.min.js"
STRICT = '"use strict";\n'
MAX_TITLE_NAMES = 3
TABLE_FILE = "results.csv"  # which tables.write_tables writes
STATUSES = "ok failed oom timeout cancelled unsupported".split()  # in the order of the page


def write(report_data: ReportData, path: Path, sections: Iterable[doc.Section] | None = None) -> Path:
    """Write the report to `path`, whose folder is made if necessary, with `sections` instead of all if there are any.

    An existing page is replaced at the end, in one step. Raises OSError if it cannot be written.
    """
    text = render_page(report_data, path.parent, list(make_sections(report_data) if sections is None else sections))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_output(path, text)
    return path


def render_page(report_data: ReportData, folder: Path, sections: list[doc.Section]) -> str:
    """Render the page for a file in `folder`."""
    home = report_data.home if report_data.paths else folder
    has_charts = any(isinstance(block, doc.Chart) for section in sections for block in section.blocks)
    scripts = {
        "page_js": _make_script(STRICT + "\n".join(map(read_asset, SCRIPTS))),
        "plotly_js": _make_script(read_asset(PLOTLY) if has_charts else ""),
    }
    template = Environment(
        loader=PackageLoader("scalebench.report.html", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: clean_text(value) if type(value) is str else value,  # not Markup, a class below it
        trim_blocks=True,
        lstrip_blocks=True,
    ).get_template("page.html")
    return str(
        template.render(
            header=make_header(report_data, home.resolve(), folder.resolve()),
            sections=make_views(sections, home.resolve(), folder.resolve()),
            filters=list_filters(sections),
            css=Markup(read_asset("page.css")),
            policy=make_policy(scripts.values()),
            **scripts,
        )
    )


def make_header(report_data: ReportData, home: Path, folder: Path) -> dict[str, Any]:
    """Return the top of the page: which runs the report is about, when it was made, and what they ran on."""
    counts = {str(name): int(count) for name, count in report_data.frame["status"].value_counts().items()}
    paths, groups = [str(path) for path in report_data.paths], group_curves(report_data.curves)
    machines = []  # such as "alpha: 8 x NVIDIA A100-SXM4-40GB, 48 cores, 1000 GiB"
    for name, run_id in report_data.frame.groupby("hardware", sort=True)["run_id"].first().items():
        try:
            machines.append(f"{name}: {describe_machine(report_data.result(str(run_id)).machine)}")
        except (InputError, OSError):  # that record has been removed since
            machines.append(str(name))
    return {
        "title": make_title(report_data.frame),
        "group": format_group_title(groups[0][0]) if len(groups) == 1 else "",  # of several, each has a label
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "version": __version__,
        "paths": paths if report_data.full_paths else list(map(HomeFolder().hide, paths)),
        "runs": len(report_data.frame),
        "statuses": [(name, counts[name]) for name in dict.fromkeys([*STATUSES, *sorted(counts)]) if counts.get(name)],
        "unreadable": len(report_data.unreadable),
        "table": make_relative_link(TABLE_FILE, home, folder) if (home / TABLE_FILE).is_file() else "",
        "machines": machines,
    }


def make_title(frame: pd.DataFrame) -> str:
    """Return `ddp_gloo and lightning_ddp_gloo, 1 to 2 devices, materials_cnn, 22 Nov 2026`.

    Strategies for one device are left out where there are others: they are what the others are compared with.
    """
    rows = plain_rows(frame[["strategy", "gpus", "model", "started_at", "status"]])
    rows = [row for row in rows if row["status"] == "ok"] or rows
    rows = [row for row in rows if read_strategy_config(str(row["strategy"])).get("max_gpus") != 1] or rows

    def list_names(column: str, plural: str) -> str:
        names = sorted({str(row[column]) for row in rows})
        return join_with_and(names) if len(names) <= MAX_TITLE_NAMES else f"{len(names)} {plural}"

    gpus = sorted({int(row["gpus"]) for row in rows if row["gpus"] is not None})
    devices = f"{gpus[0]} to {gpus[-1]} devices" if len(gpus) > 1 else format_count(gpus[0], "device") if gpus else ""
    parts = [list_names("strategy", "strategies"), devices, list_names("model", "models")]
    with contextlib.suppress(ValueError):  # a record may have no time
        parts.append(f"{datetime.fromisoformat(max(str(row['started_at'] or '') for row in rows)):%-d %b %Y}")
    return ", ".join(filter(None, parts)) or "No runs"


def make_policy(scripts: Iterable[str]) -> str:
    """Return a Content-Security-Policy that allows these scripts and no others, and no request at all.

    Plotly sets styles and offers pictures as blob: and data:. Scripts are allowed by their hashes, so that none that
    slipped in as text could run.
    """
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
        for script in scripts
        if script
    )
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def read_asset(name: str) -> str:
    return resources.files(__package__).joinpath("assets", name).read_text(encoding="utf-8")


def _make_script(text: str) -> Markup:
    if "</script" in text.lower() or "<!--" in text:
        raise ValueError("a script that contains the end of a script cannot be part of a page")
    return Markup(text.replace("\r\n", "\n"))
