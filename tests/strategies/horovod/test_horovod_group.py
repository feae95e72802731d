"""Meeting the other ranks."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from tests.builders.runs import simulated_spec

pytest.importorskip("horovod")

from scalebench.core.spec import Place
from scalebench.runner.launchers.rank_environment import free_port
from scalebench.strategies.horovod import group


def test_port_of_the_rendezvous_taken() -> None:
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        port = other.getsockname()[1]
        told = f"^port {port} of the rendezvous was taken by another program; run it again$"
        with pytest.raises(RuntimeError, match=told), group._rendezvous_server(port):
            pass


def test_waiting_for_a_rank_0_that_comes_late() -> None:
    port, arrived = free_port(), []

    def wait() -> None:
        group._wait_for_server("127.0.0.1", port, 30.0)
        arrived.append(time.monotonic())

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.2)
    opened = time.monotonic()
    with group._rendezvous_server(port):
        waiting.join()
    assert arrived[0] >= opened


def test_waiting_for_a_rank_0_that_never_comes() -> None:
    port = free_port()
    with pytest.raises(
        RuntimeError, match=f"^rank 0 did not open its rendezvous at 127.0.0.1:{port}: Connection refused"
    ):
        group._wait_for_server("127.0.0.1", port, 0.1)


@pytest.mark.parametrize(("rank", "local", "cross"), [(0, (0, 3), (0, 2)), (2, (2, 3), (0, 1)), (4, (1, 2), (1, 2))])
def test_where_a_rank_stands(
    rank: int, local: tuple[int, int], cross: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two nodes of three and two: (number, of how many) on the node, and among those of the same number."""
    monkeypatch.setenv("MASTER_ADDR", "node1")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    spec = simulated_spec(gpus=2)
    spec.places = [Place(k, k % 3, k // 3, [k % 3], [], 1) for k in range(5)]
    found = group._place(spec, rank, 7.0)
    numbers = {name.removeprefix("HOROVOD_"): value for name, value in found.items()}
    assert (numbers["RANK"], numbers["SIZE"]) == (str(rank), "5")
    assert (numbers["LOCAL_RANK"], numbers["LOCAL_SIZE"]) == tuple(map(str, local))
    assert (numbers["CROSS_RANK"], numbers["CROSS_SIZE"]) == tuple(map(str, cross))
    assert numbers["HOSTNAME"] == f"node{rank // 3}"
    assert (numbers["GLOO_RENDEZVOUS_ADDR"], numbers["GLOO_IFACE"]) == ("node1", "ib0")
    assert numbers["GLOO_TIMEOUT_SECONDS"] == "7"
