"""The exchange over a link of known speed: two network namespaces, joined by a cable that is shaped to 1 Gbit/s.

The namespaces are those of two processes that sleep, and go with them; no interface of the machine itself is touched.
"""

import os
import shutil
import subprocess
import time
from contextlib import ExitStack

import pytest

from scalebench.analysis import step_breakdown
from scalebench.config.compose import compose_config
from scalebench.config.resolve import resolve
from scalebench.runner.parent import run_spec
from tests.truth.link_worker import ADDRESS, NAMESPACES

pytestmark = [pytest.mark.truth, pytest.mark.slow, pytest.mark.real]

BITS_PER_S = 1e9
ON_THE_WIRE = 1514 / 1448  # bytes of an Ethernet frame, which the shaping counts, over those that it carries
PROGRAMS = ("ip", "tc", "nsenter", "unshare")
OVERRIDES = """strategy=ddp_gloo hardware=cpu gpus=2 model=synthetic dataset.size=16 train.batch_per_device=1
    model.options.parameters=12500000 model.options.flops=25000000 model.options.sample_bytes=4000
    measure.warmup_steps=2 measure.warmup_max_steps=2 measure.min_s=0 measure.max_s=2 measure.probe_s=4
    measure.evaluate=false measure.monitor=false""".split()


@pytest.fixture
def namespaces(monkeypatch):
    """Paths of two, each with one end of the cable as eth0."""
    if os.geteuid() != 0 or not all(map(shutil.which, PROGRAMS)):
        pytest.skip(f"network namespaces need root and {', '.join(PROGRAMS)}")
    with ExitStack() as stack:
        sleepers = [stack.enter_context(subprocess.Popen(["unshare", "--net", "sleep", "600"])) for _ in range(2)]
        for sleeper in sleepers:
            stack.callback(sleeper.kill)
        paths = [f"/proc/{sleeper.pid}/ns/net" for sleeper in sleepers]
        _wait_until_apart(paths)
        _do(paths[0], f"ip link add eth0 type veth peer name eth0 netns {sleepers[1].pid}")
        for end, path in enumerate(paths, 1):
            _do(path, "ip link set lo up")
            _do(path, f"ip addr add {ADDRESS.format(end)}/24 dev eth0")
            _do(path, "ip link set eth0 up")
            _do(path, "tc qdisc add dev eth0 root tbf rate 1gbit burst 128kb latency 20ms")
        monkeypatch.setenv(NAMESPACES, ",".join(paths))
        yield paths


def _wait_until_apart(paths):
    here, deadline_s = os.stat("/proc/self/ns/net").st_ino, time.monotonic() + 5
    while any(os.stat(path).st_ino == here for path in paths):
        if time.monotonic() > deadline_s:
            pytest.skip("this machine gives no network namespaces")
        time.sleep(0.01)


def _do(path, command):
    reported = subprocess.run(["nsenter", f"--net={path}", *command.split()], capture_output=True, text=True)
    if reported.returncode != 0:
        pytest.skip(f"this machine gives no shaped link: {command}: {reported.stderr.strip()}")


def exchanged(folder):
    result = run_spec(resolve(compose_config(OVERRIDES)), folder, module="tests.truth.link_worker")
    assert result.status == "ok", result.reason
    return result


def test_the_exchange_alone_takes_what_the_link_takes(namespaces, tmp_path):
    """Each of two ranks sends as many bytes as the gradients have, and receives as many at the same time.

    In one of three runs: the machine's other work, which only ever adds, can take more than 5 % from two busy ranks."""
    for attempt in range(3):
        result = exchanged(tmp_path / str(attempt))
        actual, exposed, sizes = (
            step_breakdown.figure(result, "sync_isolated_s"),
            step_breakdown.figure(result, "sync_exposed_s"),
            result.sync.message_bytes,
        )
        assert actual is not None and sum(sizes) > 40e6
        theory_s = sum(sizes) * 8 / BITS_PER_S * ON_THE_WIRE
        print(f"\n{sum(sizes)} bytes in {len(sizes)}: theory {theory_s:.4f} s, isolated {actual}, exposed {exposed}")
        if abs(actual.value / theory_s - 1) < 0.05:
            break
    assert actual.value == pytest.approx(theory_s, rel=0.05)
    # Next to nothing is computed in this model, so that nothing hides the exchange.
    assert exposed is not None and exposed.value == pytest.approx(theory_s, rel=0.25)
