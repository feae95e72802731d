"""A process's devices and threads; each set-up needs its own process, since TensorFlow accepts only one."""

from __future__ import annotations

import json
import subprocess
import sys

import keras
import pytest
import tensorflow as tf

from scalebench.core.spec import RankPlacement
from scalebench.strategies.base import Unsupported
from scalebench.strategies.tensorflow import devices
from tests.strategies.tensorflow.conftest import DEVICES

CODE = """
import json, sys
from scalebench.strategies.tensorflow import devices
from scalebench.core.spec import RankPlacement
import tensorflow as tf
found = devices.configure_devices(sys.argv[1], RankPlacement(0, 0, 0, json.loads(sys.argv[2]), [], 3))
there = []
for name in found:
    with tf.device(name):
        there.append(tf.zeros(()).device)
threading = tf.config.threading
print(json.dumps({
    "found": found,
    "there": [name.rpartition("/device:")[2] for name in there],
    "logical": [device.name for device in tf.config.list_logical_devices()],
    "threads": [threading.get_intra_op_parallelism_threads(), threading.get_inter_op_parallelism_threads()],
}))
"""


@pytest.mark.real
@pytest.mark.parametrize(
    ("kind", "own", "count"),
    [
        ("cpu", "[3, 1, 2]", 3),
        *(pytest.param(*one, marks=pytest.mark.slow) for one in [("cpu", "[0]", 1), ("cuda", "[]", 1)]),
    ],
)
def test_configure(kind: str, own: str, count: int) -> None:
    """As many parts of the CPU, whatever their numbers; a process without devices has the CPU."""
    words = [sys.executable, "-c", CODE, kind, own]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr[-2000:]
    said = json.loads(ended.stdout.splitlines()[-1])
    assert said["found"] == [f"/CPU:{index}" for index in range(count)]
    assert said["there"] == [f"CPU:{index}" for index in range(count)]
    assert said["logical"] == [f"/device:CPU:{index}" for index in range(count)]
    assert said["threads"] == [3, count]


@pytest.mark.skipif(bool(tf.config.list_physical_devices("GPU")), reason="there is a GPU here")
def test_too_few_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    for what in ("set_intra_op_parallelism_threads", "set_inter_op_parallelism_threads"):
        monkeypatch.setattr(tf.config.threading, what, lambda threads: None)
    with pytest.raises(Unsupported, match="sees 0 GPUs and this process wants number 3"):
        devices.configure_devices("cuda", RankPlacement(0, 0, 0, [1, 3], [], 1))


def test_gpus_are_those_of_the_placement(monkeypatch: pytest.MonkeyPatch) -> None:
    """In its order, and from then on the only ones; their memory grows as it is needed."""
    visible, growing = [], []
    for what in ("set_intra_op_parallelism_threads", "set_inter_op_parallelism_threads"):
        monkeypatch.setattr(tf.config.threading, what, lambda threads: None)
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["a", "b", "c", "d"])
    monkeypatch.setattr(tf.config, "set_visible_devices", lambda gpus, kind: visible.append((gpus, kind)))
    monkeypatch.setattr(tf.config.experimental, "set_memory_growth", lambda gpu, on: growing.append((gpu, on)))
    assert devices.configure_devices("cuda", RankPlacement(0, 0, 0, [2, 0], [], 1)) == ["/GPU:0", "/GPU:1"]
    assert visible == [(["c", "a"], "GPU")]
    assert growing == [("c", True), ("a", True)]


def test_synchronize_waits_for_every_device_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    waited = []
    monkeypatch.setattr(tf.raw_ops, "SyncDevice", lambda: waited.append(tf.zeros(()).device.rpartition("/device:")[2]))
    devices.synchronize()
    assert waited == ["CPU:0", "CPU:1"]


def test_the_cpu_has_no_peak_memory() -> None:
    assert [devices.peak_memory_bytes(device) for device in DEVICES] == [None, None]


def test_peak_memory_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tf.config.experimental, "get_memory_info", {"GPU:1": {"peak": 7, "current": 5}}.__getitem__)
    assert devices.peak_memory_bytes("/GPU:1") == 7


def test_variable_bytes_by_device() -> None:
    made = []
    for device, size in (("/CPU:0", 3), ("/CPU:1", 5), ("/CPU:1", 1)):
        with tf.device(device):
            made.append(keras.Variable(tf.zeros(size), dtype="float32"))
    assert devices.variable_bytes(DEVICES, made) == [12, 24]
    assert devices.variable_bytes(["/CPU:1", "/GPU:0"], made) == [24, 0]
