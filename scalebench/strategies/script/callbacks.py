"""Callbacks of trainers, for those who would rather write a line than have their optimizer observed.

Each calls `scalebench.step` after an update. Where scalebench has not started the program they do nothing.
"""

from __future__ import annotations

from typing import Any

from scalebench.strategies.script import step


def HuggingFace() -> Any:
    """Return a transformers.TrainerCallback: `Trainer(callbacks=[scalebench.callbacks.HuggingFace()])`."""
    from transformers import TrainerCallback

    return _make_callback(TrainerCallback, on_step_end=lambda *call, **more: step())


def Lightning() -> Any:
    """Return a Lightning callback: `Trainer(callbacks=[scalebench.callbacks.Lightning()])`. Several optimizers of a
    batch are one step."""
    try:
        from lightning.pytorch.callbacks import Callback
    except ModuleNotFoundError:
        from pytorch_lightning.callbacks import Callback

    def on_train_batch_end(callback: Any, trainer: Any, *more: Any) -> None:
        if trainer.global_step > callback.steps:  # else it accumulates gradients
            callback.steps = trainer.global_step
            step()

    return _make_callback(Callback, on_train_batch_end=on_train_batch_end, steps=0)


def Keras() -> Any:
    """Return a Keras callback: `model.fit(..., callbacks=[scalebench.callbacks.Keras()])`."""
    import keras

    return _make_callback(keras.callbacks.Callback, on_train_batch_end=lambda *call, **more: step())


def _make_callback(base: type, **members: Any) -> Any:
    return type("StepCallback", (base,), members)()
