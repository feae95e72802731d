"""Blocks of every kind, for the renderers."""

from scalebench.report.document import Axis, Cell, Chart, Code, Paragraph, Row, Series, Table, Tile, Verdict

TAGS = {"model": "mlp", "strategy": "ddp_gloo", "hardware": "local"}
EVIL = [
    "<script>alert(1)</script>", "![x](http://evil.example/a.png)", "[a](javascript:alert(1))", "a|b\nc\rd",
    "`code` ``` ~~~", "# head", "- list", "1. one", "http://evil.example www.evil.example a@evil.example mailto:a@b",
    "~~x~~ **b** _i_ __x__", "[ref]: http://evil.example", "&lt;script&gt; &#60;b&#62;", "$x^2$ \\", "a\\|b", "<!-- x",
    "===", "--- | ---", "\x1b[31mred\x07\ud800", "\t<img src=x onerror=alert(1)>",
]  # fmt: skip


def line_chart():
    gpus = [1.0, 2.0, 4.0]
    lines = [
        Series("ideal", gpus, [1, 1, 1], style="ideal"),
        Series("ddp_gloo", gpus, [0.95, 0.9, None], [0.94, 0.88, None], [0.96, 0.92, None], TAGS),
        Series("horovod_gloo", [1.0, 4.0], [0.9, 0.701], tags={**TAGS, "strategy": "horovod_gloo"}),
        Series("a point", [2.0], [0.5], style="points"),
    ]
    axes = Axis("devices", ticks=gpus), Axis("efficiency", percent=True)
    return Chart("scaling-efficiency", "Efficiency", *axes, lines, caption="Bands are 95 % intervals over 3 repeats.")


def stacked_chart():
    parts = [
        Series("communication", ["1", "2"], [0.1, 0.3]),
        Series("drift", ["1", "2"], [-0.02, 0.01], [-0.05, 0], [0, 0.02]),
    ]
    return Chart("parts", "Lost efficiency", Axis("devices"), Axis("share", percent=True), parts, "stacked")


def make_blocks(text):
    """A text in every field of every block that may come from results."""
    tags = {"strategy": text, "model": text, "hardware": "x"}
    bars = [Series(text, [text], [1.0], tags=tags, notes=[text]), Series(text, ["2"], [2.0])]
    rows = [Row([Cell(text, text, text), Cell(text)], tags), Row([Cell("b"), Cell("")], {"strategy": "b"})]
    return [
        Verdict(text, [Tile(text, text, text, text, text)], text, [text], text, tags),
        Paragraph(text, tags=tags), Paragraph(text, "answer"), Paragraph(text, "warning"),
        Code(text, "log", text, tags), Code(text, "sh", text), Table("t", text, [text, "b"], rows, caption=text),
        Chart("c", text, Axis(text), Axis(text), bars, "bars", text),
    ]  # fmt: skip
