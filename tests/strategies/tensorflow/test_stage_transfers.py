"""What goes from device to device: by the traced graph, by the profiler, and alone."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("tensorflow")

from scalebench.strategies.tensorflow import model_parallel, observed
from tests.strategies.tensorflow.conftest import DEVICES
from tests.strategies.tensorflow.two_stage_model import RESNET, TWO, batches, on


@pytest.mark.slow
@pytest.mark.parametrize("words", [("train.optimizer=adam",), ("train.optimizer=adamw", "train.weight_decay=0.1")])
def test_only_what_is_at_the_cut_leaves_its_device(strategy: Any, words: tuple[str, ...]) -> None:
    """By the profiler, of an update that ran: beside single numbers the targets, an activation and its gradient."""
    two = strategy(*TWO, *words)
    batch, *_ = batches(two, (10,))
    two.step(batch)
    function = two.step_function().get_concrete_function()
    outputs = {op.name: op.outputs for op in function.graph.get_operations()}
    sent = model_parallel.sent_operations(observed.record_event_names(lambda: two.step(batch)))
    arrays = {name for name in sent if name in outputs and outputs[name] and outputs[name][0].shape.rank != 0}
    forward, back = model_parallel.stage_transfers(function)
    assert arrays == {forward.op.name, back.op.name, "parts_1"}
    assert (on(forward.device), on(back.device)) == (on(DEVICES[0]), on(DEVICES[1]))
    assert back.name.startswith("gradients") and not forward.name.startswith("gradients")


@pytest.mark.parametrize(("precision", "size"), [("float32", 4), ("bfloat16", 2)])
def test_messages_are_what_is_at_the_cuts(strategy: Any, precision: str, size: int) -> None:
    two = strategy(*TWO, *RESNET, f"train.precision={precision}")
    assert two.message_sizes() == [10 * 16 * 16 * 32 * size] * 2
    two.run_isolated_sync(two.message_sizes())
    _, trip = two._transfers
    graph = trip._run.get_concrete_function(trip._buffers).graph
    copies = [op for op in graph.get_operations() if op.type == "Identity" and op.inputs[0].op.type == "Identity"]
    ways = [(on(op.inputs[0].device), on(op.device)) for op in copies[:2]]
    assert ways == [(on(DEVICES[0]), on(DEVICES[1])), (on(DEVICES[1]), on(DEVICES[0]))]


def test_the_backend_is_what_was_seen(strategy: Any) -> None:
    two = strategy(*TWO)
    with pytest.raises(RuntimeError, match="there was no training"):
        two.backend_used()
    two.step(batches(two, (10,))[0])
    assert two.backend_used() == "copy"
    one = strategy(*TWO, "gpus=1")
    one.step(batches(one, (10,))[0])
    assert (one.backend_used(), one.message_sizes(), one.stages()) == (None, [], [])
    one.run_isolated_sync([100])


def test_what_was_sent_is_told_from_the_names_of_events() -> None:
    events = {"stage/Relu/_29:_Send", "stage/Relu:Relu", "update/stage/MatMul/_3:_Recv", "Sum/_1:_Send"}
    assert model_parallel.sent_operations(events) == {"stage/Relu", "Sum"}


def test_buffers_go_forward_and_back_and_forward_again() -> None:
    turn = model_parallel.TransferChain(["/CPU:0", "/CPU:1", "/CPU:2"][:2], [8, 400, 4])
    assert [buffer.shape.num_elements() for buffer in turn._buffers] == [2, 100, 1]
    assert [on(buffer.device)[1] for buffer in turn._buffers] == [0, 1, 0]
    turn()
