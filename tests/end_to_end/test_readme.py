"""README is true: the demo, the model of one's own, the answer, the attribution and how sure a figure is."""

import itertools
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import scalebench
from scalebench.__main__ import main
from scalebench.analysis.attribution.lost_efficiency import LOSS_PARTS
from scalebench.core.result import read_result
from scalebench.core.run_folder import RESULT_FILE
from tests.conftest import ROOT

pytestmark = pytest.mark.real

README = (ROOT / "README.md").read_text(encoding="utf-8")
COLUMNS = 72  # of the window in which README shows its table
BRIEFLY = (
    "measure=quick", "measure.min_s=0", "measure.max_s=0.25", "measure.warmup_max_s=0.2", "measure.probe_s=0.05",
    "measure.monitor=false", "measure.repeats=1", "dataset.size=1000",
)  # fmt: skip
ANSWER = re.compile(r"^(Take \w+ on|Stay on one device|Not sure that|No verdict on|.* are equally fast)", re.MULTILINE)


def test_a_model_of_ones_own_under_two_strategies_and_after_a_crash(tmp_path, monkeypatch, capsys):
    """The code and the command as they stand there, though not for long; then the call in Python takes up the sweep."""
    ((name, code),) = re.findall(r"```python\n# (\S+\.py)\n(.*?)```", README, re.DOTALL)
    (tmp_path / name).write_text(code)
    (command,) = re.findall(r"^scalebench (.* model=mynet.py:build)$", README, re.MULTILINE)
    assert main([*shlex.split(command), *BRIEFLY, "hydra.sweep.dir=out"]) == 0
    assert ANSWER.search(capsys.readouterr().out)
    rows = {("bare_torch", 1), ("ddp", 1), ("ddp", 2), ("fsdp", 1), ("fsdp", 2)}
    frame = scalebench.load("out")
    assert set(zip(frame["strategy"], frame["gpus"], strict=True)) == rows and set(frame["status"]) == {"ok"}
    assert frame["throughput_samples_per_s"].gt(0).all() and set(frame["model"]) == {"mynet:build"}

    with monkeypatch.context() as patch:
        patch.setenv("COLUMNS", str(COLUMNS))
        assert main(["show", "out"]) == 0
    table, footnotes, *_ = capsys.readouterr().out.split("\n\n")  # sentences follow, which the terminal breaks
    assert max(map(len, [*table.splitlines(), *footnotes.splitlines()])) <= COLUMNS, table
    for strategy, gpus in rows:
        assert re.search(rf"^\d +{strategy} +{gpus} .* ok\b", table, re.MULTILINE), table

    attribution = scalebench.attribution("out")
    for run_id, row in frame.set_index("run_id").iterrows():
        parts = attribution[attribution["run_id"] == run_id].dropna(subset=["share"])
        if row["strategy"] != "bare_torch":
            assert parts["share"].sum() == pytest.approx(1 - row["efficiency_bare"], abs=1e-9)
            assert set(parts["part"]) == ({"wrapper"} if row["gpus"] == 1 else set(LOSS_PARTS) - {"batch"})
        if row["gpus"] > 1:
            own_s = parts.set_index("part")["step_s"]
            assert own_s["imbalance"] == pytest.approx(row["imbalance_s"], abs=1e-12)
            assert own_s["imbalance"] + own_s["communication"] == pytest.approx(row["sync_exposed_s"], abs=1e-12)

    lost = Path(frame.set_index(["strategy", "gpus"])["path"]["fsdp", 2])
    (lost / RESULT_FILE).unlink()
    space = {"strategy": ["ddp", "fsdp"], "gpus": [1, 2]}
    model = [word for word in shlex.split(command) if word.startswith("model")]
    sweep = scalebench.sweep(space, *model, *BRIEFLY, "resume=true", folder="out")
    kept, new = set(frame["run_id"]) - set(frame.loc[frame["path"] == str(lost), "run_id"]), sweep.frame
    assert kept < set(new["run_id"]) and ANSWER.match(sweep.answer), sweep.answer
    new = new[~new["run_id"].isin(kept)]  # beside its baseline, with which it takes turns
    assert set(zip(new["strategy"], new["gpus"], strict=True)) == {("bare_torch", 1), ("fsdp", 2)}
    assert set(new["status"]) == {"ok"} and read_result(lost / RESULT_FILE).run_id in set(new["run_id"])


@pytest.mark.slow
@pytest.mark.cold
def test_the_demo_measures_what_readme_shows():
    """`make demo` runs it: each row three times, with a table that adds up and an answer that names its best row."""
    program = [sys.executable, "-m", "scalebench", "sweep=demo", "hardware=cpu", "hydra.sweep.dir=demo"]
    environment = {**os.environ, "COLUMNS": str(COLUMNS)}
    done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stdout + done.stderr
    pooled = scalebench.pooled("demo").set_index(["strategy", "gpus"])
    rows = [("bare_torch", 1), *itertools.product(("ddp", "lightning_ddp"), (1, 2))]
    assert set(pooled.index) == set(rows) and set(pooled["status"]) == {"ok"} and pooled["repeats"].min() >= 3
    table, _, rest = done.stdout.partition("# strategy")[2].partition("\n\n")
    assert max(map(len, [*table.splitlines()[1:], *rest.partition("\n\n")[0].splitlines()])) <= COLUMNS, done.stdout
    for name, gpus in rows:
        line = rf"^\d +{name} +{gpus} +([\d,]+) +± +\S+ % +([\d.]+)(?: +± +\S+)? +(\d+) % +ok"
        (cells,) = re.findall(line, table, re.MULTILINE)
        row = pooled.loc[name, gpus]
        assert cells == (
            f"{row['throughput_samples_per_s']:,.0f}",
            f"{row['speedup_bare']:.2f}",
            f"{100 * row['efficiency_bare']:.0f}",
        )
        assert row["efficiency_bare"] == pytest.approx(row["speedup_bare"] / gpus)
    answer = scalebench.Sweep("demo").answer
    assert ANSWER.match(answer) and answer in done.stdout
    if taken := re.match(r"Take (\w+) on (\d+) devices: ([\d.]+) ", answer):
        best = pooled["speedup_bare"].idxmax()
        assert (taken[1], int(taken[2]), taken[3]) == (*best, f"{pooled.loc[best, 'speedup_bare']:.2f}")
    assert (Path("demo") / "report.html").stat().st_size > 100_000


@pytest.mark.slow
@pytest.mark.cold
def test_a_figure_that_is_measured_again_lies_within_its_limits(tmp_path):
    """Of four sweeps, each speedup in the limits of the same one of another sweep, in 24 pairs.

    Were nothing between starts but noise, nine in ten would: a mean of three repeats lies in the interval of another
    three at 95 % (Student, 2 degrees of freedom: 4.30 / sqrt(2)). Pairs share their sweeps, so that in one of a
    thousand tries fewer than 54 % do. Limits over the blocks of one start, a tenth as wide, would hold about a quarter.
    """
    settings = {"measure": {"max_s": 3.0, "probes": False, "monitor": False, "evaluate": False}, "dataset.size": 2000}
    sweeps = [
        scalebench.sweep({"gpus": [1, 2]}, "measure=quick", strategy="ddp", folder=tmp_path / str(number), **settings)
        for number in range(4)
    ]
    pooled = [scalebench.pooled(each.folder).set_index(["strategy", "gpus"]).loc["ddp"] for each in sweeps]
    pairs = list(itertools.product(itertools.permutations(pooled, 2), (1, 2)))
    within = [
        first["speedup_bare_low"][gpus] <= second["speedup_bare"][gpus] <= first["speedup_bare_high"][gpus]
        for (first, second), gpus in pairs
    ]
    assert len(within) == 24 and sum(within) >= len(within) / 2, [each.answer for each in sweeps]
