"""The terminal's tables, and its details of one run.

After a wanted change, `python -m tests.report.test_terminal` writes the golden file of the details anew: all lines of a
run that was measured, and of others what is different from those of a plain one.
"""

import contextlib
import difflib
import io
import tempfile
from pathlib import Path

import pytest
from rich.console import Console as RichConsole

from scalebench.__main__ import main
from scalebench.core.result import MonitorRecord, Sync, write_result
from scalebench.report.document import Cell, Row, Table
from scalebench.report.terminal_table import render
from scalebench.sweeps.console import Console
from tests.analysis.test_golden_corpus import CORPUS
from tests.builders import sweeps
from tests.builders.runs import rank, record
from tests.builders.sweeps import block_times, make_probed_run, make_probes, training_run

GOLDEN = Path(__file__).parents[1] / "golden" / "details.txt"


def measured():
    monitor = MonitorRecord(
        "monitor.parquet", cpu_util_mean=0.9, cpu_util_ours_mean=0.85, rss_bytes_max=10**9, throttle_reasons=[]
    )
    slower = make_probes(local_step_s=[[0.0066, 0.0069, 0.0066, 0.0069]])
    return make_probed_run(make_probes(), slower, monitor=monitor, trace="trace.json.gz")


def edit(result, **changes):
    """Return `result` with other values of attributes, of which `__` divides a path."""
    for place, value in changes.items():
        *names, last = place.split("__")
        changed = result
        for name in names:
            changed = getattr(changed, name)
        setattr(changed, last, value)
    return result


def probed(**changes):
    return make_probed_run(make_probes(**changes), make_probes(**changes))


def without(**reasons):
    """A run that lacks the figures that have a reason."""
    lists = {"forward": "forward_s", "backward": "backward_s", "optimizer": "optimizer_s", "data": "fixed_batch_s"}
    lists |= {"exposed": "sync_off_s", "isolated": "isolated_sync_s", "imbalance": "local_step_s", "copy": "copy_s"}
    return probed(**{lists[name]: [] for name in reasons}, reasons=dict(reasons))


def unprobed(setting):
    """A run without probes, of which `measure.probes` says why."""
    result = make_probed_run(make_probes(), None)
    result.spec["measure"] |= {"probes": setting}
    return result


def used(*ranks, **figures):
    ranks = [rank(number, [0.1], **changes) for number, changes in enumerate(ranks or [{}])]
    return record(ranks=ranks, monitor=MonitorRecord(**figures))


def read_slowly(read_rate):
    dataset = {"workload__dataset": "mine:build", "workload__read_samples_per_s": read_rate}
    return edit(make_probed_run(None, None), **dataset)


DRIFTING = [0.1 * (1 + block / 50 + 0.001 * (-1) ** block) for block in range(64)]
ALL_FIGURES = {
    "cpu_util_mean": 0.9, "cpu_util_ours_mean": 0.75, "cpu_cores_others_mean": 0.25, "rss_bytes_max": 2_500_000_000,
    "rss_anon_bytes_max": 10**9, "swap_in_bytes": 0, "swap_out_bytes": 4096, "gpu_util_mean": 0.5,
    "gpu_power_w_mean": 612.3, "energy_j": 1.5, "gpu_temperature_c_max": 71.0, "sm_clock_mhz_mean": 1410.0,
    "sm_clock_mhz_min": 1395.0, "throttle_reasons": ["sw_power_cap", "hw_slowdown"], "net_sent_bytes_per_s": 125e6,
    "disk_read_bytes_per_s": 0.0,
}  # fmt: skip
GPU_NAMES = [f"Tesla V100-SXM2-16GB GPU-{number}b2c4f5e-0000-4000-8000-000000000000" for number in (3, 1)]
STEP_FIGURES = ("exposed", "data", "backward", "optimizer", "isolated", "imbalance", "copy")
HIDDEN_PROFILE = {"profile": None, "reasons": {"profile": "[b]no[/b] " * 40 + "profile"}}
# The runs, and what each is about. The model has 153,441 parameters.
RUNS = {
    **{f"failed: {status}": record(status=status, block_s=None) for status in ("failed", "oom", "unsupported")},
    "probes: not wanted": unprobed(False), "probes: of one rank": unprobed(True),
    "headline: few blocks": record(ranks=[rank(0, [0.1, 0.1])]), "headline: drifts": record(ranks=[rank(0, DRIFTING)]),
    "headline: Lightning broadcasts": record(ranks=[rank(0, [0.1] * 20, settings_used={"sigterm": "broadcast"})]),
    "trace: not merged": make_probed_run(make_probes(), make_probes(trace="trace1.json.gz"), trace="trace.json.gz"),
    "reasons: markup": edit(probed(**HIDDEN_PROFILE), monitor=MonitorRecord(reason="[red]no[/red] NVML here")),
    "training: at its target": training_run(),
    "usage: all": used(**ALL_FIGURES), "usage: GPUs": used({"gpus": [GPU_NAMES[0], None]}, {"gpus": GPU_NAMES[1:]}),
    "dataset: read slowly": read_slowly(30.0), "dataset: read fast": read_slowly(1e5),
    "step: no figure": without(**dict.fromkeys(STEP_FIGURES, "not [b]here[/b]"), forward="no"),
    "step: neither data nor forward": without(forward="no", data="no"),
    "step: one device": edit(without(exposed="one device has no other to synchronize with"), scale__gpus=1),
    "step: noise": probed(optimizer_s=block_times(0.0066, 5, 0.002)),
    "step: no reasons": edit(probed(copy_s=[0.1]), sync=Sync()),
}  # fmt: skip


def show_details(result, folder, width, *files):
    """Return the lines that a pipe receives, stripped at their end, of a run with these files in its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in files:
        (folder / name).touch()
    write_result(result, folder)
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as out:
        patch.setenv("COLUMNS", str(width))
        patch.chdir(folder.parent)
        Console().print_details(Path(folder.name))
    return [line.rstrip() for line in out.getvalue().splitlines()]


FILES = ("trace.json.gz", "trace1.json.gz", "monitor.parquet")


def make_golden(folder):
    """Return the details of all runs: of those much like a plain one only what is different."""
    plain = show_details(probed(), folder / "plain" / "run", 200)
    shown = ["", "=== a run that was measured", *show_details(measured(), folder / "narrow" / "run", 80, *FILES)]
    for name, result in RUNS.items():
        lines = show_details(result, folder / name.replace(":", "") / "run", 200, *FILES)
        changes = [line for line in difflib.ndiff(plain, lines) if line[0] in "-+" and "──" not in line]
        shown += ["", f"=== {name}", *(changes if len(changes) < len(lines) else lines)]
    return "\n".join(shown[1:]) + "\n"


def test_details_are_golden(tmp_path):
    assert make_golden(tmp_path) == GOLDEN.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["/etc/passwd", "../../../../etc/passwd", "link", "missing"])
def test_only_files_in_the_folder_of_a_run_are_named(tmp_path, name):
    result = make_probed_run(make_probes(), make_probes(trace=name), monitor=MonitorRecord(name), trace=name)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "link").symlink_to("/etc/passwd")
    assert not [line for line in show_details(result, tmp_path / "run", 200) if name in line]


def print_table(width, columns, rows, numeric, title="", **options):
    out = RichConsole(file=io.StringIO(), width=width, color_system=None)
    rows = [Row([Cell(text) for text in texts]) for texts in rows]
    for part in render([Table("id", title, columns, rows, frozenset([numeric]))]):
        out.print(part, **options)
    return out.file.getvalue()


def test_text_is_no_markup_is_not_cut_and_numbers_stand_to_the_right():
    shown = print_table(60, ["name", "count"], [["[bold]x", "1"], ["y", "1,000"]], "count", "of [red]them").splitlines()
    assert shown[0].rstrip() == "of [red]them"
    assert [line.strip() for line in shown if "x" in line or "y" in line] == ["[bold]x      1", "y        1,000"]
    shown = print_table(
        9, ["name", "rate"], [["漢字漢字漢", "1 ± 0.1"], ["abcde", "22"], ["x", ""]], "rate", crop=False
    )
    assert [line.rstrip() for line in shown.splitlines()[3:6]] == [" 漢字漢字漢   1 ± 0.1", " abcde       22", " x"]
    row = ["gloo:all_reduce", "2,000 samples/s [1,989, 2,011]", "a remark of several words"]
    wide = print_table(30, ["operation", "figure", "remark"], [row], "figure", crop=False)
    assert "gloo:all_reduce  2,000 samples/s [1,989, 2,011]  a" in wide and "…" not in wide


def test_the_answer_ends_the_output_and_memory_has_its_table_when_asked(tmp_path, capsys):
    states = {"bare_torch": (1, sweeps.FULL_STATE_BYTES), "fsdp_gloo": (2, sweeps.FULL_STATE_BYTES // 2)}
    sweeps.write_results(tmp_path, [sweeps.run_with_memory(name, *state) for name, state in states.items()])
    assert main(["show", str(tmp_path)]) == 0
    *_, memory, answer = capsys.readouterr().out.rstrip().split("\n\n")
    assert "no run was out of memory" in memory and "16.0 B" not in memory and "2 devices" in answer
    assert main(["show", str(tmp_path), "--wide"]) == 0
    assert "16.0 B" in capsys.readouterr().out  # of a parameter


@pytest.mark.parametrize("sweep", ["attribution", "failures", "repeats", "target", "two_nodes"])
def test_recorded_runs_show_their_details(sweep, capsys):
    """Some were recorded before all of today's fields were there."""
    assert main(["show", str(CORPUS / sweep), "--details"]) == 0
    assert "what the run used" in capsys.readouterr().out or sweep == "failures"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        GOLDEN.write_text(make_golden(Path(made)), encoding="utf-8")
