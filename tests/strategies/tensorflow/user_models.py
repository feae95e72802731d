"""Models as users write them: valid ones, and one for each possible mistake."""

import sys

import keras
import numpy as np
from keras import layers, ops

CURVE = (200, 3)


class Tabled(keras.Model):
    """A table whose rows are looked up often, weights that nothing hangs on, and dropout."""

    def __init__(self):
        super().__init__()
        self.convolution = layers.Conv1D(4, 5, strides=4, activation="relu")
        self.table, self.drop, self.last = layers.Embedding(4, 2), layers.Dropout(0.4), layers.Dense(2)
        self.idle = self.add_weight(shape=(3, 2), name="idle")

    def call(self, x, training=False):
        rows = ops.cast(ops.sign(x[:, 20:25, 0]), "int32") + 1
        found = ops.reshape(self.table(rows), (-1, 10))
        joined = ops.concatenate([ops.mean(self.convolution(x), axis=1), found], 1)
        return self.last(self.drop(joined, training=training))


def normalised(rate=0.3, frozen=False):
    first = layers.Conv1D(4, 5, name="first", trainable=not frozen)
    parts = [first, layers.BatchNormalization(), layers.Dropout(rate), layers.Flatten()]
    return keras.Sequential([*parts, layers.Dense(2)])


def plain(width=4):
    return keras.Sequential([layers.Flatten(), layers.Dense(width), layers.Dense(2)])


def droppers():
    x = taken = keras.Input(CURVE)
    x = layers.SpatialDropout1D(0.2)(layers.GaussianDropout(0.2)(layers.AlphaDropout(0.2)(x)))
    x = layers.MultiHeadAttention(2, 3, dropout=0.2)(x[:, ::50], x[:, ::50])
    x = layers.LSTM(4, dropout=0.2, recurrent_dropout=0.2)(layers.Dropout(0.2)(x))
    return keras.Model(taken, layers.Dense(2)(x))


def pictures(outputs=10, softmax=False):
    last = layers.Dense(outputs, activation="softmax" if softmax else None)
    return keras.Sequential([layers.Conv2D(4, 3, strides=4), layers.GlobalAveragePooling2D(), last])


def softmax_op():
    taken = layers.Input((32, 32, 3))
    scores = layers.Dense(10)(layers.GlobalAveragePooling2D()(taken))
    return keras.Model(taken, keras.ops.softmax(scores))


class Noisy(layers.Layer):
    def __init__(self):
        super().__init__()
        self.seed_generator = keras.random.SeedGenerator()

    def call(self, x):
        return x + keras.random.normal((1,), seed=self.seed_generator)


class Costly(layers.Layer):
    def call(self, x):
        self.add_loss(ops.mean(x))
        return x


def of(*kinds, last=2):
    return keras.Sequential([layers.Flatten(), *kinds, layers.Dense(last)])


def taking(*shape, dtype="float32", batch=None):
    taken = keras.Input(batch_shape=(batch, *shape), dtype=dtype)
    return keras.Model(taken, layers.Dense(2)(layers.Flatten()(taken)))


def two_inputs():
    both = [keras.Input(CURVE), keras.Input(CURVE)]
    return keras.Model(both, layers.Dense(2)(layers.Flatten()(layers.Add()(both))))


def two_outputs():
    taken = keras.Input(CURVE)
    flat = layers.Flatten()(taken)
    return keras.Model(taken, [layers.Dense(2)(flat), layers.Dense(2)(flat)])


def numpys():
    """Weights that a user draws with numpy."""
    made = plain()
    made.build((None, *CURVE))
    made.layers[1].set_weights([np.random.normal(size=one.shape) for one in made.layers[1].get_weights()])
    return made


class OwnStep(keras.Sequential):
    def train_step(self, data):
        raise AssertionError("nobody calls it")


class OwnLoss(keras.Model):
    """Functional, with a loss of its own."""

    def compute_loss(self, **_):
        raise AssertionError("nobody calls it")


def own_loss():
    curve = keras.Input(CURVE)
    return OwnLoss(curve, layers.Dense(2)(layers.Flatten()(curve)))


def half():
    """As after keras.mixed_precision.set_global_policy at the top of the user's file."""
    keras.config.set_dtype_policy("mixed_float16")
    return plain()


FAULTS = {
    "own_step": lambda: OwnStep([layers.Flatten(), layers.Dense(2)]),
    "own_loss": own_loss,
    "half": half,
    "half_layer": lambda: of(layers.Dense(3, dtype="mixed_bfloat16")),
    "raises": lambda: {}["width"],
    "exits": lambda: sys.exit("no data"),
    "nothing": lambda: None,
    "a_class": lambda: keras.Model,
    "a_layer": lambda: layers.Dense(2),
    "no_weights": lambda: keras.Sequential([layers.GlobalAveragePooling1D(), layers.Lambda(lambda x: x[:, :2])]),
    "float64": lambda: of(layers.Dense(3, dtype="float64")),
    "regularised": lambda: of(layers.Dense(3, kernel_regularizer="l2")),
    "activity": lambda: of(layers.Dense(3, activity_regularizer="l2")),
    "costly": lambda: of(Costly()),
    "three": lambda: of(last=3),
    "another_shape": lambda: taking(100, 3),
    "integers": lambda: taking(*CURVE, dtype="uint8"),
    "batched": lambda: taking(*CURVE, batch=32),
    "too_deep": lambda: keras.Sequential([layers.Conv2D(3, 3)]),
    "noisy": lambda: of(Noisy()),
    "two_inputs": two_inputs,
    "two_outputs": two_outputs,
}
not_a_function = 7


noisy = FAULTS["noisy"]


def fault(kind):
    return FAULTS[kind]()
