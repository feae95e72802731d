"""Splitting the Linear layers of a user's module over processes: by columns with complete outputs, which is right for
whatever code is between the layers, and in pairs where that code is certain."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module
from torch.nn import functional

from scalebench.strategies.torch.tensor_parallel.plan import can_share

PLAN_NAMES = ("tp_plan", "_tp_plan")  # a module's own plan, in the form of Hugging Face's: a style for each pattern
GATHERED_NAMES = ("colwise_gather_output", "colwise_rep")
EMBEDDING_NAMES = ("embedding_rowwise",)  # embeddings stay complete
HEAD_COUNTS = ("num_attention_heads", "num_key_value_heads")  # of a configuration of Hugging Face's
ELEMENTWISE = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish, nn.Tanh, nn.Sigmoid),
    *(nn.Hardswish, nn.Softplus, nn.Dropout, nn.Identity),
)


def split_user_layers(module: nn.Module, mesh: DeviceMesh, include_single: bool) -> int:
    """Replace the weights of Linear layers by shards over the processes of a mesh, which have the same weights, and
    return how many layers these are.

    Without `include_single` only pairs are split: by columns and then by rows, with one all-reduce for both.
    """
    styles = plan_styles(module, mesh.size(), include_single)
    parallelize_module(module, mesh, styles, src_data_rank=None)
    for layer in module.modules():
        if getattr(layer, "inplace", False):  # autograd lets nothing overwrite the output of a split layer, a view
            layer.inplace = False  # type: ignore[assignment]
    torch.backends.mha.set_fastpath_enabled(False)  # of a TransformerEncoderLayer, which would read its layers' weights
    return len(styles)


def plan_styles(module: nn.Module, devices: int, include_single: bool) -> dict[str, ParallelStyle]:
    """Return how each layer is split, by its name. Layers that are not of the class Linear itself, or whose weights are
    used elsewhere too, stay complete, since their weights may be read without a call of the layer."""
    uses = Counter(parameter for _, parameter in module.named_parameters(remove_duplicate=False))
    layers = {
        name: layer
        for name, layer in module.named_modules()
        if type(layer) is nn.Linear
        and {name for name, _ in layer.named_parameters()} | {"bias"} == {"weight", "bias"}
        and all(uses[parameter] == 1 for parameter in layer.parameters())
    }
    styles: dict[str, ParallelStyle] = {}
    if include_single:
        gathered = {name for name, layer in layers.items() if can_share(layer.out_features, devices)}
        styles = {name: ColwiseParallel(output_layouts=Replicate()) for name in gathered}
    for first, second in _find_pairs(module, layers):
        if layers[first].out_features % devices == 0:
            styles |= {first: ColwiseParallel(), second: RowwiseParallel()}
    return styles | _read_plan(module, layers, devices)


def _find_pairs(module: nn.Module, layers: Mapping[str, nn.Linear]) -> Iterator[tuple[str, str]]:
    """Yield the names of two layers between which there are only elementwise operations."""
    for name, parent in module.named_modules():
        prefix = f"{name}." if name else ""
        if isinstance(parent, (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)):
            activation, pair = parent.activation, (f"{prefix}linear1", f"{prefix}linear2")
            if activation in (functional.relu, functional.gelu) or isinstance(activation, ELEMENTWISE):
                yield from [pair] if layers.keys() >= set(pair) else []
        elif type(parent) is nn.Sequential:
            first: str | None = None
            for child_name, child in parent.named_children():
                if isinstance(child, ELEMENTWISE):
                    continue
                layer = f"{prefix}{child_name}" if f"{prefix}{child_name}" in layers else None
                if first is not None and layer is not None:
                    yield first, layer
                    layer = None
                first = layer


def _read_plan(module: nn.Module, layers: Mapping[str, nn.Linear], devices: int) -> dict[str, ParallelStyle]:
    """Return the styles of the plan that the module, or a module within it, declares. A plan is followed as a whole:
    there are none where it has further styles, or where the devices cannot share each layer or the heads equally."""
    for name, owner in module.named_modules():
        plan = next((plan for key in PLAN_NAMES if isinstance(plan := getattr(owner, key, None), Mapping) and plan), {})
        if not plan:
            continue
        counts = [getattr(getattr(owner, "config", None), key, None) or 0 for key in HEAD_COUNTS]
        if any(count % devices for count in counts):
            return {}
        prefix, styles = f"{name}." if name else "", {}
        for pattern, style in plan.items():
            matches = re.compile(re.escape(prefix + pattern).replace(r"\*", r"\d+")).fullmatch
            for layer in filter(matches, layers):
                if style == "colwise" and layers[layer].out_features % devices == 0:
                    styles[layer] = ColwiseParallel()
                elif style == "rowwise" and layers[layer].in_features % devices == 0:
                    styles[layer] = RowwiseParallel()
                elif style not in GATHERED_NAMES:
                    return {}
            if style not in ("colwise", "rowwise", *GATHERED_NAMES, *EMBEDDING_NAMES):
                return {}
        return styles
    return {}
