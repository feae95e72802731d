"""Who is where, and what a group that cannot form says."""

from __future__ import annotations

import pytest
import tensorflow as tf

from scalebench.core.errors import InputError
from scalebench.strategies.tensorflow import multiworker
from scalebench.strategies.tensorflow.multiworker import Workers
from tests.builders.runs import simulated_spec


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    addresses = ["10.0.0.1:5000", "10.0.0.1:5001", "10.0.0.2:5000"]
    monkeypatch.setenv(multiworker.ADDRESSES, ",".join(addresses))
    return addresses


def test_addresses_come_from_the_launcher(three: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert multiworker.addresses() == three
    monkeypatch.delenv(multiworker.ADDRESSES)
    with pytest.raises(RuntimeError, match="SCALEBENCH_ADDRESSES is not set"):
        multiworker.addresses()


def test_the_resolver_says_what_tf_config_would(three: list[str]) -> None:
    resolver = multiworker.resolver({"ps": three[:1], "worker": three[1:]}, "worker", 1, ["/GPU:0"])
    assert resolver.cluster_spec().as_dict() == {"ps": three[:1], "worker": three[1:]}
    assert (resolver.task_type, resolver.task_id, resolver.rpc_layer) == ("worker", 1, "grpc")
    assert resolver.num_accelerators() == {"GPU": 1}
    assert multiworker.resolver({"worker": three}, "worker", 0, ["/CPU:0"]).num_accelerators() == {"GPU": 0}


def test_a_port_in_use_is_named(three: list[str]) -> None:
    words = r"10\.0\.0\.1:5001 was taken by another program; run it again"
    with pytest.raises(RuntimeError, match=words), multiworker.port_of(1):
        raise tf.errors.UnknownError(None, None, "Could not start gRPC server")
    with pytest.raises(tf.errors.UnknownError), multiworker.port_of(1):
        raise tf.errors.UnknownError(None, None, "something else")


def test_an_unknown_carrier_names_the_nearest() -> None:
    with pytest.raises(InputError, match=r"no strategy\.backend 'rign'; did you mean 'ring'"):
        Workers(simulated_spec(), 0, ["/CPU:0"], "rign")
