"""Sections with every kind of block, made of a sweep's curves, for tests of the page alone."""

from pathlib import Path

from scalebench.report import document as doc
from scalebench.report import spec, tables
from scalebench.report.document import Axis, Chart, Code, Paragraph, Section, Series

RATE = "throughput_samples_per_s"


def sections(report_data):
    """An answer, curves, bars, a stack, a table, code and a log."""
    rows = [(curve, row) for curve in report_data.curves for row in curve.rows]
    rows.sort(key=lambda pair: pair[1]["gpus"])
    lines = [
        *doc.make_lines(report_data.curves, "speedup_bare"),
        Series("elsewhere", [1, 2, 4], [1.0, 1.7, 3.1], style="points", tags={"hardware": "alpha"}),
        Series("ideal", [1.0, 2.0, 4.0], [1.0, 2.0, 4.0], style="ideal"),
    ]
    axes = doc.make_axis("gpus", lines), Axis("speedup")
    speedups = Chart("speedup", "Speedup against bare", *axes, lines, caption="Bands: 95 % intervals.")
    bars = [
        Series(curve.name, [f"{row['gpus']} x"], [row[RATE]], [row["throughput_low"]], [row["throughput_high"]],
               curve.tags)
        for curve, row in rows
    ]  # fmt: skip
    throughputs = Chart("throughput", "Throughput", Axis("devices"), Axis("samples/s"), bars, kind="bars")
    table_rows = [
        (curve.tags, {
            "strategy": doc.Cell(curve.name, link=f"{Path(row['path']).name}/result.json"), "devices": row["gpus"],
            "samples/s": (row[RATE], "{:.4g}".format), "speedup": tables.make_cell(row, "speedup_bare"),
        })
        for curve, row in rows
    ]  # fmt: skip
    table = spec.make_table("runs", "Runs", table_rows, caption="Samples/s over all.")
    tagged = {"strategy": rows[-1][0].tags["strategy"]} if rows else {}
    return [
        Section("answer", "The answer", [Paragraph("Take ddp_gloo on four devices.", "answer")], folded=False),
        Section("scaling", "How it scales", [speedups, throughputs, stack(), table], folded=False),
        Section("problems", "What went wrong", [
            Paragraph("One run was failed as configured.", "warning", tagged),
            Code("scalebench strategy=ddp_gloo gpus=4", title="The same again"),
            Code("Traceback:\n  RuntimeError: failed as configured", "log", "The end of rank0.log", tagged),
        ]),
    ]  # fmt: skip


def stack():
    parts = {"wrapper": [0.05, 0.05], "data": [0.02, -0.01], "communication": [0.08, 0.16]}
    names = ["ddp_gloo", "horovod_gloo"]
    points = [{"strategy": name} for name in names]
    series = [Series(name, names, shares, point_tags=points) for name, shares in parts.items()]
    return Chart("lost", "Where efficiency goes", Axis("strategy"), Axis("lost", percent=True), series, kind="stacked")
