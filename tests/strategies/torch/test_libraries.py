"""Networks of other libraries: stand-ins show what is asked of each, and transformers itself where it is installed."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn

from scalebench.core.spec import ModelSpec
from scalebench.strategies.torch import libraries
from scalebench.strategies.torch.user_module import UserProblem, function_label


@pytest.fixture
def calls(monkeypatch):
    """Put stand-ins of the libraries in their place; return the arguments of their calls."""
    calls = []

    def create(name, **arguments):
        calls.append({"name": name, **arguments})
        return nn.Linear(2, 2)

    def for_model(name, **settings):
        return SimpleNamespace(name=name, use_cache=True, **settings)

    vision, timm, transformers = ModuleType("torchvision"), ModuleType("timm"), ModuleType("transformers")
    vision.models = SimpleNamespace(get_model=create, list_models=lambda: ["resnet18"])
    timm.create_model, timm.list_models = create, lambda: ["resnet18"]
    timm.is_model = lambda name: name == "resnet18"
    transformers.CONFIG_MAPPING = {"gpt2": None}
    transformers.AutoConfig = SimpleNamespace(for_model=for_model)
    transformers.AutoModelForCausalLM = SimpleNamespace(from_config=lambda config: create(**vars(config)))
    for module in (vision, timm, transformers):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return calls


def test_networks_have_the_classes_of_the_samples_and_no_weights(calls):
    libraries.build_torchvision("resnet18", 10)
    libraries.build_timm("resnet18", 10, drop_rate=0.1)
    libraries.build_transformers("gpt2", n_layer=2)
    assert calls == [
        {"name": "resnet18", "weights": None, "num_classes": 10},
        {"name": "resnet18", "pretrained": False, "num_classes": 10, "drop_rate": 0.1},
        {"name": "gpt2", "use_cache": False, "n_layer": 2},
    ]
    model = ModelSpec("timm/resnet19", torch="scalebench.strategies.torch.libraries:build_timm")
    assert function_label(model) == "model=timm/resnet19"


def test_unknown_names_have_a_neighbour(calls):
    for library in ("torchvision", "timm"):
        with pytest.raises(UserProblem, match=rf"^is no model of {library}; did you mean resnet18\?$"):
            getattr(libraries, f"build_{library}")("resnet19", 10)
    with pytest.raises(UserProblem, match=r"^is no model type of transformers; did you mean gpt2\?$"):
        libraries.build_transformers("gpt3")
    with pytest.raises(UserProblem, match=r"^has no task 'translation': set model.options.task to causal_lm, "):
        libraries.build_transformers("gpt2", task="translation")


@pytest.mark.extra("transformers")
def test_the_real_transformers():
    import transformers

    module = libraries.build_transformers("gpt2", n_layer=1, n_embd=8, n_head=2, vocab_size=16, n_positions=8)
    tokens = torch.arange(8)[None]
    assert isinstance(module, transformers.PreTrainedModel)
    assert module(input_ids=tokens, attention_mask=torch.ones_like(tokens), labels=tokens).loss > 0
