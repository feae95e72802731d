"""`python single_update.py OVERRIDE...`: a single update of a strategy over two devices, in a process of its own.

TensorFlow's devices cannot change within a process. The second device is made the strategy's first, so that the first
one can be told from the CPU that everything is on by default. What is found out goes to standard output as JSON, and
TensorFlow's log of where it placed which operation to standard error.
"""

from __future__ import annotations

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
    """An operation, and where TensorFlow placed it."""

    name: str
    type: str
    device: str


@dataclass
class Update:
    """What the other process found out, and what TensorFlow logged there."""

    facts: dict[str, Any]
    placed: list[Placed]

    def devices(self, name: str, type: str = "") -> set[str]:
        """Where the operations are whose names match the pattern `name`."""
        wanted = re.compile(name)
        return {one.device for one in self.placed if wanted.search(one.name) and type in ("", one.type)}


def one_update(*overrides: str) -> Update:
    """What became of one update in a process of its own."""
    ended = subprocess.run([sys.executable, __file__, *overrides], capture_output=True, text=True, timeout=180)
    assert ended.returncode == 0, ended.stderr[-3000:]
    log = ended.stderr.split(MARK)[1]
    return Update(json.loads(ended.stdout.splitlines()[-1]), [Placed(*found) for found in PLACED.findall(log)])


def main(overrides: list[str]) -> None:
    import os

    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "0"  # the log of placements is information
    import tensorflow as tf

    tf.debugging.set_log_device_placement(True)  # for good: it is read when TensorFlow begins

    from scalebench.config.compose import compose_config
    from scalebench.config.resolve import resolve
    from scalebench.strategies import registry
    from scalebench.workloads import datasets

    spec = resolve(compose_config(overrides))
    strategy: Any = registry.load_strategy(spec.config.strategy.name)(spec, 0)
    join = strategy.join

    def join_on_reversed_devices() -> None:
        strategy.devices.reverse()
        assert strategy.devices == DEVICES
        join()

    strategy.join = join_on_reversed_devices
    source, _ = datasets.open_sources(spec, *strategy.shard())
    strategy.setup()
    batch = next(iter(strategy.feed(source)))
    expected = expected_statistics(strategy, batch.parts)
    print(MARK, file=sys.stderr, flush=True)
    strategy.step(batch)
    print(MARK, file=sys.stderr, flush=True)
    function = strategy.step_function().get_concrete_function()
    found = [variable.numpy() for variable in strategy.model.moving_statistics]
    facts = {
        "weights_on": sorted({short(variable.value.device) for variable in strategy.model.variables}),
        "slots_on": sorted({short(variable.value.device) for variable in strategy.optimizer.variables}),
        "fed_on": sorted({short(tensor.device) for part in batch.parts for tensor in part}),
        "statistics_off_by": [float(abs(a - b).max()) for a, b in zip(found, expected, strict=True)],
        "statistics_moved_by": [float(abs(a).max()) for a in found],
        "message_bytes": strategy.message_sizes(),
        "compiled": [op.name for op in function.graph.get_operations() if "_XlaMustCompile" in op.node_def.attr],
        "round_trip": round_trip(strategy) if hasattr(strategy, "_round_trip") else None,
    }
    print(json.dumps(facts))


def expected_statistics(strategy: Any, parts: Any) -> list[Any]:
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


def round_trip(strategy: Any) -> list[list[str]]:
    """Devices of the sums and of their copies, in the exchange alone; its buffers are on both."""
    strategy.run_isolated_sync([8, 400])
    _, trip = strategy._round_trip
    graph = trip._run.get_concrete_function(trip._buffers).graph
    sums = [op for op in graph.get_operations() if op.type == "AddN"]
    assert [op.outputs[0].shape.num_elements() for op in sums] == [2, 100]
    copies = [op for op in graph.get_operations() if op.type == "Identity" and op.inputs[0].op in sums]
    assert [{short(buffer.device) for buffer in one} for one in trip._buffers] == [{"CPU:1"}, {"CPU:0"}]
    return [sorted({short(op.device) for op in ops}) for ops in (sums, copies)]


def short(device: str) -> str:
    """CPU:0 of /job:localhost/replica:0/task:0/device:CPU:0."""
    return device.rpartition("device:")[2]


if __name__ == "__main__":
    main(sys.argv[1:])
