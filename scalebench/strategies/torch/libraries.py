"""Networks of other libraries of PyTorch, as functions for `model.torch`: transformers, torchvision and timm.

They are built from their configurations, with weights drawn from the run's seed; nothing is downloaded.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from scalebench.strategies.torch.user_errors import UserProblem

# Classes of transformers by the value of model.options.task.
TASKS = {
    "causal_lm": "AutoModelForCausalLM",
    "masked_lm": "AutoModelForMaskedLM",
    "sequence_classification": "AutoModelForSequenceClassification",
}


def build_transformers(name: str, task: str = "causal_lm", **settings: Any) -> nn.Module:
    """Build a network of transformers from the configuration of a model type (`name`, such as gpt2) with some of its
    `settings` changed. It gives its loss where a batch has labels."""
    import transformers

    if task not in TASKS:
        raise UserProblem(f"has no task '{task}': set model.options.task to {', '.join(TASKS)}")
    config = transformers.AutoConfig.for_model(name, **settings)
    config.use_cache = False  # of keys and values, which only text generation reads
    module: nn.Module = getattr(transformers, TASKS[task]).from_config(config)
    return module


def build_torchvision(name: str, classes: int, **settings: Any) -> nn.Module:
    """Build torchvision's classifier of that name for that number of classes, without its published weights."""
    from torchvision import models

    module: nn.Module = models.get_model(name, weights=None, num_classes=classes, **settings)
    return module


def build_timm(name: str, classes: int, **settings: Any) -> nn.Module:
    """Build timm's classifier of that name for that number of classes, without its published weights."""
    import timm

    module: nn.Module = timm.create_model(name, pretrained=False, num_classes=classes, **settings)
    return module
