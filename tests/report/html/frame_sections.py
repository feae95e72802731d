"""Sections built directly from a frame, with every kind of block, for tests of the page alone."""

from pathlib import Path

import pandas as pd

from scalebench.report.document import Axis, Cell, Chart, Code, Paragraph, Row, Section, Series, Table

DEVICES = [1.0, 2.0, 4.0]
THROUGHPUT = "throughput_samples_per_s"


def number(value):
    return None if pd.isna(value) else float(value)


def tags(row):
    return {name: str(row[name]) for name in ("model", "strategy", "hardware")}


def sections(frame):
    """An answer, curves, bars, a stack, a table, code and a log."""
    ok = frame[frame["status"] == "ok"].sort_values("gpus")
    answer = Paragraph("Take ddp_gloo on four devices: it keeps 81 % of ideal.", "answer")
    return [
        Section("answer", "The answer", [answer], folded=False),
        Section("scaling", "How it scales", [speedups(ok), throughputs(ok), stack(), table(ok)], folded=False),
        Section("problems", "What went wrong", problems(ok)),
    ]


def speedups(ok):
    series = [Series("ideal", DEVICES, DEVICES, style="ideal")]
    for (_, _, strategy), rows in ok.groupby(["model", "hardware", "strategy"]):
        figures = [[number(value) for value in rows[f"speedup_bare{end}"]] for end in ("", "_low", "_high")]
        series.append(Series(str(strategy), list(map(float, rows["gpus"])), *figures, tags=tags(rows.iloc[0])))
    series.append(Series("ZIH, published", [1, 2, 4], [1.0, 1.7, 3.1], style="published", tags={"hardware": "alpha"}))
    axis = Axis("devices", ticks=DEVICES, from_zero=False)
    return Chart("speedup", "Speedup against bare", axis, Axis("speedup"), series, caption="Bands: 95 % intervals.")


def throughputs(ok):
    series = [
        Series(f"{row['strategy']}", [f"{row['gpus']} x"], [number(row[THROUGHPUT])],
               [number(row["throughput_low"])], [number(row["throughput_high"])], tags(row))
        for _, row in ok.iterrows()
    ]  # fmt: skip
    return Chart("throughput", "Throughput", Axis("devices"), Axis("samples/s"), series, kind="bars")


def stack():
    parts = {"wrapper": [0.05, 0.05], "data": [0.02, -0.01], "communication": [0.08, 0.16]}
    names = ["ddp_gloo", "horovod_gloo"]
    points = [{"strategy": name} for name in names]
    series = [Series(name, names, shares, point_tags=points) for name, shares in parts.items()]
    return Chart("lost", "Where efficiency goes", Axis("strategy"), Axis("lost", percent=True), series, kind="stacked")


def table(ok):
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


def problems(ok):
    tagged = {"strategy": str(ok["strategy"].iloc[-1])} if len(ok) else {}
    return [
        Paragraph("One run was failed as configured.", "warning", tagged),
        Code("scalebench strategy=ddp_gloo gpus=4", title="The same again"),
        Code("Traceback:\n  RuntimeError: failed as configured", "log", "The end of rank0.log", tagged),
    ]
