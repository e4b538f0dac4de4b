"""Which convolution or linear layer feeds a batch normalisation layer: read off a forward pass, or guessed."""

import copy
from itertools import pairwise

import torch
from torch import nn

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
FEEDERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)
# What autograd calls products, and where their weight stands; and steps that move numbers without changing them.
_PRODUCTS = {"Convolution": 1, "Addmm": 2, "Mm": 1}
_MOVES = ("Clone", "View", "UnsafeView", "Permute", "Transpose", "Reshape", "ToCopy", "Unsqueeze", "Squeeze")


def batch_norms(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """(name, layer) of every BatchNorm1d, 2d, 3d and SyncBatchNorm, in the order of `model.named_modules()`."""
    return [(name, layer) for name, layer in model.named_modules() if isinstance(layer, BATCH_NORMS)]


def traced(model: nn.Module, x: torch.Tensor) -> dict[str, tuple[str, nn.Module]]:
    """BN layer -> (name, layer) of what feeds it, read off the graph that autograd draws of inputs x."""
    with torch.inference_mode(False):
        return _traced(copy.deepcopy(model).eval().requires_grad_(True), x.clone() if x.is_inference() else x)


def _traced(model: nn.Module, x: torch.Tensor) -> dict[str, tuple[str, nn.Module]]:
    owners = {layer.weight: (name, layer) for name, layer in model.named_modules() if isinstance(layer, FEEDERS)}
    found = {}
    for name, layer in batch_norms(model):
        layer.register_forward_pre_hook(
            lambda _, inputs, name=name: found.update({name: owners.get(_weight_behind(inputs[0].grad_fn))})
        )
    with torch.enable_grad():
        model(x)
    return {name: feeder for name, feeder in found.items() if feeder}


def _weight_behind(node) -> torch.Tensor | None:
    """The weight of the convolution or linear layer whose output this node of autograd's graph is, if it is one's."""
    while node is not None and node.name().startswith(_MOVES):
        node = node.next_functions[0][0]
    place = next((at for kind, at in _PRODUCTS.items() if node is not None and node.name().startswith(kind)), None)
    if place is None:
        return None
    weight = node.next_functions[place][0]
    while weight is not None and not hasattr(weight, "variable"):  # a linear layer takes its weight's transpose
        weight = weight.next_functions[0][0]
    return None if weight is None else weight.variable


def registered_before(model: nn.Module) -> dict[str, tuple[str, nn.Module]]:
    """BN layer -> (name, layer) of the convolution or linear layer before it in the same parent, sizes permitting."""
    found = {}
    for parent_name, parent in model.named_modules():
        children = [(f"{parent_name}.{name}".lstrip("."), layer) for name, layer in parent.named_children()]
        for (before, feeder), (name, layer) in pairwise(children):
            fits = isinstance(feeder, FEEDERS) and isinstance(layer, BATCH_NORMS)
            if fits and feeder.weight.shape[0] == layer.num_features:
                found[name] = (before, feeder)
    return found
