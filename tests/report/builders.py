"""Sections made by hand from a frame: every kind of block, for tests of the page alone.

Sections of made-up sweeps, and what a test asks of their blocks.

A small report with every kind of block, for the renderers.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from scalebench.core.result import Result
from scalebench.report.document import Axis, Block, Cell, Chart, Code, Row, Section, Series, Table, Words
from scalebench.report.report_data import Evidence, gather
from tests.builders import sweeps

DEVICES = [1.0, 2.0, 4.0]
THROUGHPUT = "throughput_samples_per_s"
Tags = dict[str, str]


def number(value: Any) -> float | None:
    return None if pd.isna(value) else float(value)


def tags(row: Any) -> Tags:
    return {name: str(row[name]) for name in ("model", "strategy", "hardware")}


def sections(frame: pd.DataFrame) -> list[Section]:
    """An answer, curves, bars, a stack, a table, code and a log."""
    ok = frame[frame["status"] == "ok"].sort_values("gpus")
    return [
        Section("answer", "The answer", [Words("Take ddp_gloo on four devices: it keeps 81 % of ideal.", "answer")]),
        Section("scaling", "How it scales", [speedups(ok), throughputs(ok), stack(), table(ok)]),
        Section("problems", "What went wrong", problems(ok), folded=True),
    ]


def speedups(ok: pd.DataFrame) -> Chart:
    series = [Series("ideal", DEVICES, DEVICES, style="ideal")]
    for (_, _, strategy), rows in ok.groupby(["model", "hardware", "strategy"]):
        figures = [[number(value) for value in rows[f"speedup_bare{end}"]] for end in ("", "_low", "_high")]
        series.append(Series(str(strategy), list(map(float, rows["gpus"])), *figures, tags=tags(rows.iloc[0])))
    series.append(Series("ZIH, published", [1, 2, 4], [1.0, 1.7, 3.1], style="published", tags={"hardware": "alpha"}))
    axis = Axis("devices", ticks=DEVICES, from_zero=False)
    return Chart("speedup", "Speedup against bare", axis, Axis("speedup"), series, caption="Bands: 95 % intervals.")


def throughputs(ok: pd.DataFrame) -> Chart:
    series = [
        Series(f"{row['strategy']}", [f"{row['gpus']} x"], [number(row[THROUGHPUT])],
               [number(row["throughput_low"])], [number(row["throughput_high"])], tags(row))
        for _, row in ok.iterrows()
    ]  # fmt: skip
    return Chart("throughput", "Throughput", Axis("devices"), Axis("samples/s"), series, kind="bars")


def stack() -> Chart:
    parts = {"overhead": [0.05, 0.05], "data": [0.02, -0.01], "transfer": [0.08, 0.16]}
    names = ["ddp_gloo", "horovod_gloo"]
    points = [{"strategy": name} for name in names]
    series = [Series(name, names, shares, point_tags=points) for name, shares in parts.items()]
    return Chart("lost", "Where efficiency goes", Axis("strategy"), Axis("lost", percent=True), series, kind="stacked")


def table(ok: pd.DataFrame) -> Table:
    rows = [
        Row([Cell(str(row["strategy"]), link=f"{Path(row['path']).name}/result.json"),
             Cell(str(row["gpus"]), int(row["gpus"])),
             Cell(f"{number(row[THROUGHPUT]):.4g}", number(row[THROUGHPUT])),
             Cell("" if pd.isna(row["speedup_bare"]) else f"{row['speedup_bare']:.2f}", number(row["speedup_bare"]))],
            tags(row))
        for _, row in ok.iterrows()
    ]  # fmt: skip
    numeric = frozenset(["devices", "samples/s", "speedup"])
    return Table("runs", "Runs", ["strategy", "devices", "samples/s", "speedup"], rows, numeric, "Samples/s over all.")


def problems(ok: pd.DataFrame) -> list[Block]:
    tagged: Tags = {"strategy": str(ok["strategy"].iloc[-1])} if len(ok) else {}
    return [
        Words("One run was told to fail.", "warning", tagged),
        Code("python -m scalebench strategy=ddp_gloo gpus=4", title="The same again"),
        Code("Traceback:\n  RuntimeError: told to fail", "log", "The end of rank0.log", tagged),
    ]


B = TypeVar("B", Chart, Table, Words)
SCRIPT = "<script>alert(1)</script>"


def evidence(folder: Path, made: Sequence[Result] = (), **changes: Any) -> Evidence:
    """Of these runs; of the usual sweep where there are none."""
    if made:
        sweeps.write(folder, list(made))
    else:
        sweeps.sweep(folder)
    found = gather([folder])
    for name, value in changes.items():
        setattr(found, name, value)
    return found


def of_kind(section: Section | None, kind: type[B], id_begins: str = "") -> list[B]:
    assert section is not None
    found = [block for block in section.blocks if isinstance(block, kind)]
    return [block for block in found if getattr(block, "id", "").startswith(id_begins)]


def one(section: Section | None, kind: type[B], id_begins: str = "") -> B:
    (found,) = of_kind(section, kind, id_begins)
    return found


def ids(section: Section | None) -> list[str]:
    assert section is not None
    return [block.id for block in section.blocks if isinstance(block, Chart | Table)]


def named(chart: Chart, name: str) -> Series:
    (found,) = [series for series in chart.series if series.name == name]
    return found


def column(table: Table, head: str) -> dict[str, Any]:
    """Values of a column by the words of the row's first cells, up to the devices."""
    last = table.columns.index("gpus") if "gpus" in table.columns else 0
    names = [" ".join(cell.text for cell in row.cells[: last + 1]) for row in table.rows]
    assert len(set(names)) == len(names)
    number = table.columns.index(head)
    return {name: row.cells[number].value for name, row in zip(names, table.rows, strict=True)}


def frames_own(chart: Chart, pooled: pd.DataFrame, name: str, stem: str = "", x: str = "gpus") -> int:
    """Asserts that each point of the curves, whose names are strategies', is the frame's, limits too; how many."""
    points = 0
    for series in chart.series:
        if series.style in ("ideal", "published"):
            continue
        for place, at in enumerate(series.x):
            rows = pooled[(pooled["strategy"] == series.name) & (pooled[x] == at) & (pooled["status"] == "ok")]
            (row,) = rows.to_dict("records")
            assert series.y[place] == known(row[name])
            if series.low:
                assert (series.low[place], series.high[place]) == tuple(
                    known(row[f"{stem or name}_{end}"]) for end in ("low", "high")
                )
            assert series.tags["strategy"] == row["strategy"] and series.tags["hardware"] == row["hardware"]
            points += 1
    return points


def known(value: Any) -> float | None:
    return None if pd.isna(value) else float(value)


def texts(block: Block) -> str:
    """All that a block says."""
    if isinstance(block, Table):
        cells = [cell.text for row in block.rows for cell in row.cells]
        return " ".join([block.title, block.caption, *block.columns, *cells])
    if isinstance(block, Chart):
        return " ".join([block.title, block.caption, *(series.name for series in block.series)])
    return block.text


TAGS = {"model": "mlp", "strategy": "ddp_gloo", "hardware": "local"}
EVIL = [
    "<script>alert(1)</script>",
    "![x](http://evil.example/a.png)",
    "[a](javascript:alert(1))",
    "a|b\nc\rd",
    "`code` ``` ~~~",
    "# head",
    "- list",
    "1. one",
    "http://evil.example www.evil.example a@evil.example mailto:a@b",
    "~~x~~ **b** _i_ __x__",
    "[ref]: http://evil.example",
    "&lt;script&gt; &#60;b&#62;",
    "$x^2$ \\",
    "a\\|b",
    "<!-- x",
    "===",
    "--- | ---",
    "\x1b[31mred\x07\ud800",
    "\t<img src=x onerror=alert(1)>",
]


def lines() -> Chart:
    gpus = [1.0, 2.0, 4.0]
    return Chart(
        "scaling-efficiency",
        "Efficiency",
        Axis("devices", ticks=gpus),
        Axis("efficiency", percent=True),
        [
            Series("ideal", gpus, [1, 1, 1], style="ideal"),
            Series("ddp_gloo", gpus, [0.95, 0.9, None], [0.94, 0.88, None], [0.96, 0.92, None], TAGS),
            Series("horovod_gloo", [1.0, 4.0], [0.9, 0.701], tags={**TAGS, "strategy": "horovod_gloo"}),
            Series("the study's", [2.0], [0.5], style="published"),
        ],
        caption="Bands are 95 % intervals over 3 launches.",
    )


def stacked() -> Chart:
    parts = [
        Series("transfer", ["1", "2"], [0.1, 0.3]),
        Series("drift", ["1", "2"], [-0.02, 0.01], [-0.05, 0], [0, 0.02]),
    ]
    return Chart("parts", "Lost efficiency", Axis("devices"), Axis("share", percent=True), parts, "stacked")


def long() -> Chart:
    """Two clocks with times of their own, hundreds of points."""
    found = [Series(f"gpu{k}", [i + k / 2 for i in range(500)], [1400.0 - i % 7 for i in range(500)]) for k in (0, 1)]
    return Chart("clocks", "Clocks", Axis("s"), Axis("MHz", from_zero=False), found)


def report() -> list[Section]:
    rows = [
        Row([Cell("ddp_gloo"), Cell("12,345 ± 0.8 %", 12345.0), Cell("log", link="1/rank 0 (b).log")], TAGS),
        Row([Cell("horovod_gloo"), Cell("", None), Cell("no <NCCL> | here")]),
    ]
    table = Table(
        "t", "Table", ["strategy", "samples/s", "remarks"], rows, frozenset({"samples/s"}), "Its caption."
    )  # fmt: skip
    codes = [Code("python -m scalebench gpus=2", "sh", "Again"), Code("a\n````\nb", "log", "<tail>")]
    answer = [Words("ddp_gloo, tied with [nobody].", "answer"), Words("Plain."), Words("", "plain")]
    return [
        Section("answer", "Answer", answer),
        Section("scaling", "Scaling", [lines(), table, stacked()]),
        Section("clocks", "Clocks & more", [Words("A machine that throttles.", "warning")]),
        Section("problems", "Problems", codes, folded=True),
    ]


def bars(text: str) -> list[Series]:
    return [Series(text, [text], [1.0]), Series(text, ["2"], [2.0])]


def hostile() -> list[Section]:
    """EVIL in every text that may come from results."""
    blocks = []
    for text in EVIL:
        blocks += [
            Words(text), Words(text, "answer"), Words(text, "warning"), Code(text, "log", text), Code(text, "sh", text),
            Table("t", text, [text, "b"], [Row([Cell(text, link=text), Cell(text)])], caption=text),
            Chart("c", text, Axis(text), Axis(text), bars(text), "bars", text),
        ]  # fmt: skip
    return [Section("problems", text, blocks) for text in EVIL[:2]]
