"""A small report with every kind of block, for the renderers."""

from scalebench.report.document import Axis, Cell, Chart, Code, Paragraph, Row, Section, Series, Table, Tile, Verdict

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
        Series("the study's", [2.0], [0.5], style="published"),
    ]
    axes = Axis("devices", ticks=gpus), Axis("efficiency", percent=True)
    return Chart("scaling-efficiency", "Efficiency", *axes, lines, caption="Bands are 95 % intervals over 3 repeats.")


def stacked_chart():
    parts = [
        Series("communication", ["1", "2"], [0.1, 0.3]),
        Series("drift", ["1", "2"], [-0.02, 0.01], [-0.05, 0], [0, 0.02]),
    ]
    return Chart("parts", "Lost efficiency", Axis("devices"), Axis("share", percent=True), parts, "stacked")


def long_chart():
    """Two clocks with times of their own, hundreds of points."""
    clocks = [Series(f"gpu{k}", [i + k / 2 for i in range(500)], [1400.0 - i % 7 for i in range(500)]) for k in (0, 1)]
    return Chart("clocks", "Clocks", Axis("s"), Axis("MHz", from_zero=False), clocks)


def sample_report():
    rows = [
        Row([Cell("ddp_gloo"), Cell("12,345 ± 0.8 %", 12345.0), Cell("log", link="1/rank 0 (b).log")], TAGS),
        Row([Cell("horovod_gloo"), Cell("", None), Cell("no <NCCL> | here")]),
    ]
    table = Table("t", "Table", ["strategy", "samples/s", "remarks"], rows, frozenset({"samples/s"}), "Its caption.")
    codes = [Code("scalebench gpus=2", "sh", "Again"), Code("a\n````\nb", "log", "<tail>")]
    tiles = [Tile("Throughput", "12,345", "samples/s", "± 0.8 %", "ddp_gloo on 2 devices"), Tile("Speedup", "unknown")]
    verdict = Verdict("Take ddp_gloo.", tiles, "9 % is lost.", ["one repeat", "busy | machine"], "mlp on data", TAGS)
    answer = [Paragraph("ddp_gloo, tied with [nobody].", "answer"), Paragraph("Plain."), Paragraph("", "plain")]
    return [
        Section("answer", "Answer", [verdict, *answer]),
        Section("scaling", "Scaling", [line_chart(), table, stacked_chart()]),
        Section("clocks", "Clocks & more", [Paragraph("A machine that throttles.", "warning")]),
        Section("problems", "Problems", codes),
    ]


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


def hostile_sections():
    blocks = [block for text in EVIL for block in make_blocks(text)]
    return [Section("problems", text, blocks) for text in EVIL[:2]]
