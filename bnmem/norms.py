"""One switch that replaces the batch normalisation of any net by something else."""

import copy
from math import gcd

import torch
from torch import nn

from bnmem import seeds
from bnmem.errors import InputError

NORMS = ("batch", "none", "affine", "group", "layer", "instance", "frozen")


class Affine2d(nn.Module):
    """BatchNorm2d without the statistics: gamma x + beta for each channel. x [n, C, H, W]."""

    def __init__(self, channels: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x):
        return x * self.weight[:, None, None] + self.bias[:, None, None]


class FrozenNorm2d(nn.BatchNorm2d):
    """Batch normalisation with mean and sigma as constants, measured once by `measure_frozen`; gamma and beta train."""

    def train(self, mode: bool = True):
        return super().train(False)


@torch.no_grad()
def measure_frozen(model: nn.Module, x: torch.Tensor) -> None:
    """Set the constants of every FrozenNorm2d to the statistics of one batch x [n, C, H, W], layer after layer.

    Nothing happens to a net without such layers.
    """
    frozen = [layer for layer in model.modules() if isinstance(layer, FrozenNorm2d)]
    for layer in frozen:
        layer.training, layer.momentum = True, 1.0
    if frozen:
        model(x)
    for layer in frozen:
        layer.training = False


def with_norm(model: nn.Module, norm: str, seed: int = 0) -> nn.Module:
    """A copy of any model whose BatchNorm2d layers are replaced.

    batch: unchanged. none: removed, and convolutions without bias get one (torch's default draw, from a stream of its
    own). affine: gamma and beta stay, the statistics go. group: GroupNorm with gcd(C, 8) groups. layer: one group.
    instance: one group a channel. frozen: mean and sigma are constants, to be set by `measure_frozen` before training.
    Raises InputError for an unknown norm, or a model that has no BatchNorm2d.
    """
    if norm not in NORMS:
        raise InputError(f"unknown norm {norm!r}; choose one of {', '.join(NORMS)}")
    model = copy.deepcopy(model)
    layers = [name for name, layer in model.named_modules() if isinstance(layer, nn.BatchNorm2d)]
    if not layers:
        raise InputError(f"{type(model).__name__} has no BatchNorm2d layer to replace; pass the model born with them")
    if norm == "batch":
        return model
    for name in layers:
        model.set_submodule(name, _replacement(model.get_submodule(name), norm))
    if norm == "none":
        generator = torch.Generator().manual_seed(seeds.torch_seed(seed, "bias"))
        for conv in model.modules():
            if isinstance(conv, nn.Conv2d) and conv.bias is None:
                bound = conv.weight[0].numel() ** -0.5
                bias = torch.empty(conv.out_channels).uniform_(-bound, bound, generator=generator)
                conv.bias = nn.Parameter(bias.to(conv.weight))
    return model


def _replacement(layer: nn.BatchNorm2d, norm: str) -> nn.Module:
    channels, eps = layer.num_features, layer.eps
    new = {
        "none": nn.Identity,
        "affine": lambda: Affine2d(channels),
        "group": lambda: nn.GroupNorm(gcd(channels, 8), channels, eps),
        "layer": lambda: nn.GroupNorm(1, channels, eps),
        "instance": lambda: nn.InstanceNorm2d(channels, eps, affine=True),
        "frozen": lambda: FrozenNorm2d(channels, eps),
    }[norm]()
    if layer.affine and norm != "none":
        new.weight.data, new.bias.data = layer.weight.data.clone(), layer.bias.data.clone()
    return new
