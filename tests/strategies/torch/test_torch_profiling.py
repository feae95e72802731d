"""Self time of operations, in profiled steps and in artificial events, and backends and settings as observed there."""

import gzip
import json
import os
import re
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.autograd import DeviceType

from scalebench.core.result import RankRecord
from scalebench.measure.progress import ProgressFile
from scalebench.measure.session import Session
from scalebench.strategies.base import NotMeasured
from scalebench.strategies.recording import MAX_OPERATIONS, build_profile
from scalebench.strategies.torch import profiling
from scalebench.strategies.torch.base import NO_KERNELS
from scalebench.strategies.torch.profiling import (
    ALL_REDUCE,
    OperatorCall,
    identify_backend,
    identify_settings,
    summarize_operations,
)

STEPS = 3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bare_torch", "lightning_ddp_gloo"])
def test_profile_of_one_rank(strategy, source, tmp_path, name):
    adapter = strategy(name)
    adapter.step(next(iter(adapter.feed(source()))))
    began_s = time.time()
    actual = adapter.profile(STEPS, tmp_path / "trace.json.gz")
    ended_s = time.time()
    by_name = {operation.name: operation for operation in actual.operations}
    assert by_name["aten::convolution_backward"].calls == 2 and by_name["aten::addmm"].calls == 2
    assert actual.steps == STEPS and 0 < actual.step_s < (ended_s - began_s) / STEPS
    assert len(actual.operations) == MAX_OPERATIONS
    own_s = [operation.self_s for operation in actual.operations]
    assert own_s == sorted(own_s, reverse=True) and own_s[-1] > 0
    assert sum(own_s) < actual.kernel_s
    assert {operation.device for operation in actual.operations} == {"cpu"}
    if name == "bare_torch":  # one thread, so that its operations fit into the time of its steps
        assert actual.kernel_s < actual.step_s and actual.collective_s is None
    else:
        assert 0 < actual.collective_s < actual.kernel_s  # of one process, too short to be among the largest
    check_trace(tmp_path, began_s, ended_s)


def check_trace(folder, began_s, ended_s):
    assert [path.name for path in folder.iterdir()] == ["trace.json.gz"]
    with gzip.open(folder / "trace.json.gz", "rt") as file:
        content = json.load(file)
    base_s = content["baseTimeNanoseconds"] / 1e9
    times_s = [base_s + event["ts"] / 1e6 for event in content["traceEvents"] if "ts" in event]
    assert began_s < min(times_s) < max(times_s) < ended_s
    named = {event["args"]["name"] for event in content["traceEvents"] if event["name"] == "thread_name"}
    assert any(name.startswith("thread ") for name in named)


def event(name, took_us, own_us, **others):
    """Return an object like torch's FunctionEvent."""
    settings = {"is_async": False, "is_user_annotation": False, "device_type": DeviceType.CPU, "id": 0, **others}
    spent = SimpleNamespace(elapsed_us=lambda: took_us, start=0.0, end=took_us)
    return SimpleNamespace(name=name, time_range=spent, self_cpu_time_total=own_us, **settings)


KERNEL = {"device_type": DeviceType.CUDA, "device_index": 0}
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
EVENTS = [
    event("ProfilerStep*", 90.0, 20.0, is_user_annotation=True),
    event("Optimizer.step#Adam.step", 30.0, 10.0, is_user_annotation=True),
    event("aten::linear", 40.0, 10.0),
    event("aten::mm", 30.0, 30.0),
    event("aten::mm", 10.0, 10.0),
    event("c10d::allreduce_", 2.0, 2.0),
    event("gloo:all_reduce", 60.0, 0.0, is_async=True, is_user_annotation=True),
    event("horovod:synchronize", 24.0, 22.0, is_user_annotation=True),
    event("sm90_gemm", 12.0, 0.0, **KERNEL),
    event("sm90_gemm", 12.0, 0.0, **KERNEL),
    event(NCCL, 50.0, 0.0, **KERNEL),
    event("gloo:all_reduce", 7.0, 0.0, is_user_annotation=True, **KERNEL),
    event("nccl:all_reduce", 55.0, 0.0, is_user_annotation=True, **KERNEL),
]


def listed(cuda):
    return [
        (operation.name, operation.calls, pytest.approx(operation.self_s * 1e6), operation.collective, operation.device)
        for operation in summarize_operations(EVENTS, 2, cuda)
    ]


def test_operations_on_the_cpu_and_on_a_gpu():
    """Communication counts for as long as it was in flight, its submission with self time, and Python not at all. On a
    GPU only kernels count: the host's operations and annotations of kernels would count the time twice."""
    assert listed(cuda=False) == [
        ("gloo:all_reduce", 0.5, 30.0, True, "cpu"),
        ("aten::mm", 1.0, 20.0, False, "cpu"),
        ("horovod:synchronize", 0.5, 11.0, True, "cpu"),
        ("aten::linear", 0.5, 5.0, False, "cpu"),
        ("c10d::allreduce_", 0.5, 1.0, False, "cpu"),
    ]
    assert listed(cuda=True) == [(NCCL, 0.5, 25.0, True, "cuda"), ("sm90_gemm", 1.0, 12.0, False, "cuda")]


@pytest.fixture
def cupti(monkeypatch):
    """Return a list with the number of each session so far, in which PyTorch's profiler sees a GPU: kernels in every
    second session alone, as where what CUPTI tears down after one falls into the next."""
    sessions, start, read = [], torch.profiler.profile.start, torch.profiler.profile.events
    kernels = [event("sm90_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32", 12.0, 0.0, **KERNEL)]

    def begin(profiler):
        sessions.append(len(sessions))
        start(profiler)

    monkeypatch.setattr(torch.profiler.profile, "start", begin)
    monkeypatch.setattr(torch.profiler.profile, "events", lambda self: [*read(self), *kernels[sessions[-1] % 2 :]])
    of_cpu = profiling.profile_steps
    monkeypatch.setattr(profiling, "profile_steps", lambda *first, **more: of_cpu(*first[:4], True, *first[5:], **more))
    monkeypatch.setattr(profiling, "choose_activities", lambda on_gpu: [torch.profiler.ProfilerActivity.CPU])
    return sessions


MEASURE = {"min_s": 0.1, "max_s": 0.1, "block_s": 0.02, "warmup_max_s": 0.1, "probe_s": 0.05}


@pytest.mark.gpu
@pytest.mark.parametrize("probes", [True, False])
def test_backend_settings_and_operations_are_of_one_session(strategy, cupti, tmp_path, probes):
    adapter = strategy("ddp_gloo", measure={**MEASURE, "probes": probes})
    adapter.setup = lambda: None  # it is done
    record = RankRecord(0, "here", os.getpid())
    Session(adapter.spec, adapter, record, ProgressFile(tmp_path, 0, os.getpid())).run()
    assert cupti == [0] and record.backend_used == "gloo" and not record.probe_failures
    assert record.settings_used == {"precision": "tf32", "compiler": "none"}
    if probes:
        assert record.probes.profile.kernel_s > 0 and "profile" not in record.probes.reasons


@pytest.mark.gpu
def test_a_profile_on_a_gpu_without_kernels_is_a_reason(strategy, cupti, source, tmp_path):
    """What the host's events tell stays; whether float32 was computed in TF32 they do not tell."""
    adapter = strategy("ddp_gloo")
    adapter.step(next(iter(adapter.feed(source()))))
    cupti.append(0)
    with pytest.raises(NotMeasured, match=f"^{re.escape(NO_KERNELS)}$"):
        adapter.profile(2, tmp_path / "trace.json.gz")
    assert adapter.backend_used() == "gloo" and adapter.settings_used() == {"compiler": "none"}
    assert cupti == [0, 1]


@pytest.mark.gpu
@pytest.mark.parametrize(("names", "backend", "all_reduces"), [
    (["aten::add", "gloo:all_reduce"], "gloo", "gloo"),
    (["gloo:all_reduce", "nccl:all_reduce"], "gloo+nccl", "gloo+nccl"),
    (["aten::add", "gloo:broadcast", "c10d::allreduce_"], None, None),
    (["nccl:all_reduce"], "nccl", "nccl"),
    (["nccl:broadcast"], None, None),
    (["nccl:_all_gather_base"], "nccl", None),
    (["gloo:all_reduce", "ncclDevKernel_Broadcast_RING_LL"], "gloo", "gloo"),
    *(([f"ncclDevKernel_{kernel}(ncclDevKernelArgsStorage<4096ul>)"], "nccl", backend) for kernel, backend in (
        ("AllReduce_Sum_f32_TREE_LL", "nccl"), ("AllReduce_Sum_f32_RING_LL", "nccl"), ("AllGather_RING_LL", None),
        ("ReduceScatter_Sum_bf16_RING_LL", None), ("Reduce_Sum_f32_RING_LL", None), ("SendRecv", None),
    )),
    (["ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)"], "nccl", "nccl"),
    (["ncclSymkDevKernel_AllReduce_AGxLL_R_sum_f32(ncclSymkDevWorkArgs4K)"], "nccl", "nccl"),
    (["ncclSymkDevKernel_AllReduce_RSxLDMC_AGxSTMC_sum_bf16(ncclSymkDevWorkArgs4K)"], "nccl", "nccl"),
    (["ncclSymDevKernel_AllGather_STMC(ncclSymDevArgs)"], "nccl", None),
    (["ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)"], None, None),
])  # fmt: skip
def test_backends_and_kernels_of_nccl(names, backend, all_reduces):
    """All kernels are communication in a profile, also those that carry no gradients. Only all-reduces count where
    Lightning's broadcast of SIGTERM would pass for the gradients otherwise."""
    assert identify_backend(iter(names)) == backend
    assert identify_backend(iter(names), ALL_REDUCE) == all_reduces
    if names[0].startswith("nccl"):
        (operation,) = summarize_operations([event(names[0], 5.0, 0.0, **KERNEL)], 1, cuda=True)
        assert operation.collective == ("Kernel" in names[0])


# The names are from NVIDIA/cutlass issues 999 and 2286, pytorch/pytorch pull request 167503, pytorch/xla 6407,
# karpathy/nanochat 105, pytorch/kineto and openxla/xprof.
@pytest.mark.gpu
@pytest.mark.parametrize(("name", "is_tf32"), [
    ("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x64_16x6_tn_align4>(Params)", True),
    ("cutlass_tensorop_s1688tf32gemm_256x128_16x3_nn_align4", True),
    ("sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32_warpgroupsize1x1x1_execute_segment_k_off", True),
    ("cutlass_75_tensorop_bf16_s1688gemm_bf16_256x128_nn_align1", False),
    ("ampere_bf16_s1688gemm_bf16_128x128_ldg8_f2f_stages_32x1_nn", False),
    ("ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_64x3_tn", False),
    ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x64x8_stage3_warpsize2x2x1_ffma_aligna4_alignc4", False),
    ("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x256_8x4_nt_align1>(Params)", False),
    ("volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_tn", False),
    ("volta_sgemm_128x32_nt", False),
])  # fmt: skip
def test_kernels_of_tf32(name, is_tf32):
    assert identify_settings([name], [product(FLOAT)])["precision"] == ("tf32" if is_tf32 else "float32")


RECORDINGS = Path(__file__).parents[2] / "golden" / "recordings"


def read_recording(name):
    """Return the events of a Chrome trace as torch's profiler has them before it writes one."""
    traced = json.loads((RECORDINGS / f"{name}.json").read_text())
    return [
        event(each["name"], each["dur"], each["dur"], **(KERNEL if each["cat"].lower() == "kernel" else {}))
        for each in traced
    ]


NCCL_2_12 = "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)"
ADD = "void at::native::vectorized_elementwise_kernel"


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "backend", "kernels", "collective_us"), [
    ("kineto_nccl", "nccl",
     [(NCCL_2_12, 1058), (ADD, 161), ("ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclWorkElem)", 31)], 1089),
    ("kineto_gloo_gpu", "gloo", [(ADD, 101)], None),
    ("kineto_v100", None, [("volta_sgemm_128x32_nt", 6), (f"{ADD}<4, at::native::AddFunctor<float>, ", 1)], None),
])  # fmt: skip
def test_recorded_profiles_of_gpus(name, backend, kernels, collective_us):
    events = read_recording(name)
    assert identify_backend(each.name for each in events) == backend
    operations = summarize_operations(events, 1, cuda=True)
    assert [round(operation.self_s * 1e6) for operation in operations] == [us for _, us in kernels]
    assert all(each.name.startswith(start) for each, (start, _) in zip(operations, kernels, strict=True))
    collective_s = build_profile(operations, 1, 0.01).collective_s
    assert (None if collective_s is None else round(collective_s * 1e6)) == collective_us


def read_trace(name):
    """Return the events of a Chrome trace of a GPU, without the host's operators, as torch's profiler has them."""
    with gzip.open(RECORDINGS / f"{name}.json.gz", "rt") as file:
        traced = json.load(file)
    return [
        SimpleNamespace(
            name=each["name"],
            id=each["args"].get("correlation", 0),
            device_type=DeviceType.CPU if each["cat"].startswith("cuda_") else DeviceType.CUDA,
            device_index=each["args"].get("device", 0),
            is_user_annotation=each["cat"] == "gpu_user_annotation",
            time_range=SimpleNamespace(start=each["ts"], end=each["ts"] + each["dur"]),
        )
        for each in traced
    ]


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "steps", "compute_us", "copy_us", "host_wait_us", "kernel_wait_us", "kernels"), [
    ("kineto_h100_ddp", 5, 262.943, 11.718, 5337.537, 85.518, 56),
    ("kineto_h100_resnet", 1, 12058.075, 87.43, 45645.116, 1631.837, 1018),
])  # fmt: skip
def test_what_an_h100_did_in_a_step(name, steps, compute_us, copy_us, host_wait_us, kernel_wait_us, kernels):
    """materials_cnn at batch 75 under ddp, five steps, and one of ResNet-50 in bfloat16 at batch 32: it waits for its
    host most of the time. A group of one rank has no kernel of NCCL. The sums were also formed by another way, from
    one end of an activity to the next."""
    gpu = profiling.sum_up_gpus(read_trace(name), steps)
    actual = [1e6 * each for each in (gpu.compute_s, gpu.copy_s, gpu.host_wait_s, gpu.kernel_wait_s)]
    assert actual == pytest.approx([compute_us, copy_us, host_wait_us, kernel_wait_us], rel=1e-4)
    assert (gpu.communication_s, gpu.hidden_s, gpu.kernels) == (0.0, 0.0, kernels)


@pytest.mark.gpu
def test_recorded_settings_of_a_gpu():
    """ResNet-50 in float32 on an H100; images are channels-last."""
    traced = json.loads((RECORDINGS / "kineto_h100_channels_last.json").read_text())
    calls = []
    for each in traced:
        if sizes := each["args"].get("Input Dims"):
            strides = [tuple(part) for part in each["args"]["Input Strides"]]
            calls.append(OperatorCall(each["name"], FLOAT, tuple(sizes[0]), strides[0]))
    names = {each["name"] for each in traced}
    assert identify_settings(names, calls) == {"compiler": "none", "precision": "float32", "data_format": "nhwc"}


FLOAT, HALF = torch.float32, torch.float16
IMAGES, LAST = (192, 64, 8, 1), (192, 1, 24, 3)  # strides of 2 pictures of 8 x 8 in 3 colours


def conv(dtype, strides, name="aten::convolution"):
    return OperatorCall(name, dtype, (2, 3, 8, 8), strides)


def product(dtype, name="aten::addmm"):
    return OperatorCall(name, dtype, (2, 3), (3, 1))


TF32_CONV, SMALL_PRODUCT = "sm90_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwc", "gemmSN_TN_kernel<float>"


def ran(call, *kernels):
    return call._replace(gpu_kernels=kernels)


@pytest.mark.parametrize(("names", "operations", "settings"), [
    ([], [conv(FLOAT, IMAGES)], ("float32", "nchw", "none")),
    ([], [conv(FLOAT, LAST)], ("float32", "nhwc", "none")),
    (["sm80_xmma_fprop_implicit_gemm_tf32f32_f32"], [product(FLOAT)], ("tf32", None, "none")),
    (["cutlass_80_tensorop_s1688gemm_128x256_16x3_nn_align4"], [product(FLOAT)], ("tf32", None, "none")),
    (["turing_fp16_s1688gemm_fp16_128x128_ldg8_f2f_tn"], [product(FLOAT)], ("float32", None, "none")),
    (["ampere_sgemm_128x64_tn"], [product(FLOAT)], ("float32", None, "none")),
    ([TF32_CONV, SMALL_PRODUCT], [ran(conv(FLOAT, IMAGES), TF32_CONV), ran(product(FLOAT), SMALL_PRODUCT)],
     ("float32+tf32", "nchw", "none")),
    ([TF32_CONV, "splitK"], [ran(conv(FLOAT, IMAGES), TF32_CONV, "splitK")], ("tf32", "nchw", "none")),
    ([], [conv(HALF, IMAGES), product(FLOAT)], ("float16+float32", "nchw", "none")),
    ([], [OperatorCall("aten::convolution", HALF, (2, 1, 8, 8), (64, 1, 8, 1))], ("float16", None, "none")),
    (["Torch-Compiled Region: 0/0"], [conv(FLOAT, LAST, "mkldnn::_convolution_pointwise")],
     ("float32", "nhwc", "inductor")),
    ([], [conv(FLOAT, IMAGES), conv(FLOAT, LAST)], ("float32", "nchw+nhwc", "none")),
    ([], [product(HALF, "aten::add")], (None, None, "none")),
])  # fmt: skip
def test_identify_settings(names, operations, settings):
    expected = dict(zip(("precision", "data_format", "compiler"), settings, strict=True))
    assert identify_settings(names, operations) == {key: value for key, value in expected.items() if value is not None}
