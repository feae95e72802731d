"""A process's devices, threads, precision and layout, as configured and as observed, and the reasons for unsupported
ones."""

from itertools import islice

import keras
import pytest
import tensorflow as tf

from scalebench.core.spec import RankPlacement
from scalebench.strategies.base import Unsupported
from scalebench.strategies.tensorflow import devices, profiling
from scalebench.strategies.tensorflow.model import NetworkModel
from scalebench.workloads.network import Network
from scalebench.workloads.weights import initial_weights
from tests.strategies.tensorflow.builders import BARE, SMALL_IMAGES
from tests.strategies.tensorflow.conftest import CONFIGURED, DEVICES

pytestmark = pytest.mark.usefixtures("settings_kept")


def test_the_devices_of_this_process(monkeypatch):
    """As many parts of the CPU, whatever their numbers, and as many operations at a time as it has threads. All of them
    are waited for."""
    assert devices.configure_devices("cpu", CONFIGURED) == DEVICES == ["/CPU:0", "/CPU:1"]
    there, waited = [], []
    for name in DEVICES:
        with tf.device(name):
            there.append(tf.zeros(()).device.rpartition("/device:")[2])
    assert there == ["CPU:0", "CPU:1"]
    assert [device.name for device in tf.config.list_logical_devices()] == ["/device:CPU:0", "/device:CPU:1"]
    threading = tf.config.threading
    assert [threading.get_intra_op_parallelism_threads(), threading.get_inter_op_parallelism_threads()] == [3, 3]
    monkeypatch.setattr(tf.raw_ops, "SyncDevice", lambda: waited.append(tf.zeros(()).device.rpartition("/device:")[2]))
    devices.synchronize()
    assert waited == there


@pytest.fixture
def threads_kept(monkeypatch):
    for what in ("set_intra_op_parallelism_threads", "set_inter_op_parallelism_threads"):
        monkeypatch.setattr(tf.config.threading, what, lambda threads: None)


@pytest.mark.usefixtures("threads_kept")
@pytest.mark.skipif(bool(tf.config.list_physical_devices("GPU")), reason="there is a GPU here")
def test_too_few_gpus():
    with pytest.raises(Unsupported, match="sees 0 GPUs and this process needs number 3"):
        devices.configure_devices("cuda", RankPlacement(0, 0, 0, [1, 3], [], 1))


@pytest.mark.gpu
@pytest.mark.usefixtures("threads_kept")
def test_gpus_are_those_of_the_placement(monkeypatch):
    """From then on they are the only ones, and TensorFlow numbers them in their physical order; their memory grows as
    it is needed."""
    visible, growing = [], []
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["a", "b", "c", "d"])
    monkeypatch.setattr(tf.config, "set_visible_devices", lambda gpus, kind: visible.append((gpus, kind)))
    monkeypatch.setattr(tf.config.experimental, "set_memory_growth", lambda gpu, on: growing.append((gpu, on)))
    assert devices.configure_devices("cuda", RankPlacement(0, 0, 0, [2, 0], [], 1)) == ["/GPU:1", "/GPU:0"]
    assert visible == [(["a", "c"], "GPU")]
    assert growing == [("a", True), ("c", True)]
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["d"])  # the one that SLURM chose for a rank
    assert devices.configure_devices("cuda", RankPlacement(3, 3, 0, [3], [], 1)) == ["/GPU:0"]
    assert visible[-1] == (["d"], "GPU")
    monkeypatch.setattr(tf.config, "set_logical_device_configuration", lambda cpu, parts: growing.append(len(parts)))
    assert devices.configure_devices("cuda", RankPlacement(4, 4, 0, [], [], 1)) == ["/CPU:0"]  # of one that has none
    assert (visible[-1], growing[-1]) == (([], "GPU"), 1)


def test_peak_memory_and_bytes_of_a_device(monkeypatch):
    assert [devices.peak_memory_bytes(device) for device in DEVICES] == [None, None]
    monkeypatch.setattr(tf.config.experimental, "get_memory_info", {"GPU:1": {"peak": 7, "current": 5}}.__getitem__)
    assert devices.peak_memory_bytes("/GPU:1") == 7
    made = []
    for device, size in (("/CPU:0", 3), ("/CPU:1", 5), ("/CPU:1", 1)):
        with tf.device(device):
            made.append(keras.Variable(tf.zeros(size), dtype="float32"))
    assert devices.variable_bytes(DEVICES, made) == [12, 24]
    assert devices.variable_bytes(["/CPU:1", "/GPU:0"], made) == [24, 0]


def test_the_peak_of_a_gpu_begins_after_setup(strategy, monkeypatch):
    """As PyTorch's does: all initial weights at once are not memory that a step needs."""
    reset = []
    monkeypatch.setattr(devices, "peak_memory_bytes", {DEVICES[0]: 7}.get)
    monkeypatch.setattr(tf.config.experimental, "reset_memory_stats", reset.append)
    assert strategy(*BARE).peak_memory_bytes() == [7]
    assert reset == ["CPU:0"]


PICTURES = (*BARE, *SMALL_IMAGES)
GPU = "/GPU:0"


def traced(compute_dtype, data_format, axes=2):
    """An update of two layers, as a strategy would trace it."""
    net = Network("tiny", (6,) * axes + (3,))
    net.dense(net.flatten(net.conv(net.input, "conv", 4, 3)), "dense", 2)
    arrays = initial_weights(((a.name, a.shape, a.init) for a in net.arrays), 0)
    model = NetworkModel(net, arrays, data_format=data_format, compute_dtype=compute_dtype)

    @tf.function(autograph=False)
    def update(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True)))
        return tape.gradient(loss, [variable.value for variable in model.trainable_variables])

    return update.get_concrete_function(tf.TensorSpec((None, *net.input.shape)))


@pytest.mark.parametrize("data_format", ["nhwc", "nchw"])
@pytest.mark.parametrize("compute_dtype", ["float32", "bfloat16", "float16"])
def test_precision_and_layout(compute_dtype, data_format, gpu):
    """One-dimensional convolutions have no layout, and on a GPU TensorFlow may have turned it."""
    gpu((7, 0))
    wanted = {"compiler": "none", "precision": compute_dtype, "data_format": data_format}
    function = traced(compute_dtype, data_format)
    assert profiling.settings_used(function, "/CPU:0", fixed_layout=False) == wanted
    assert profiling.settings_used(function, GPU, fixed_layout=True)["data_format"] == data_format
    assert "data_format" not in profiling.settings_used(function, GPU, fixed_layout=False)
    if data_format == "nhwc":
        curves = traced(compute_dtype, "nhwc", axes=1)
        assert profiling.settings_used(curves, "/CPU:0", True) == {"compiler": "none", "precision": compute_dtype}


@pytest.mark.usefixtures("small_network")
def test_a_strategy_trains_in_its_layout(strategy, pictures):
    one = strategy(*PICTURES, "train.data_format=nchw", "train.learning_rate=0.01")
    assert one.settings_used() == {"precision": "float32", "data_format": "nchw", "compiler": "none"}
    parts = [one.step(batch) for batch in islice(one.feed(pictures()), 3)]
    assert float(parts[2].loss_sum) / parts[2].samples < float(parts[0].loss_sum) / parts[0].samples


def test_tf32_needs_ampere(strategy, gpu):
    with pytest.raises(Unsupported, match=r"train\.precision=tf32 .*8\.0 or above; use float32"):
        strategy(*BARE, "train.precision=tf32")
    gpu((7, 5))
    with pytest.raises(Unsupported, match=r"compute capability 8\.0"):
        devices.configure_precision("tf32", "/GPU:1")
    gpu((9, 0))
    assert devices.configure_precision("tf32", "/GPU:1") == "float32"
    with pytest.raises(Unsupported):
        devices.configure_precision("tf32", GPU)


@pytest.fixture
def gpu(monkeypatch):
    """gpu(capability) -> TensorFlow says that there is one of it behind another."""

    def set_to(capability):
        details = {"other": {"compute_capability": (7, 0)}, "one": {"compute_capability": capability}}
        monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: ["other", "one"])
        monkeypatch.setattr(tf.config.experimental, "get_device_details", details.__getitem__)

    return set_to


@pytest.mark.gpu
def test_tf32_is_set_and_observed(gpu):
    """TensorFlow has it on by itself, which `default` leaves so; float32 means float32."""
    gpu((8, 0))
    function = traced("float32", "nhwc")
    tf.config.experimental.enable_tensor_float_32_execution(True)
    for name, expected in (("default", "tf32"), ("float32", "float32"), ("tf32", "tf32")):
        assert devices.configure_precision(name, "/GPU:1") == "float32"
        assert profiling.settings_used(function, "/GPU:1", True)["precision"] == expected
    gpu((7, 0))
    tf.config.experimental.enable_tensor_float_32_execution(True)
    assert profiling.settings_used(function, "/GPU:1", True)["precision"] == "float32"


def test_gpus_have_channels_first(monkeypatch):
    """Kernels are tried on the CPU only."""

    def refuse(*_):
        raise tf.errors.UnimplementedError(None, None, "no kernel")

    monkeypatch.setattr(devices, "_channels_first_gradient", refuse)
    devices.check_channels_first(GPU, "float16")
    with pytest.raises(Unsupported, match="no kernels for float16"):
        devices.check_channels_first("/CPU:0", "float16")
