"""The table of runs in a terminal, at several widths.

After a wanted change, `python -m tests.report.test_terminal_table` writes the golden files anew.
"""

import re
import tempfile
from functools import cache
from pathlib import Path

import pytest
from rich.console import Console

import scalebench
from scalebench.core.probe_record import ProbeRecord
from scalebench.core.spec import HardwareSpec
from scalebench.report.tables import Footnotes
from scalebench.report.terminal_table import RunTable
from tests.analysis.test_golden_corpus import CORPUS
from tests.builders import sweeps
from tests.builders.frames import frame_of_results
from tests.builders.runs import rank, record
from tests.report.section_blocks import show_table

GOLDEN = Path(__file__).parents[1] / "golden" / "terminal"
WIDTHS = (72, 100)


def small_sweep():
    """Runs of all kinds of outcomes: failed, unsupported, without an interval, without baselines."""
    reason = "rank 1: RuntimeError: failed as configured"
    return [
        record("lightning_ddp", gpus=2, status="failed", block_s=None, reason=reason),
        record("ddp", gpus=4, block_s=0.16, flags=["oversubscribed"]),
        record("ddp", gpus=2, block_s=0.11),
        record("ddp", gpus=1, block_s=0.1),
        record("bare_torch", gpus=1, block_s=0.09),
        record("simulated", gpus=2, block_s=2.5, baseline=None, repeat=1),
        record("fsdp", gpus=1, ranks=[rank(0, [0.1, 0.1])]),
        record("horovod_nccl", gpus=8, status="unsupported", ranks=[], reason="needs NCCL [libnccl.so], not here"),
    ]


def with_options(strategy, gpus=2, **options):
    spec = {"strategy": {"name": strategy, "options": options}}
    name = f"{strategy}-{gpus}-{options}"
    return record(strategy, gpus, run_id=name, spec=spec, fingerprint=name, baseline="bare_tensorflow")


def long_names():
    """The longest names of strategies, and options that differ and that do not."""
    return [
        record("bare_tensorflow", baseline="bare_tensorflow"),
        *(with_options("simulated", gpus, step_s=0.01, sync_s=s) for s in (0.0005, 0.003) for gpus in (2, 16)),
        with_options("horovod_tensorflow_nccl", 2, compression="fp16"),
        record("model_parallel_tensorflow", 2, block_s=0.2, baseline="bare_tensorflow"),
        record("horovod_tensorflow_mpi", 16, status="oom", block_s=None, reason="rank 15: needs 81 GB of 80 GB " * 3),
        record("multiworker_ring", 2, status="unsupported", ranks=[], reason="no TensorFlow here"),
    ]


def models():
    """Two models, one with three repeats."""
    pairs = [("bare_torch", 1), *((name, gpus) for name in ("ddp_gloo", "lightning_ddp_gloo") for gpus in (1, 2, 4))]
    results = [sweeps.run(*pair, repeat) for pair in pairs for repeat in range(3)]
    for name, gpus in (("bare_torch", 1), ("ddp_gloo", 2)):
        results.append(sweeps.run(name, gpus, run_id=f"gpt-{name}", fingerprint=f"gpt-{name}"))
        results[-1].workload.model, results[-1].workload.dataset = "gpt_small", "tokens_synthetic"
    return results


def model_options():
    runs = [record(), record(run_id="other", fingerprint="other"), record(gpus=2)]
    for run, size in zip(runs, (1, 2, 1), strict=True):
        run.spec["model"]["options"] = {"flops": 9, "sample_bytes": size}
        run.workload.model_params = 100 * size
    return runs


def hardware():
    """Of several names, of which brackets are not markup, and placements."""
    places = [("cpu", [], {"A": "1"}), ("cpu", [], {"A": "1", "NCCL_P2P_DISABLE": "1"}), ("cpu", [0, 1], {}),
              ("box [b]1[/b]", [], {})]  # fmt: skip
    return [record("bare_torch", run_id=str(n), hardware=HardwareSpec(name, device_ids=ids, environment=variables))
            for n, (name, ids, variables) in enumerate(places)]  # fmt: skip


def own_baselines():
    """A row without a bare baseline, which is compared with itself on one device, says so where others have one."""
    return [record("bare_torch"), record(), *(record("mine", gpus, baseline=None) for gpus in (1, 2))]


def no_bare_run():
    return [record(), record(gpus=2)]


def training_settings():
    """Those that differ are shown."""
    settings = [{}, {"learning_rate_rule": "sqrt", "base_batch": 10}, {"learning_rate": 0.5}, {"weight_decay": 0.5},
                {"schedule": "cosine"}, {"accumulate": 2}]  # fmt: skip
    made = [sweeps.training_run(run_id=str(n), settings=each) for n, each in enumerate(settings)]
    return [*made, sweeps.training_run(seed=1)]


def feeds():
    """Only the wide table has the share of loading, and only where something differs in it."""
    probes = ProbeRecord(steps=2, sync_on_s=[0.2, 0.2], fixed_batch_s=[0.19, 0.19])  # 5 % of a step of 0.1 s
    runs = [record(run_id=str(n), fingerprint=str(n), ranks=[rank(0, [0.2] * 20, probes=probes)]) for n in (0, 1)]
    runs[1].workload.feed = "device"
    return runs


MAKERS = (
    small_sweep, long_names, models, model_options, hardware, own_baselines, no_bare_run, training_settings, feeds,
)  # fmt: skip
MADE_SWEEPS = {each.__name__: each for each in MAKERS}
CASES = ["repeats", "failures", "two_nodes", *MADE_SWEEPS]


@cache
def pool_recorded(case):
    return scalebench.pooled(CORPUS / case)


def pool_case(case, folder):
    if case not in MADE_SWEEPS:
        return pool_recorded(case)
    sweeps.write_results(folder, MADE_SWEEPS[case]())
    return scalebench.pooled(folder)


def render_case(frame):
    """Render the table at all widths, and the wide one."""
    parts = [f"=== {width} columns\n{show_table(frame, width)}" for width in WIDTHS]
    return "\n".join([*parts, f"=== --wide\n{show_table(frame, wide=True)}"])


@pytest.mark.parametrize("case", CASES)
def test_a_table_reads_as_it_did_and_nothing_is_cut_or_broken(case, tmp_path):
    """However narrow the window is: each line fits, or is one of the table whose names and figures are as wide."""
    frame = pool_case(case, tmp_path)
    assert render_case(frame) == (GOLDEN / f"{case}.txt").read_text(encoding="utf-8")
    rows, narrowest = RunTable(frame).rows, max(map(len, show_table(frame, 10).splitlines()))
    assert narrowest <= 80
    for width in (10, *WIDTHS):
        shown = show_table(frame, width)
        lines = shown.splitlines()
        assert "…" not in shown and max(map(len, lines)) <= max(width, narrowest)
        for number, row in enumerate(rows, 1):
            (line,) = [line for line in lines if re.match(rf"{number} +{row['strategy']} .* {row['status']}", line)]
            if row["speedup_bare"] is not None:
                assert f"{row['speedup_bare']:.2f}" in line.split(), line
            assert line.count("±") == len(re.findall(r"[\d.]+ +± +[\d.]+", line)), line


def test_marks_stand_for_equal_remarks():
    notes = Footnotes()
    assert notes.mark(["late", "cold"]) == ["a", "b"] and notes.mark(["cold", "new", "late"]) == ["a", "b", "c"]
    assert [notes.mark([str(number)])[-1] for number in range(28)][-6:] == ["z", "aa", "ab", "ac", "ad", "ae"]
    assert notes.list_notes()[:3] == [("a", "late"), ("b", "cold"), ("c", "new")]


def test_status_and_winner_have_styles_that_no_text_needs():
    table = RunTable(frame_of_results(small_sweep(), [Path("x")] * 8))
    winner = next(row["run_id"] for row in table.rows if (row["strategy"], row["gpus"]) == ("ddp", 2))
    _, shown, *_ = table.list_parts(80, {winner})
    console = Console(width=80)

    def styles(*words):
        lines = console.render_lines(shown, pad=False)
        (line,) = [line for line in lines if all(word in "".join(part.text for part in line) for word in words)]
        return {str(part.style) for part in line if part.style} - {"none"}

    assert styles("ddp  ", " 2 ", " ok") == {"bold", "bold green"} and styles("ddp  ", " 4 ", " ok") == {"green"}
    assert styles("lightning_ddp") == {"red"} and styles("horovod_nccl") == {"dim"}


def test_a_named_baseline_takes_the_place_of_the_others():
    table = frame_of_results([record(), record(gpus=2)], [Path("x")] * 2)
    table[["speedup_given", "speedup_given_low", "speedup_given_high"]] = [[1.5, 1.4, 1.7], [None, None, None]]
    table["efficiency_given"] = [0.75, None]
    shown = show_table(table, 80, "a[b]c gpus=1 on alpha")
    assert "speedup and efficiency over a[b]c gpus=1 on alpha" in shown and "1.50 ± 0.20        75 %" in shown
    assert "2.00" not in shown


if __name__ == "__main__":
    for each in CASES:
        with tempfile.TemporaryDirectory() as made:
            (GOLDEN / f"{each}.txt").write_text(render_case(pool_case(each, Path(made))), encoding="utf-8")
