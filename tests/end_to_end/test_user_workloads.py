"""A user's own network and samples as a run: resolved, refused, failed, and what its row says."""

import re
import runpy
import subprocess
import sys

import pytest

from scalebench.config import resolve
from scalebench.config.compose import compose_config
from scalebench.core.errors import InputError
from scalebench.core.result import RankRecord
from scalebench.runner import collect
from scalebench.runner.collect import RunOutcome
from scalebench.workloads.datasets import user_function
from tests.builders.plugins import dists as dists

OWN = ["model=custom", "model.torch=mynet:build", "strategy=bare_torch", "gpus=1"]
DATA = "dataset=custom dataset.builder=mydata:build dataset.size=400".split()
NETWORK = "def tiny(network, outputs):\n    network.dense(network.flatten(network.input), 'out', outputs)\n"


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    (tmp_path / "mynet.py").write_text("def build(width=3): ...\ndef other(width=3): ...\n")
    (tmp_path / "mydata.py").write_text("def build(size, seed):\n    raise ValueError('empty shelf')\n")
    monkeypatch.setattr(user_function, "_failed", {})


def of(*arguments):
    return resolve.resolve(compose_config(arguments))


def test_each_function_and_text_of_its_file_is_a_model_of_its_own(tmp_path):
    # Each function is a model of its own.
    specs = [of(*OWN), of(*OWN, "model.torch=mynet:other"), of(*OWN, "+model.options.width=4")]
    assert [spec.config.model.name for spec in specs] == ["mynet:build", "mynet:other", "mynet:build"]
    assert len({spec.fingerprint for spec in specs}) == 3
    assert (specs[0].config.model.input_shape, specs[0].config.model.params) == ([200, 3], None)
    # Another text of the file is another run.
    before = of(*OWN).fingerprint
    assert of(*OWN).fingerprint == before
    (tmp_path / "mynet.py").write_text("def build(width=4): ...\n")
    assert of(*OWN).fingerprint != before
    # Pictures of the size that the data set says.
    spec = of(*OWN, "dataset=imagenet_synthetic", "dataset.image_size=64")
    assert (spec.config.model.input_shape, spec.config.model.outputs) == ([64, 64, 3], 1000)


@pytest.mark.parametrize(("arguments", "reported"), [
    (["strategy=mirrored"], "model=mynet:build has no model.keras=MODULE:FUNCTION, which mirrored needs"),
    (["model.torch=null", "model.keras=mynet:build"], "model=mynet:build has no model.torch=MODULE:FUNCTION"),
    (["strategy.framework=jax"], "model=mynet:build is made by model.torch, and bare_torch trains with jax"),
    (["strategy=mirrored", "model.keras=mynet:build"], None),
    (["strategy=simulated"], None),
])  # fmt: skip
def test_a_framework_that_it_is_not_there_for(arguments, reported):
    reason = of(*OWN, *arguments).unsupported
    assert (reason is None) == (reported is None)
    assert (reported or "") in (reason or "")


def assembled(spec, outcome):
    return collect.assemble_result(spec, collect.RunId.new(), outcome, collect.ResultParts())


def test_a_fault_of_the_samples_fails_their_runs_only():
    spec = of(*OWN, *DATA)
    assert spec.plugin_error == "dataset.builder=mydata:build fails: ValueError: empty shelf"
    assert 'mydata.py", line 2' in spec.plugin_traceback
    row = assembled(spec, RunOutcome("failed", spec.plugin_error))
    assert (row.workload.model, row.workload.dataset) == ("mynet:build", "mydata:build")
    assert row.workload.flops_per_sample is None


def test_fewer_samples_than_a_batch_name_the_function_that_gave_them(tmp_path):
    code = "import numpy as np\ndef build(size, seed):\n    return np.zeros((20, 3)), np.zeros((20, 2))\n"
    (tmp_path / "mydata.py").write_text(code)
    line = (
        r"^15 training samples are fewer than one global batch of 64: dataset.builder=mydata:build gave 20 of "
        r"dataset.size=400; have it give more or lower train.batch_per_device$"
    )
    with pytest.raises(InputError, match=line):
        of(*OWN, *DATA, "train.batch_per_device=64")


def test_flops_of_a_network_of_ones_own_are_the_workers_count():
    def flops(*arguments):
        row = assembled(of(*arguments), RunOutcome("ok"))
        return row.workload.flops_per_sample

    assert flops(*OWN) is None
    workers = collect.ResultParts(ranks=[RankRecord(0, "node", 1, flops_per_sample=7e6)])
    counted = collect.assemble_result(of(*OWN), collect.RunId.new(), RunOutcome("ok"), workers)
    assert counted.workload.flops_per_sample == 7e6
    assert flops("strategy=simulated", "gpus=1") == 3 * 2 * 486_250


PLUGIN_YAML = "name: tiny\nloss: auto\nmetric: auto\nbatch_per_device: 8\n"


def plugin(dists, yaml=PLUGIN_YAML, **points):
    files = {"tiny_net/__init__.py": "", "tiny_net/nets.py": NETWORK, "tiny_net/conf/model/tiny.yaml": yaml}
    dists.add("tiny-net", files, {"configs": {"tiny_net": "tiny_net.conf"}, **points})


def test_a_network_of_a_plugin_is_counted_as_ours_are_and_has_none_of_a_user_beside_it(dists):
    plugin(dists, models={"tiny": "tiny_net.nets:tiny"})
    spec = of("model=tiny", "strategy=bare_torch", "gpus=1", "dataset=cifar10_synthetic")
    assert (spec.config.model.params, spec.config.model.loss) == (32 * 32 * 3 * 10 + 10, "cross_entropy")
    row = assembled(spec, RunOutcome("ok"))
    assert row.workload.flops_per_sample == 3 * 2 * 32 * 32 * 3 * 10
    # A network of a plugin has no function of a user beside it.
    plugin(dists, models={"tiny": "tiny_net.nets:tiny"})
    with pytest.raises(InputError, match=r"^model=tiny has its network already: model.torch is for model=custom$"):
        of("model=tiny", "model.torch=mynet:build", "strategy=bare_torch", "gpus=1")


def test_the_network_of_a_plugin_may_be_one_of_a_framework(dists):
    plugin(dists, PLUGIN_YAML + "torch: tiny_net.nets:tiny\n")
    spec = of("model=tiny", "strategy=bare_torch", "gpus=1")
    assert spec.plugin_error is None and spec.config.model.name == "tiny" and spec.config.model.code_digest


SCRIPT = """\
import scalebench
from torch import nn

def build():
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 2))

{guard}
    model = {{"torch": build, "input_shape": [2, 6], "target_shape": [2]}}
    settings = {{"dataset": "random", "hardware": "cpu", "measure": "quick", "dataset.size": 400}}
    settings.update({{"measure.min_s": 0, "measure.max_s": 0.5, "measure.probes": False, "measure.monitor": False}})
    run = scalebench.run(strategy="bare_torch", gpus=1, model=model, folder="run", **settings)
    print(run.status, run.reason)
"""
GUARD = 'if __name__ == "__main__":'


@pytest.mark.real
@pytest.mark.parametrize(("guard", "is_process", "line"), [
    (GUARD, False, "ok None"),
    pytest.param(GUARD, True, "ok None", marks=pytest.mark.slow),
    pytest.param("if True:", True, f"failed .*put the call below {GUARD}.*", marks=pytest.mark.slow),
])  # fmt: skip
def test_a_script_passes_its_own_function(guard, is_process, line, tmp_path, monkeypatch, capfd):
    """Its file is imported by the workers; without a guard each of them would start runs of its own."""
    (tmp_path / "src").mkdir()
    file = tmp_path / "src" / "train_mine.py"
    file.write_text(SCRIPT.format(guard=guard))
    if is_process:
        subprocess.run([sys.executable, file], timeout=300, check=True)
    else:
        monkeypatch.syspath_prepend(str(file.parent))  # as Python itself does
        monkeypatch.setenv("SCALEBENCH_USER_FOLDERS", "")  # to which the call adds the folder
        runpy.run_path(str(file), run_name="__main__")
    assert re.fullmatch(line, capfd.readouterr().out.splitlines()[-1])
