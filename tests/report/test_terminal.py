"""The terminal's tables, and its details of one run."""

import dataclasses
import io
from pathlib import Path

import pytest
from rich.console import Console as RichConsole

from scalebench.analysis.load import survey
from scalebench.analysis.throughput import evaluate_blocks, throughput
from scalebench.core.result import MonitorRecord, write_result
from scalebench.core.units import format_number
from scalebench.report.document import Cell, Row, Table
from scalebench.report.sections.data_or_model import make_terminal_blocks
from scalebench.report.terminal import USAGE_ROWS, list_headline, list_training_facts, list_usage, make_rich_table
from scalebench.sweeps.console import Console
from tests.analysis.prediction.test_data_or_model import make_pairs
from tests.builders import sweeps
from tests.builders.runs import rank, record
from tests.builders.sweeps import make_probed_run, make_probes, training_run

GOLDEN = Path(__file__).parents[1] / "golden"


def show_details(capsys, result, *files):
    """Return the lines that a pipe receives, stripped at their end, of a run with these files in its folder."""
    folder = Path("run")
    folder.mkdir(exist_ok=True)
    for name in files:
        (folder / name).touch()
    write_result(result, folder)
    Console().print_details(folder)
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


def test_all_of_a_run_that_was_measured(capsys):
    monitor = MonitorRecord(
        "monitor.parquet", cpu_util_mean=0.9, cpu_util_ours_mean=0.85, rss_bytes_max=10**9, throttle_reasons=[]
    )
    slower = make_probes(local_step_s=[[0.0066, 0.0069, 0.0066, 0.0069]])
    result = make_probed_run(make_probes(), slower, monitor=monitor, trace="trace.json.gz")
    lines = show_details(capsys, result, "trace.json.gz", "monitor.parquet")
    assert "\n".join(lines) + "\n" == (GOLDEN / "details.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("status", ["failed", "oom", "unsupported"])
def test_a_run_that_is_not_ok_has_no_details(capsys, status):
    assert show_details(capsys, record(status=status, block_s=None)) == []


@pytest.mark.parametrize(
    ("setting", "reason"),
    [(None, "an older version wrote the record"), (False, "measure.probes=false"), (True, "a rank has no probes")],
)
def test_without_probes_the_other_details_are_shown(capsys, setting, reason):
    result = make_probed_run(make_probes(), None)
    result.spec["measure"]["probes"] = setting
    if setting is None:
        del result.spec["measure"]["probes"]
    lines = show_details(capsys, result)
    assert f"where the time of a step goes was not measured: {reason}" in lines
    assert any("samples/s" in line for line in lines) and not any("forward" in line for line in lines)


def test_the_headline_says_what_is_not_sure():
    few = dict(list_headline(record(ranks=[rank(0, [0.1, 0.1])])))
    assert few["throughput"] == "200 samples/s, too few blocks for an interval"
    assert few["steady"] == "unknown, too few blocks"
    drifting = [0.1 * (1 + block / 50 + 0.001 * (-1) ** block) for block in range(64)]
    assert dict(list_headline(record(ranks=[rank(0, drifting)])))["steady"] in ("no: drifts", "no: warmup left, drifts")
    assert dict(list_headline(record()))["steady"] == "yes, no drift detected"
    result = make_probed_run(None, None)
    result.ranks[0].steady_after_steps = None
    left_out = "its end was not found within 23 steps; 23 steps and 1.00 s were left out"
    assert dict(list_headline(result))["warm-up"] == left_out
    del result.spec["measure"]["warmup_max_steps"]
    result.ranks[0].warmup_block_steps = 2  # of a fixed length
    assert dict(list_headline(result))["warm-up"] == "46 steps and 1.00 s were left out"


def test_a_trace_that_was_not_merged_is_where_its_rank_left_it(capsys):
    result = make_probed_run(make_probes(), make_probes(trace="trace1.json.gz"), trace="trace.json.gz")
    lines = show_details(capsys, result, "trace.json.gz", "trace1.json.gz")
    trace_lines = [line.split() for line in lines if "trace" in line]
    assert [cells[:2] for cells in trace_lines] == [["trace", "run/trace.json.gz"], ["trace", "of"]]
    assert trace_lines[1] == ["trace", "of", "rank", "1", "run/trace1.json.gz,", "not", "merged"]


@pytest.mark.parametrize("name", ["/etc/passwd", "../../../../etc/passwd", "link", "missing"])
def test_only_files_in_the_folder_of_a_run_are_named(capsys, name):
    Path("run").mkdir()
    Path("run/link").symlink_to("/etc/passwd")
    result = make_probed_run(make_probes(), make_probes(trace=name), monitor=MonitorRecord(name), trace=name)
    assert not [line for line in show_details(capsys, result) if name in line]


def test_reasons_are_neither_broken_nor_markup(capsys):
    none = make_probes(profile=None, reasons={"profile": "[b]no[/b] " * 40 + "profile"})
    result = make_probed_run(none, none, monitor=MonitorRecord(reason="[red]no[/red] NVML here"))
    lines = show_details(capsys, result)
    (line,) = [line for line in lines if "not measured" in line and "NVML" in line]
    assert line.split(maxsplit=2)[2] == "[red]no[/red] NVML here"
    assert f"top operations: - ({'[b]no[/b] ' * 40}profile)" in lines


def test_length_level_target_and_evaluation():
    assert list_training_facts(training_run()) == [
        ("training", "3 epochs, 150 steps, 6.00 s and 700 ms for the first step, which compiles; stopped by target"),
        ("validation", "mse 0.1, 0.05 worse than on training samples"),
        ("target", "mse 0.15 after 6.00 s of training, 3 epochs"),
        ("evaluation", "3 points, 750 ms, outside the training's seconds"),
    ]

    facts = dict(list_training_facts(training_run(values=[0.9, 0.2])))
    assert facts["target"] == "mse 0.15 was not reached" and facts["training"].endswith("stopped by epochs")
    facts = dict(list_training_facts(training_run(values=[0.2, 0.9, 0.8], target=0.9, metric="accuracy")))
    assert facts["target"] == "accuracy 0.9 after 4.00 s of training, 2 epochs"
    assert facts["validation"] == "accuracy 0.8, 0.4 better than on training samples"


def test_nothing_that_was_not_evaluated():
    result = training_run(target=None, values=[0.5])
    result.quality.curve[0].train_metrics = {}
    facts = dict(list_training_facts(result))
    assert facts["validation"] == "mse 0.5" and "target" not in facts
    result.quality.curve[0].metrics = {}
    result.quality.metric_name = None
    assert [name for name, _ in list_training_facts(result)] == ["training", "evaluation"]
    assert list_training_facts(record("ddp")) == []


def usage_facts(monitor, ranks=None):
    return dict(list_usage(record(monitor=monitor, ranks=ranks or [rank(0, [0.1])])))


def test_all_figures_have_names_and_units():
    monitor = MonitorRecord(
        cpu_util_mean=0.9, cpu_util_ours_mean=0.75, cpu_cores_others_mean=0.25, rss_bytes_max=2_500_000_000,
        rss_anon_bytes_max=10**9, swap_in_bytes=0, swap_out_bytes=4096, gpu_util_mean=0.5, gpu_power_w_mean=612.3,
        energy_j=1.5, gpu_temperature_c_max=71.0, sm_clock_mhz_mean=1410.0, sm_clock_mhz_min=1395.0,
        throttle_reasons=["sw_power_cap", "hw_slowdown"], net_sent_bytes_per_s=125e6, disk_read_bytes_per_s=0.0,
    )  # fmt: skip
    assert usage_facts(monitor) == {
        "processor cores": "90.0 % of those the run may use were busy, 75.0 % with the run's processes, "
        "other programs took 0.25 cores' worth",
        "memory at most": "2.50 GB, all ranks together, 1.00 GB without mapped files",
        "swapped": "0 B in, 4.10 kB out",
        "GPUs": "busy 50.0 % of the time, 612 W, all together, 1.50 J, 71.0 degrees C at most",
        "GPU clocks": "cores 1,410 MHz, at least 1,395, held back by sw_power_cap hw_slowdown",
        "network": "125 MB/s sent",
        "disks": "0 B/s read",
    }


@pytest.mark.gpu
def test_the_gpus_of_a_run_are_named():
    names = [f"Tesla V100-SXM2-16GB GPU-{number}b2c4f5e-0000-4000-8000-000000000000" for number in (3, 1)]
    ranks = [rank(0, [0.1], gpus=[names[0], None]), rank(1, [0.1], gpus=[names[1]])]
    assert usage_facts(MonitorRecord(), ranks)["GPUs used"] == "Tesla V100-SXM2-16GB: GPU-3b2c4f5e GPU-1b2c4f5e"


def test_every_row_names_fields_of_the_record():
    named = [name for parts in USAGE_ROWS.values() for name, _ in parts]
    fields = {field.name for field in dataclasses.fields(MonitorRecord)}
    assert set(named) <= fields and len(named) == len(set(named))
    assert fields - set(named) == {"file", "reason", "energy_from", "devices"}


@pytest.mark.parametrize("second", [None, 3 * 10**8])
def test_peaks_are_those_of_the_largest_rank_if_all_are_known(second):
    ranks = [
        rank(0, [0.1], rss_peak_bytes=5 * 10**8, rss_anon_peak_bytes=2 * 10**8, peak_memory_bytes=[10**9, 2 * 10**9]),
        rank(1, [0.1], rss_peak_bytes=6 * 10**8, rss_anon_peak_bytes=second, peak_memory_bytes=[None]),
    ]
    anonymous = "" if second is None else ", 300 MB without mapped files"
    assert usage_facts(MonitorRecord(), ranks) == {"memory of a rank at most": f"600 MB{anonymous}"}


@pytest.mark.parametrize(
    ("second", "expected"),
    [(306_882, "1.23 MB of weights, gradients and optimizer's state, 8.0 B a parameter"), (None, None)],
)
def test_state_is_that_of_the_fullest_device_if_all_are_known(second, expected):
    """The model has 153,441 parameters."""
    ranks = [rank(0, [0.1], state_bytes=[1_227_528]), rank(1, [0.1], state_bytes=[second])]
    assert usage_facts(MonitorRecord(), ranks).get("state of a device") == expected
    assert "state of a device" not in usage_facts(MonitorRecord(), [ranks[0], rank(1, [0.1])])


def print_table(width, columns, rows, numeric, title="", **options):
    out = RichConsole(file=io.StringIO(), width=width, color_system=None)
    rows = [Row([Cell(text) for text in texts]) for texts in rows]
    out.print(make_rich_table(Table("id", "", columns, rows, frozenset([numeric])), title), **options)
    return out.file.getvalue()


def test_text_is_no_markup_is_not_cut_and_numbers_stand_to_the_right():
    shown = print_table(60, ["name", "count"], [["[bold]x", "1"], ["y", "1,000"]], "count", "of [red]them").splitlines()
    assert shown[0].rstrip() == "of [red]them"
    assert [line.strip() for line in shown if "x" in line or "y" in line] == ["[bold]x      1", "y        1,000"]
    row = ["gloo:all_reduce", "2,000 samples/s [1,989, 2,011]", "a remark of several words"]
    wide = print_table(30, ["operation", "figure", "remark"], [row], "figure", crop=False)
    assert "gloo:all_reduce  2,000 samples/s [1,989, 2,011]  a" in wide and "…" not in wide


def test_a_sweep_that_tried_both_ends_with_the_winners(tmp_path, capsys):
    sweeps.write_results(tmp_path, make_pairs())
    Console().print_table([tmp_path])
    out = capsys.readouterr().out
    assert "Data or model parallelism: predicted and measured" in out and "FLOP/B" in out
    assert "mlp on 2 devices: pipeline should win at 8, data should win at 64; model won at 8 and 64;" in out
    sweeps.sweep(tmp_path / "others")
    others = survey([tmp_path / "others"])
    assert list(make_terminal_blocks(others.pooled, others.configurations.estimate_ratio)) == []


@pytest.mark.parametrize(("read_rate", "is_slow"), [(30.0, True), (1e5, False), (None, False)])
def test_a_dataset_that_was_read_more_slowly_than_it_is_trained_on(capsys, read_rate, is_slow):
    result = make_probed_run(None, None)
    result.workload.dataset, result.workload.read_samples_per_s = "mine:build", read_rate
    rate = throughput(result)[0]
    assert rate is not None and 30 < rate < 1e5
    text = " ".join(" ".join(show_details(capsys, result)).split())
    sentence = f"read mine:build into the cache at 30.0 samples/s, and the training takes {format_number(rate)} samples"
    assert (sentence in text) == is_slow == ("no figure includes that" in text)
    assert ("slow_reading" in evaluate_blocks(result).flags) == is_slow


@pytest.mark.gpu
def test_a_step_that_includes_lightnings_broadcast_says_so():
    result = record()
    assert "step" not in dict(list_headline(result))
    result.ranks[0].settings_used = {"sigterm": "broadcast"}
    assert "strategy.options.sigterm=never" in dict(list_headline(result))["step"]
