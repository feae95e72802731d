"""Configs of data sets for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scalebench.core.spec import Config, DatasetSpec, ModelSpec


def image_config(name: str, cache_dir: Path, side: int = 8, **changes: Any) -> Config:
    """A model of ten classes on images of `side` pixels, and a data set of them; `changes` are its fields."""
    model = ModelSpec("net", input_shape=[side, side, 3], target_shape=[], outputs=10)
    return Config(model=model, dataset=DatasetSpec(**{
        "name": name, "size": 100, "classes": 10, "dtype": "uint8", "cache": str(cache_dir), **changes
    }))  # fmt: skip
