"""The sections usage and clocks."""

import dataclasses
import os

import pandas as pd
import pytest

from scalebench.core.result import MonitorRecord
from scalebench.report.document import Table
from scalebench.report.sections import usage
from tests.builders import sweeps
from tests.builders.sweeps import BEGIN_S, write_monitored_run
from tests.report.section_blocks import build_blocks, get_block


def test_without_a_monitor_the_memory_of_ranks_is_left(tmp_path):
    runs = [sweeps.run("ddp_gloo", n, monitor=MonitorRecord()) for n in (1, 2)]
    section = build_blocks(usage.usage_groups, tmp_path / "1", runs)
    assert [block.columns for block in section] == [["strategy", "devices", "memory of a rank"]]
    for rank in (rank for result in runs for rank in result.ranks):
        rank.rss_peak_bytes = None
    for name, results in (("2", runs), ("3", [sweeps.failed_run()])):
        assert build_blocks(usage.usage_groups, tmp_path / name, results) == []


@pytest.mark.parametrize(("nodes", "listed"), [(2, True), (1, False)])
def test_traffic_is_shown_between_nodes(nodes, listed, tmp_path):
    """On one node the interfaces carry other programs' traffic."""
    monitors = [MonitorRecord(gpu_util_mean=0.5, net_sent_bytes_per_s=sent_per_s) for sent_per_s in (0.0, 5.0)]
    runs = [sweeps.run("ddp_gloo", gpus, monitor=monitor) for gpus, monitor in zip((1, 2), monitors, strict=True)]
    runs[1].scale.nodes = nodes
    section = build_blocks(usage.usage_groups, tmp_path, runs)
    assert ("network, sent" in get_block(section, Table).columns) == listed


def replace_series(path, content):
    """Put something else in the place of a series."""
    path.rename(path.parents[1] / "elsewhere.parquet")
    if content == "folder":
        path.mkdir()
    elif content == "link":
        os.symlink(path.parents[1] / "elsewhere.parquet", path)
    elif content == "table":
        pd.DataFrame({"time_s": ["now"], "gpu": [1]}).to_parquet(path)
    elif content is not None:
        path.write_bytes(content)


def test_a_counter_that_was_set_back_has_no_rate_there():
    rates = usage._compute_rates([(0.0, 5.0), (1.0, 6.0), (1.0, 7.0), (2.0, 1.0), (3.0, 2.5)])
    assert rates == [(1.0, 1.0), (3.0, 1.5)]


LATER = {"measure": BEGIN_S + 100, "probes": BEGIN_S + 101}


@pytest.mark.parametrize(("changes", "marks", "reason"), [
    *(({"content": content}, None, r"monitor\.parquet")
      for content in (b"", b"PAR1half", b"PAR1" * 1000, None, "folder", "link", "table")),
    ({"file": None}, None, "^it was not monitored$"),
    ({"file": None, "reason": "no room"}, None, "^no room$"),
    ({"file": "../kept.parquet"}, None, r"^there is no \.\./kept\.parquet in its folder$"),
    ({"limit": 100}, None, r"^monitor\.parquet is too large to be drawn$"),
    ({}, {}, "its measured phase has no"), ({}, {"measure": BEGIN_S}, "its measured phase has no"),
    ({}, LATER, "nothing of the measured phase"),
])  # fmt: skip
def test_a_series_that_cannot_be_drawn_has_its_reason(tmp_path, monkeypatch, changes, marks, reason):
    result = write_monitored_run(tmp_path / "run")
    if "content" in changes:
        replace_series(tmp_path / "run" / "monitor.parquet", changes["content"])
    elif "limit" in changes:
        monkeypatch.setattr(usage, "MAX_SERIES_BYTES", changes["limit"])
    else:
        result.monitor = dataclasses.replace(result.monitor, **changes)
    if marks is not None:
        result.ranks[0].marks_s = marks
    with pytest.raises(usage.NoSeries, match=reason):
        usage.make_monitor_charts(result, tmp_path / "run", "clocks-0", "a run", {})
