"""Keras' `fit` under TensorFlow's MirroredStrategy: one process for all devices, also on CPU workers.

scalebench script=examples/train_mirrored.py script.processes=one_for_all scaling=strong gpus=1,2 \\
    script.args.devices=@gpus script.args.reduce=hierarchical,first
"""

import argparse

import tensorflow as tf

REDUCTIONS = {
    "hierarchical": tf.distribute.HierarchicalCopyAllReduce,
    "nccl": tf.distribute.NcclAllReduce,
    "first": tf.distribute.ReductionToOneDevice,
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--reduce", choices=REDUCTIONS, default="hierarchical")
    parser.add_argument("--batch-size", type=int, default=64)  # of all devices together
    parser.add_argument("--filters", type=int, default=32)
    args = parser.parse_args()

    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        parts = [tf.config.LogicalDeviceConfiguration() for _ in range(args.devices)]
        tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], parts)
    devices = [f"{'GPU' if gpus else 'CPU'}:{number}" for number in range(args.devices)]
    strategy = tf.distribute.MirroredStrategy(devices, REDUCTIONS[args.reduce]())

    pictures = tf.random.stateless_uniform((2048, 32, 32, 3), (0, 0))
    labels = tf.random.stateless_uniform((2048,), (0, 1), maxval=10, dtype=tf.int32)
    data = tf.data.Dataset.from_tensor_slices((pictures, labels)).repeat().batch(args.batch_size, drop_remainder=True)
    with strategy.scope():
        layers = tf.keras.layers
        convolutions = (layers.Conv2D(args.filters, 3, padding="same", activation="relu") for _ in range(3))
        net = tf.keras.Sequential([*convolutions, layers.GlobalAveragePooling2D(), layers.Dense(10)])
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        net.compile(tf.keras.optimizers.Adam(), loss)
    net.fit(data, epochs=1000, steps_per_epoch=2048 // args.batch_size, verbose=2)


if __name__ == "__main__":
    main()
