"""The attribution of real strategies: whatever a machine makes of them, the parts add up to the loss."""

import subprocess
import sys

import pytest

import scalebench
from scalebench.analysis.attribution.components import LOSS_PARTS

LIMIT_S = 900.0
STRATEGIES = ["ddp_gloo", "lightning_ddp_gloo", "horovod_gloo"]
WORDS = (
    "hardware=cpu hardware.gpus_per_node=4 model=materials_cnn dataset.size=2000 measure=quick measure.min_s=0.3 "
    "measure.max_s=1 measure.warmup_max_s=1 measure.probe_s=0.3 measure.monitor=false measure.evaluate=false gpus=1,2,4"
).split()


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.horovod
@pytest.mark.parametrize(
    "arguments", [["scaling=weak"], ["scaling=strong", "train.global_batch=64", "baseline=attribution"]]
)
def test_parts_add_up_to_the_loss(tmp_path, arguments):
    chosen = [*WORDS, *arguments, f"strategy={','.join(STRATEGIES)}", f"hydra.sweep.dir={tmp_path / 'sweep'}"]
    program = [sys.executable, "-m", "scalebench", "--multirun", "measure.repeats=1"]
    done = subprocess.run([*program, *chosen], cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    actual = scalebench.attribution(tmp_path / "sweep")
    frame = scalebench.load(tmp_path / "sweep").set_index("run_id")
    attributions = dict(list(actual.groupby("run_id")))
    requested = frame[frame["strategy"].isin(STRATEGIES) & (frame["scaling"] == arguments[0].removeprefix("scaling="))]
    assert len(requested) == 9 and set(requested.index) <= set(attributions)
    for run_id, row in requested.iterrows():
        parts = attributions[run_id]
        assert parts["share"].sum() == pytest.approx(1 - row["efficiency_bare"], abs=1e-9)
        reported = set(parts.dropna(subset=["share"])["part"])
        absent = {"batch"} if arguments == ["scaling=weak"] else set()
        assert reported == ({"overhead"} if row["gpus"] == 1 else set(LOSS_PARTS) - absent)
        if row["gpus"] > 1:
            own = parts.set_index("part")["step_s"]
            assert own["imbalance"] == pytest.approx(row["imbalance_s"], abs=1e-12)
            assert own["imbalance"] + own["transfer"] == pytest.approx(row["sync_exposed_s"], abs=1e-12)
