"""Sums of gradients over devices that are not here: only the graph is looked at, nothing runs."""

from __future__ import annotations

import pytest

pytest.importorskip("tensorflow")
import tensorflow as tf

from scalebench.strategies.tensorflow import central_storage

GPUS = ["/GPU:0", "/GPU:1", "/GPU:2"]
SHAPES = [(2, 3), (5,)]


def gradients(devices: list[str]) -> list[list[tf.Tensor]]:
    """Placeholders, as many of each shape as there are devices."""
    made = []
    for device in devices:
        with tf.device(device):
            made.append([tf.compat.v1.placeholder(tf.float32, shape) for shape in SHAPES])
    return made


def test_added_up_where_it_is_asked_for() -> None:
    with tf.Graph().as_default():
        parts = gradients(GPUS)
        sums = central_storage.added_up(parts, "/CPU:0")
        assert [tuple(total.shape) for total in sums] == SHAPES
        for number, total in enumerate(sums):
            assert (total.op.type, total.op.device) == ("AddN", "/device:CPU:0")
            assert [one.name for one in total.op.inputs] == [of_device[number].name for of_device in parts]


def test_nccl_reduces_each_gradient_among_all_devices() -> None:
    with tf.Graph().as_default() as graph:
        parts = gradients(GPUS)
        sums = central_storage.all_reduced(parts, GPUS, "/CPU:0")
        reduces = [op for op in graph.get_operations() if op.type == "NcclAllReduce"]
        assert [op.inputs[0].name for op in reduces] == [
            one.name for of_gradient in zip(*parts, strict=True) for one in of_gradient
        ]
        assert [op.device for op in reduces] == [f"/device:GPU:{number}" for number in (0, 1, 2)] * 2
        assert {(op.get_attr("num_devices"), op.get_attr("reduction")) for op in reduces} == {(3, b"sum")}
        names = [op.get_attr("shared_name") for op in reduces]
        assert len(set(names[:3])) == len(set(names[3:])) == 1
        assert names[0] != names[3]
        for number, total in enumerate(sums):
            mine = reduces[3 * number : 3 * number + 3]
            assert total.op.device == "/device:CPU:0"
            assert total.op.inputs[0].op == mine[0]
            assert set(mine[1:]) <= set(total.op.control_inputs)  # or they might never run, and the first one hang


def test_one_device_reduces_nothing() -> None:
    with tf.Graph().as_default() as graph:
        (alone,) = gradients(["/GPU:0"])
        for sums in (
            central_storage.added_up([alone], "/CPU:0"),
            central_storage.all_reduced([alone], ["/GPU:0"], "/CPU:0"),
        ):
            assert [one.name for one in sums] == [one.name for one in alone]
        assert {op.type for op in graph.get_operations()} == {"Placeholder"}
