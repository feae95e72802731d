"""A Keras model of pictures under TensorFlow's strategies.

scalebench --multirun strategy=bare_tensorflow,mirrored gpus=1,2 model=custom \\
    model.keras=keras_pictures:build dataset=custom dataset.builder=keras_pictures:samples
"""

import numpy as np

CLASSES, SIDE = 5, 24


def build(width=16):
    """(n, 24, 24, 1) -> (n, 5) scores, with a residual block."""
    import keras
    from keras import layers

    inputs = layers.Input((SIDE, SIDE, 1))
    x = layers.Conv2D(width, 3, strides=2, padding="same", activation="relu")(inputs)
    y = layers.Conv2D(width, 3, padding="same", activation="relu")(x)
    x = layers.add([x, layers.Conv2D(width, 3, padding="same")(y)])
    x = layers.GlobalAveragePooling2D()(layers.ReLU()(x))
    return keras.Model(inputs, layers.Dense(CLASSES)(x))


def samples(size, seed):
    """Gratings of five widths as bytes, (n, 24, 24, 1), and the number of the width."""
    random = np.random.default_rng(seed)
    classes = random.integers(CLASSES, size=size)
    phases = random.uniform(0, 6, size=(size, 1, 1))
    waves = np.sin((classes[:, None, None] + 1) * np.linspace(0, 6, SIDE)[None, None] + phases)
    pictures = 127 + 90 * waves + 15 * random.normal(size=(size, SIDE, SIDE))
    return pictures.clip(0, 255).astype(np.uint8)[..., None], classes
