"""`hardware.environment`: which variables may be set for the processes of a run, and which reach them."""

from __future__ import annotations

import pytest

from scalebench.config import resolve
from scalebench.runner.launchers.rank_environment import build_environment
from tests.builders.configs import make_config, make_spec, resolve_error


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("RANK", "hardware.environment: RANK is set by scalebench for each process; leave it out"),
        ("LOCAL_WORLD_SIZE", "LOCAL_WORLD_SIZE is set by scalebench for each process"),
        ("MASTER_ADDR", "MASTER_ADDR is set by scalebench for each process"),
        ("SCALEBENCH_RUN_ID", "SCALEBENCH_RUN_ID is set by scalebench for each process"),
        ("CUDA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES is set by scalebench; use hardware.device_ids"),
        ("OMP_NUM_THREADS", "OMP_NUM_THREADS is set by scalebench; use hardware.cpus_per_device"),
        ("HF_TOKEN", "HF_TOKEN looks like a secret and would be in the record; set it in the shell"),
        ("1A", "hardware.environment: '1A' is no name of a variable"),
        ("A=B", "hardware.environment: 'A=B' is no name of a variable"),
        ("", "hardware.environment: '' is no name of a variable"),
    ],
)
def test_names_that_are_refused(name: str, message: str) -> None:
    assert message in resolve_error(make_config(hardware__environment={name: "1"}))


def test_a_value_with_a_zero_byte_is_refused() -> None:
    assert "zero byte" in resolve_error(make_config(hardware__environment={"A": "1\0"}))


def test_variables_reach_every_process_and_override_the_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_P2P_LEVEL", "SYS")
    chosen = {"NCCL_P2P_LEVEL": "PIX", "GLOO_SOCKET_IFNAME": "eth1", "RANKS": "0"}
    spec = make_spec(gpus=2, hardware__environment=chosen)
    for rank in range(2):
        variables = build_environment(spec, "an id", rank, ["127.0.0.1:1"])
        assert chosen.items() <= variables.items()
        assert (variables["RANK"], variables["CUDA_DEVICE_ORDER"]) == (str(rank), "PCI_BUS_ID")


def test_variables_are_part_of_the_fingerprint_in_any_order() -> None:
    one, two = {"A": "1", "B": "2"}, {"B": "2", "A": "1"}
    prints = [make_spec(gpus=2, hardware__environment=chosen).fingerprint for chosen in (one, two, {"A": "1"}, {})]
    assert prints[0] == prints[1] and len(set(prints)) == 3


def test_nccl_variables_do_not_matter_on_one_device() -> None:
    made = {gpus: make_spec(gpus=gpus, hardware__environment={"NCCL_P2P_DISABLE": "1", "A": "b"}) for gpus in (1, 2)}
    assert made[2].config.hardware.environment == {"A": "b", "NCCL_P2P_DISABLE": "1"}
    assert made[1].config.hardware.environment == {"A": "b"}
    assert made[1].fingerprint == resolve.resolve(make_config(gpus=1, hardware__environment={"A": "b"})).fingerprint
