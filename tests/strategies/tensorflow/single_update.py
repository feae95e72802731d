"""`python single_update.py JSON`: a single update of each of some strategies over two devices, in a process of its own.

TensorFlow's devices cannot change within a process. The second device is made the strategy's first, so that the first
one can be told from the CPU that everything is on by default. What is found out goes to standard output as JSON, a line
for each list of overrides in the JSON, and TensorFlow's log of where it placed which operation to standard error.
"""

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

MARK = "-- the update"
DEVICES = ["/CPU:1", "/CPU:0"]
PLACED = re.compile(r"\] (\S+): \((\w+)\): \S*device:(CPU:\d)$", re.MULTILINE)


@dataclass
class Placed:
    name: str
    type: str
    device: str


@dataclass
class Update:
    """What the other process found out, and what TensorFlow logged there."""

    facts: dict[str, Any]
    placed: list[Placed]

    def devices(self, name, type=""):
        """Where the operations are whose names match the pattern `name`."""
        wanted = re.compile(name)
        return {one.device for one in self.placed if wanted.search(one.name) and type in ("", one.type)}


def run_updates(cases, small=False):
    """Return what became of one update for each list of overrides, in a process of its own."""
    words = [sys.executable, __file__, json.dumps(cases), "small" if small else ""]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=180)
    assert ended.returncode == 0, ended.stderr[-3000:]
    facts, logs = re.findall("^{.*}$", ended.stdout, re.MULTILINE), ended.stderr.split(MARK)[1::2]
    return [
        Update(json.loads(line), [Placed(*each) for each in PLACED.findall(log)])
        for line, log in zip(facts, logs, strict=True)
    ]


def main(cases, small):
    import os

    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "0"  # the log of placements is information
    import tensorflow as tf

    tf.debugging.set_log_device_placement(True)  # for good: it is read when TensorFlow begins

    from scalebench.config.compose import compose_config
    from scalebench.config.resolve import resolve
    from scalebench.strategies import registry
    from scalebench.strategies.tensorflow import devices
    from scalebench.workloads import datasets, networks
    from tests.strategies.tensorflow.builders import build_small_network

    if small:
        networks.build_network = build_small_network
    configured = []
    for overrides in cases:
        spec = resolve(compose_config(overrides))
        strategy = registry.load_strategy(spec.config.strategy.name)(spec, 0)
        configured = configured or devices.configure_devices(spec.device, strategy.place)
        devices.configure_devices = lambda *_, names=tuple(configured): list(names)
        print(json.dumps(make_update(strategy, *datasets.open_sources(spec, *strategy.shard()))))


def make_update(strategy, source, _):
    join = strategy.join

    def join_on_reversed_devices():
        strategy.devices.reverse()
        assert strategy.devices == DEVICES
        join()

    strategy.join = join_on_reversed_devices
    strategy.setup()
    batch = next(iter(strategy.feed(source)))
    expected = expected_statistics(strategy, batch.parts)
    print(MARK, file=sys.stderr, flush=True)
    strategy.step(batch)
    print(MARK, file=sys.stderr, flush=True)
    function = strategy.step_function().get_concrete_function()
    found = [variable.numpy() for variable in strategy.model.moving_statistics]
    return {
        "weights_on": sorted({short(variable.value.device) for variable in strategy.model.variables}),
        "slots_on": sorted({short(variable.value.device) for variable in strategy.optimizer.variables}),
        "fed_on": sorted({short(tensor.device) for part in batch.parts for tensor in part}),
        "statistics_off_by": [float(abs(a - b).max()) for a, b in zip(found, expected, strict=True)],
        "statistics_moved_by": [float(abs(a).max()) for a in found],
        "message_bytes": strategy.message_sizes(),
        "compiled": [op.name for op in function.graph.get_operations() if "_XlaMustCompile" in op.node_def.attr],
        "round_trip": round_trip(strategy) if hasattr(strategy, "parameter_device") else None,
    }


def expected_statistics(strategy, parts):
    """The mean over the replicas of what each one's moving statistics become, found out one by one.

    `parts` are those of the replicas, or the full batch as one, which is then cut in two here.
    """
    import numpy as np

    inputs = np.concatenate([part[0].numpy() for part in parts])
    cut = len(parts[0][0]) if len(parts) == 2 else len(inputs) // 2
    after = []
    for samples in (inputs[:cut], inputs[cut:]):
        model = strategy._build_model("float32")
        model(samples, training=True)
        after.append([variable.numpy() for variable in model.moving_statistics])
    return [np.mean(pair, 0) for pair in zip(*after, strict=True)]


def round_trip(strategy):
    """Devices of the sums and of their copies, in the exchange alone; its buffers are on both."""
    strategy.run_isolated_sync([8, 400])
    _, trip = strategy._exchange
    graph = trip.run.get_concrete_function(trip.buffers).graph
    sums = [op for op in graph.get_operations() if op.type == "AddN"]
    assert [op.outputs[0].shape.num_elements() for op in sums] == [2, 100]
    copies = [op for op in graph.get_operations() if op.type == "Identity" and op.inputs[0].op in sums]
    assert [{short(buffer.device) for buffer in one} for one in trip.buffers] == [{"CPU:1"}, {"CPU:0"}]
    return [sorted({short(op.device) for op in ops}) for ops in (sums, copies)]


def short(device):
    """CPU:0 of /job:localhost/replica:0/task:0/device:CPU:0."""
    return device.rpartition("device:")[2]


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), sys.argv[2] == "small")
