"""Ranks that somebody starts by hand: what is asked for, and what becomes of the run."""

import json
import os
import shlex
import sys

import pytest

from scalebench.config.resolve import resolve
from scalebench.core.process import StartError
from scalebench.core.result import read_result
from scalebench.core.run_folder import STOP_FILE, TORCHRUN_FILE
from scalebench.core.spec import write_spec
from scalebench.runner import launchers
from scalebench.runner.launchers import torchrun
from scalebench.runner.parent import run_spec
from tests.builders.launching import TorchrunUser
from tests.builders.runs import simulated_config, simulated_spec

pytestmark = pytest.mark.cold


def spec_of(gpus, hosts, **measure):
    made = simulated_config(gpus=gpus, measure=measure)
    made.strategy.launcher, made.hardware.hosts = "by_hand", hosts
    return resolve(made)


def test_a_command_for_each_node(tmp_path):
    spec = spec_of(3, ["a:2", "b:2"])
    commands = torchrun.node_commands(spec, tmp_path / "a run", "a:4711")
    for node, (host, ranks) in enumerate([("a", 2), ("b", 1)]):
        assert (commands[node][0], shlex.join(commands[node][1])) == (
            host,
            f"{sys.executable} -P -m torch.distributed.run --nnodes=2 --node-rank={node} --nproc-per-node={ranks} "
            f"--master-addr=a --master-port=4711 --no-python "
            f"{sys.executable} -P -m scalebench.runner.worker '{tmp_path}/a run'",
        )
    spec = simulated_spec(2)
    ((host, words),) = torchrun.node_commands(spec, tmp_path, torchrun.choose_addresses(spec, "an id")[-1])
    assert host == "localhost" and "--master-addr=127.0.0.1" in words and "--nproc-per-node=2" in words
    # Processes without a device are started too.
    made = simulated_config(gpus=2)
    made.strategy.processes = {"roles": {"chief": 1, "ps": 1, "worker": "gpus"}}
    made.hardware.hosts = ["a:1", "b:1"]
    words = [words for _, words in torchrun.node_commands(resolve(made), tmp_path, "a:1")]
    assert ["--nproc-per-node=3" in words[0], "--nproc-per-node=1" in words[1]] == [True, True]


def test_addresses_of_ranks_and_one_for_torchrun():
    found = [address.rpartition(":") for address in torchrun.choose_addresses(spec_of(3, ["a:2", "b:2"]), "an id")]
    assert [host for host, _, _ in found] == ["a", "a", "b", "a"]
    assert len({(host, port) for host, _, port in found}) == 4
    here = torchrun.choose_addresses(spec_of(2, ["localhost:1", "127.0.0.1:1"]), "an id")
    assert len(set(here)) == 3 and {address.rpartition(":")[0] for address in here} == {"127.0.0.1"}


def test_ranks_that_nobody_starts_are_a_failed_run_and_one_started_later_is_refused(tmp_path, capsys):
    result = run_spec(spec_of(2, ["a:1", "b:1"], timeout_s=0.2), tmp_path / "run")
    reason = "the processes could not be started: nobody started one within 0.2 s (measure.timeout_s)"
    assert (result.status, result.reason, result.log) == ("failed", reason, None)
    assert sorted(os.listdir(tmp_path / "run")) == ["result.json", "spec.json"]
    head, *rest = capsys.readouterr().out.splitlines()
    assert head == f"simulated gpus=2 waits 0.2 s for its ranks; start on each host, in {tmp_path}:"
    assert [line.partition(": ")[0] for line in rest] == ["a", "b"]
    spec = spec_of(2, ["a:1", "b:1"], timeout_s=0.2)
    write_spec(spec, tmp_path)
    with pytest.raises(StartError):
        launchers.launch(spec, tmp_path, "an id")
    assert not (tmp_path / TORCHRUN_FILE).exists() and json.loads((tmp_path / STOP_FILE).read_text()) is False


WORDS = (
    "hardware=cpu hardware.hosts=[localhost:2,127.0.0.1:1] gpus=3 dataset.size=2000 measure=quick measure.probes=false "
    "measure.min_s=0.3 measure.monitor=false measure.warmup_max_s=0.2 sweep.report=false hydra.run.dir=run"
).split()


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize("strategy", ["ddp_gloo", "multiworker_ring", "parameter_server"])
def test_torchrun_starts_the_ranks_of_every_framework(strategy, tmp_path):
    """Two nodes, which are one here, with ranks that measure and ranks that serve them."""
    with TorchrunUser([f"strategy={strategy}", *WORDS], tmp_path) as hands:
        assert hands.end() == (0, [0, 0]), hands.said
    result = read_result(tmp_path / "run" / "result.json")
    assert (result.status, result.reason, result.scale.nodes) == ("ok", None, 2)
    assert {rank.threads for rank in result.ranks} == {1} and result.phases.launch_s
    left = {path.name for path in (tmp_path / "run").iterdir()}
    assert not left & {STOP_FILE, TORCHRUN_FILE} and not [name for name in left if name.startswith(("pid", "exit"))]
