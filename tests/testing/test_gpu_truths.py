"""The truths of `check --gpu`: each judgement passes what is right and fails what is not, on made-up figures."""

import pytest

from scalebench.cli.commands import check_gpu
from scalebench.config.compose import compose_config
from scalebench.config.resolve import resolve
from scalebench.core.json_files import write_json
from scalebench.core.machine.gpus import Gpu, GpuFacts
from scalebench.strategies.torch.reference_work import DeviceFacts
from scalebench.testing import gpu_truths
from scalebench.testing.gpu_worker import (
    FAIL,
    NOT_POSSIBLE,
    PASS,
    Truth,
    judge_all_reduce,
    judge_device,
    judge_memory,
    judge_rates,
    judge_seconds,
)  # fmt: skip
from scalebench.testing.launch import Refused
from tests.nvml_stand_in import put_in

pytestmark = pytest.mark.gpu
GB = 10**9
NAN = float("nan")
FACTS = DeviceFacts("H100", 2, "9.0", "2.13.0", "13.0")
MIB = 2**20
FULL = 40 * GB


def all_reduce(*of_mib):
    return judge_all_reduce(4, {int(mib * MIB): (measured, expected) for mib, measured, expected in of_mib})


@pytest.mark.parametrize(("line", "verdict", "text"), [
    (judge_seconds("timer", 0.0101, 0.01), PASS, "10.1 ms, expected 10 ms within 2%"),
    (judge_seconds("timer", 0.0103, 0.01), FAIL, "10.3 ms, expected 10 ms within 2%"),
    (judge_seconds("timer", 0.0001, 0.01), FAIL, "0.1 ms"),  # a block that ended before its kernels
    (judge_seconds("timer", None, 0.01), FAIL, "no figure: measured None"),
    (judge_seconds("timer", 0.01, 0.0), FAIL, "no figure"),
    (judge_seconds("timer", NAN, 0.01), FAIL, "no figure"),
    (judge_seconds("monitor", 0.0102, 0.01), PASS, "within 3%"),
    (judge_seconds("monitor", 0.0104, 0.01), FAIL, "within 3%"),
    (judge_seconds("monitor", 0.0104, 0.01, 0.05), PASS, "within 5%"),  # of a busy host
    (judge_seconds("profiler", 0.0104, 0.01), PASS, "within 5%"),
    (judge_seconds("profiler", 0.0112, 0.01), FAIL, "within 5%"),  # hooks that CUPTI leaves behind
    (judge_rates("copy", 2 * GB, 0.098, 0.1), PASS, "20.4 GB/s, expected 20.0 GB/s within 5%"),
    (judge_rates("copy", 2 * GB, 0.05, 0.1), FAIL, "40.0 GB/s, expected 20.0 GB/s"),
    (judge_memory("oom", FULL, FULL), PASS, "status oom; steps run afterwards"),
    (judge_memory("oom", None, None), PASS, "status oom"),
    (judge_memory("failed", FULL, FULL), FAIL, "a full memory gave failed instead of the status oom"),
    (judge_memory(None, FULL, FULL), FAIL, "a full memory gave no error"),
    (judge_memory("oom", FULL, 30 * GB), FAIL, "are free afterwards"),
    (all_reduce((0.01, 9e-5, 1e-5), (1, 1e-5, 1e-5), (256, 2e-3, 2e-3)), PASS, "201 GB/s"),
    (all_reduce((1, 1e-5, 2e-5), (256, 2e-3, 2e-3)), FAIL, "bus bandwidth: 1 MiB: 157 GB/s"),
    (all_reduce((1, 1e-5, 1e-5), (256, 3e-3, 2e-3)), FAIL, "256 MiB: 134 GB/s, expected 201 GB/s"),
    (all_reduce((1, 1e-5, 1e-5), (256, None, 2e-3)), FAIL, "no figure"),
    (all_reduce((0.01, 1e-5, 1e-5)), FAIL, "no size from 1 MiB on"),
    (judge_device(FACTS, 2), PASS, "2 of 2: H100"),
    (judge_device(FACTS, 8), FAIL, "2 of 8: H100"),
    (judge_device(None, 8), FAIL, "PyTorch uses the CPU, and NVML reports 8 GPUs"),
])  # fmt: skip
def test_judgements(line, verdict, text):
    assert line.verdict == verdict and text in line.text, line


def test_a_gpu_that_pytorch_does_not_see_fails_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_truths, "run_worker_module", lambda *words: raise_error(Refused("sees 0 GPUs")))
    lines = gpu_truths.observe_rank("bare_torch", 1, ("device", "timer"), tmp_path)
    assert [(line.verdict, line.text) for line in lines] == [(FAIL, "sees 0 GPUs"), (NOT_POSSIBLE, "sees 0 GPUs")]


def test_losses_of_two_ranks_on_one_gpu():
    expected = [0.5, 0.25]
    for actual in (expected, [0.5, 0.25 * 1.00005]):
        assert gpu_truths.judge_losses(actual, expected, 1e-4).verdict == PASS
    for actual in ([0.5, 0.25 * 1.001], [0.5], [], [NAN, 0.25]):
        assert gpu_truths.judge_losses(actual, expected, 1e-4).verdict == FAIL


def raise_error(error):
    raise error


@pytest.mark.parametrize(("error", "verdict", "text"), [
    (pytest.skip.Exception("ddp needs torch"), NOT_POSSIBLE, "ddp needs torch"),
    (Refused("sees 0 GPUs"), NOT_POSSIBLE, "sees 0 GPUs"),
    (pytest.fail.Exception("exit statuses [1]\n\nlog of rank 0"), FAIL, "exit statuses [1]"),
    (RuntimeError("CUDA error: an illegal memory access"), FAIL, "CUDA error: an illegal memory access"),
    (TimeoutError(), FAIL, "TimeoutError"),
])  # fmt: skip
def test_an_observation_that_raises_is_a_line(error, verdict, text):
    lines = gpu_truths.try_truths(("timer", "copy"), lambda: raise_error(error))
    assert [(line.name, line.verdict, line.text) for line in lines] == [(n, verdict, text) for n in ("timer", "copy")]
    assert verdict == NOT_POSSIBLE or lines[0].detail == str(error)


def test_truths_that_a_rank_did_not_reach_fail(tmp_path, monkeypatch):
    write_json(tmp_path / "truths0.json", [Truth("timer", PASS, "10 ms"), Truth("copy", FAIL, "RuntimeError: no")])
    crash = pytest.fail.Exception("killed by SIGSEGV\nlog")
    monkeypatch.setattr(gpu_truths, "run_worker_module", lambda *words: raise_error(crash))
    lines = gpu_truths.observe_rank("bare_torch", 1, ("timer", "copy", "memory"), tmp_path)
    expected = [(PASS, "10 ms"), (FAIL, "RuntimeError: no"), (FAIL, "killed by SIGSEGV")]
    assert [(line.verdict, line.text) for line in lines] == expected and lines[2].detail == "killed by SIGSEGV\nlog"


def test_more_ranks_than_gpus_go_to_the_first_one(nvml_library, monkeypatch):
    """All on one node, with room for them."""
    put_in(monkeypatch, nvml_library)  # two GPUs
    spec = resolve(compose_config(["strategy=ddp_gloo", "gpus=3", "hardware.gpus_per_node=3"]))
    assert spec.unsupported is not None and "3 asks for more than the 2 GPUs here" in spec.unsupported
    spec = gpu_truths.put_on_first_device(spec)
    assert (spec.device, spec.nodes, spec.unsupported) == ("cuda", 1, None)
    assert [place.devices for place in spec.places] == [[0], [0], [0]]


def test_a_gpu_for_one_process_takes_no_two_ranks(tmp_path, monkeypatch):
    gpu = Gpu(0, *[None] * 8, compute_mode="exclusive_process")
    monkeypatch.setattr(gpu_truths, "detect_gpus", lambda: GpuFacts([gpu], None, None, None))
    (line,) = gpu_truths.try_truths(("one_gpu",), lambda: gpu_truths.observe_two_ranks_on_one_gpu(tmp_path))
    assert line.verdict == NOT_POSSIBLE and "exclusive_process" in line.text


CPU = ("hardware=cpu", "dataset.size=4000")


@pytest.mark.slow
@pytest.mark.real
def test_all_truths_give_figures_on_cpu_workers(tmp_path):
    """The same code, whose figures say nothing here: a CPU has no clock of its own, and wrappers cost more."""
    names = check_gpu.ONE_DEVICE
    lines = {line.name: line for line in gpu_truths.observe_rank("bare_torch", 1, names, tmp_path / "one", *CPU)}
    lines |= {line.name: line for line in gpu_truths.observe_rank("ddp", 2, ("all_reduce",), tmp_path / "two", *CPU)}
    lines |= {line.name: line for line in gpu_truths.observe_bare_and_ddp(tmp_path / "bare", CPU)}
    figures = [line for name, line in lines.items() if name not in ("device", "memory")]
    assert len(figures) == 6 and all(line.measured and line.expected for line in figures), lines
    assert lines["device"].verdict == FAIL, "PyTorch uses the CPU"
    assert lines["memory"].verdict == PASS, lines["memory"]


@pytest.mark.slow
@pytest.mark.real
def test_two_ranks_on_one_device_train_as_one(tmp_path):
    (line,) = gpu_truths.observe_two_ranks_on_one_gpu(tmp_path, "hardware=cpu")
    assert line.verdict == PASS, line
