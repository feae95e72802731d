"""A Keras model with two inputs, pictures and numbers, under TensorFlow's strategies.

scalebench strategy=bare_tensorflow,mirrored gpus=1,2 model=custom \\
    model.keras=keras_two_inputs:build dataset=custom dataset.builder=keras_two_inputs:samples
"""

import numpy as np

CLASSES, SIDE = 5, 24


def build(width=16):
    """{pictures (n, 24, 24, 1), phase (n, 1)} -> (n, 5) scores, with a residual block."""
    import keras
    from keras import layers

    pictures = layers.Input((SIDE, SIDE, 1), dtype="uint8", name="pictures")
    phase = layers.Input((1,), name="phase")
    x = layers.Rescaling(1 / 127.5, offset=-1)(pictures)
    x = layers.Conv2D(width, 3, strides=2, padding="same", activation="relu")(x)
    y = layers.Conv2D(width, 3, padding="same", activation="relu")(x)
    x = layers.add([x, layers.Conv2D(width, 3, padding="same")(y)])
    x = layers.GlobalAveragePooling2D()(layers.ReLU()(x))
    x = layers.concatenate([x, layers.Dense(width, activation="relu")(phase)])
    return keras.Model({"pictures": pictures, "phase": phase}, layers.Dense(CLASSES)(x))


def samples(size, seed):
    """Gratings of five widths as bytes with their phases, and the number of the width."""
    random = np.random.default_rng(seed)
    classes = random.integers(CLASSES, size=size)
    phases = random.uniform(0, 6, size=(size, 1))
    waves = np.sin((classes[:, None, None] + 1) * np.linspace(0, 6, SIDE)[None, None] + phases[..., None])
    pictures = 127 + 90 * waves + 15 * random.normal(size=(size, SIDE, SIDE))
    return {"pictures": pictures.clip(0, 255).astype(np.uint8)[..., None], "phase": phases}, classes
