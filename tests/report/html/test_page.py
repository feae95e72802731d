"""The page as a file: complete, safe, small, and never half-written."""

import base64
import dataclasses
import hashlib
import json
import re
from pathlib import Path

import pandas as pd
import pytest

from scalebench.core.spec import HardwareSpec
from scalebench.report.document import Axis, Cell, Chart, Paragraph, Row, Section, Series, Table, Verdict
from scalebench.report.html.page import make_title, write
from scalebench.report.html.render import dump_json, lift_main_charts
from scalebench.report.report_data import MAX_DETAILED_RUNS, load_report_data
from scalebench.report.sections import make_sections
from tests.builders import sweeps
from tests.report.html.frame_sections import sections
from tests.report.sample_sections import make_blocks
from tests.report.section_blocks import Tags

NASTY = (
    "\"'><img src=x onerror=alert(1)></script></style></pre><script>window.ran=1</script> javascript:alert(1) "
    "<a href='https://example.org/'>here</a>"
)


@pytest.fixture
def report_data(tmp_path):
    sweeps.sweep(tmp_path / "sweep", gpus=(1, 2))
    return load_report_data([tmp_path / "sweep"])


def nasty_sections(text=NASTY):
    return [Section("s", text, make_blocks(text), folded=False)]


def test_a_page_requests_nothing_from_elsewhere(report_data, tmp_path):
    page = write(report_data, tmp_path / "report.html", sections(report_data))
    text = page.read_text(encoding="utf-8")
    tags = Tags(text)
    assert not any("src" in attributes for _, attributes in tags.found)
    assert tags.all("link") == tags.all("iframe") == tags.all("object") == []
    assert all(str(a["href"]).startswith(("./", "#")) for a in tags.all("a"))
    (policy,) = [str(meta["content"]) for meta in tags.all("meta") if meta.get("http-equiv")]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    hashes = re.findall(r"'sha256-([^']+)'", policy)
    scripts = re.findall("<script>(.*?)</script>", text, flags=re.DOTALL)
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    assert hashes == digests and len(hashes) == 2


def test_everything_from_a_result_is_text(report_data, tmp_path):
    plain, nasty = (write(report_data, tmp_path / name, nasty_sections()) for name in ("a.html", "b.html"))
    tags = Tags(nasty.read_text(encoding="utf-8"))
    first, second = (re.sub(rb"\d\d:\d\d UTC", b"", page.read_bytes()) for page in (plain, nasty))
    assert first == second  # but for the minute in which each was made
    assert tags.all("img") == [] and len([script for script in tags.all("script") if not script]) == 2
    assert not any(name.startswith("on") for _, attributes in tags.found for name in attributes)
    assert [str(a["href"])[:2] for a in tags.all("a") if not str(a["href"]).startswith("#")] == ["./"]


def test_options_of_filters_are_there_once_and_only_where_there_is_a_choice(report_data, tmp_path):
    tags = Tags(write(report_data, tmp_path / "report.html", sections(report_data)).read_text(encoding="utf-8"))
    strategies = [("strategy", name) for name in ("bare_torch", "ddp_gloo", "horovod_gloo")]
    boxes = [(box["name"], box["value"]) for box in tags.all("input")]
    assert boxes == [*strategies, ("hardware", "alpha"), ("hardware", "cpu")]


DDP = ("ddp_gloo", 2, "cnn")


@pytest.mark.parametrize(("rows", "title"), [
    ([("bare_torch", 1, "cnn", "ok"), (*DDP, "ok"), ("horovod_gloo", 4, "cnn", "ok")],
     "ddp_gloo and horovod_gloo, 2 to 4 devices, cnn, 11 Nov 2026"),
    ([("bare_torch", 1, "cnn", "ok"), (*DDP, "failed")], "bare_torch, 1 device, cnn, 9 Nov 2026"),
    ([(*DDP, "failed")], "ddp_gloo, 2 devices, cnn, 9 Nov 2026"),
    ([(name, 2, name, "ok") for name in "abcd"], "4 strategies, 2 devices, 4 models, 12 Nov 2026"), ([], "No runs"),
])  # fmt: skip
def test_the_title_says_what_was_compared(rows, title):
    frame = pd.DataFrame(rows, columns=["strategy", "gpus", "model", "status"])
    started_at = [f"2026-11-{9 + day:02}T12:00:00+00:00" for day in range(len(rows))]
    assert make_title(frame.assign(started_at=started_at)) == title


def test_the_three_main_charts_stand_below_the_verdict_and_what_was_varied_above_it(tmp_path):
    sweeps.sweep(tmp_path)
    answer, *others = make_sections(load_report_data([tmp_path]))
    varied = [Paragraph("bfloat16: 1.00", "answer"), Chart("by-precision", "", Axis("precision"), Axis("times"), [])]
    sections = [dataclasses.replace(answer, blocks=[*varied, *answer.blocks]), *others]
    lifted = lift_main_charts(sections)
    assert lifted[0].blocks[:3] == [*varied, answer.blocks[0]] and isinstance(answer.blocks[0], Verdict)
    charts = [block.id for block in lifted[0].blocks[3:6]]
    names = ["scaling-throughput", "scaling-efficiency-bare", "attribution"]
    assert [name.rpartition("-1-")[0] for name in charts] == names
    before, after = ([b for section in each for b in section.blocks] for each in (sections, lifted))
    assert not any(getattr(block, "id", "") in charts for block in after[6:])
    assert len(after) == len(before)
    assert [section.id for section in sections if not section.folded] == ["answer"]


def test_a_heading_whose_charts_were_moved_goes(tmp_path):
    sweeps.sweep(tmp_path)
    answer, scaling = make_sections(load_report_data([tmp_path]), ["answer", "scaling"])
    chart = next(block for block in scaling.blocks if isinstance(block, Chart))
    headings = [Paragraph(text, "heading") for text in ("Scaling", "More devices")]
    blocks = [headings[0], chart, headings[1], Paragraph("8 devices: 4.00 times one")]
    _, lifted = lift_main_charts([answer, dataclasses.replace(scaling, blocks=blocks)])
    assert lifted.blocks == blocks[2:]
    only_charts = dataclasses.replace(scaling, blocks=[chart])  # as where all runs on several nodes have failed
    assert len(lift_main_charts([answer, only_charts])) == 1


def test_charts_of_several_groups_stay_with_their_names(tmp_path):
    runs = [sweeps.run("ddp_gloo", n, run_id=f"{n}{hardware}", hardware=HardwareSpec(hardware))
            for n in (1, 2) for hardware in ("alpha", "cpu")]  # fmt: skip
    sweeps.write_results(tmp_path, runs)
    sections = list(make_sections(load_report_data([tmp_path])))
    assert lift_main_charts(sections) == sections
    assert [section.id for section in sections if not section.folded] == ["answer", "scaling"]


def test_the_page_links_to_the_table_where_there_is_one(report_data, tmp_path):
    def has_link(page, link):
        return f'href="./{link}"' in write(report_data, tmp_path / page).read_text(encoding="utf-8")

    assert not has_link("sweep/report.html", "results.csv")
    (tmp_path / "sweep" / "results.csv").touch()
    assert has_link("sweep/report.html", "results.csv") and has_link("report.html", "sweep/results.csv")


def test_a_page_is_small_and_without_charts_has_no_plotly(report_data, tmp_path):
    assert write(report_data, tmp_path / "report.html").stat().st_size < 2_000_000
    text = [Section("s", "S", [Paragraph("nothing more")])]
    assert write(report_data, tmp_path / "report.html", text).stat().st_size < 100_000
    long = Chart("c", "C", Axis("s"), Axis("MHz"), [Series("a", list(map(float, range(1000))), [1.0] * 1000)])
    page = write(report_data, tmp_path / "report.html", [Section("s", "S", [long])]).read_text(encoding="utf-8")
    assert "1 point of 3" in page and page.count("<tr><td>") == 334, "of many points some are in the table"


@pytest.mark.slow
def test_two_hundred_runs_are_a_page_of_less_than_two_megabytes(tmp_path):
    """With probes, and a few more than are shown in detail."""
    names = "ddp_gloo ddp_nccl horovod_gloo horovod_mpi horovod_nccl lightning_ddp_gloo mirrored fsdp multiworker zero1"
    sweeps.sweep(tmp_path, ("bare_torch", *names.split()), gpus=(1, 2, 4, 8), repeats=5)
    report_data = load_report_data([tmp_path])
    assert MAX_DETAILED_RUNS <= len(report_data.frame) <= MAX_DETAILED_RUNS + 5
    assert write(report_data, tmp_path / "report.html").stat().st_size < 2_000_000


def test_failed_runs_and_unreadable_files_are_counted(tmp_path):
    sweeps.write_results(tmp_path / "sweep", [sweeps.failed_run(reason=NASTY)])
    report_data = load_report_data([tmp_path / "sweep"])
    report_data.unreadable.append((tmp_path / "x", "half a file"))
    text = write(report_data, tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<b>1</b> failed" in text and "<b>1</b> not readable" in text and "<img" not in text


def test_a_page_is_replaced_only_when_it_is_complete(report_data, tmp_path, monkeypatch):
    page = tmp_path / "new" / "report.html"
    write(report_data, page, [])
    before = page.read_bytes()

    def fail_to_write(self, *_, **__):
        self.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", fail_to_write)
    with pytest.raises(OSError, match="No space left"):
        write(report_data, page, [])
    assert page.read_bytes() == before and list(page.parent.iterdir()) == [page]


def test_links_lead_to_the_runs_wherever_the_page_is(report_data, tmp_path):
    linked = [Section("s", "S", [Table("t", "T", ["run"], [Row([Cell("0", link="0/result.json")])])])]
    for page in (tmp_path / "sweep" / "report.html", tmp_path / "elsewhere" / "deep" / "report.html"):
        (link,) = re.findall(r'<td><a href="([^"]+)"', write(report_data, page, linked).read_text(encoding="utf-8"))
        assert (page.parent / link).resolve() == (tmp_path / "sweep" / "0" / "result.json").resolve()


SCRIPT_ENDS = "</script><script>alert(1)</script><!-- &amp; \u2028 \u2029 ü \ud800"


def test_json_in_a_script_has_no_html_characters_and_reads_back():
    text = dump_json({"name": SCRIPT_ENDS, "y": [None, 0.5]})
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == {"name": SCRIPT_ENDS, "y": [None, 0.5]}
    with pytest.raises(ValueError):
        dump_json([float("nan")])
