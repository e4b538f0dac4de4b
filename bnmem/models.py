"""Nets, and one switch that replaces the batch normalisation of any of them by something else.

Every net is born with BatchNorm2d and then switched, so all arms of a comparison share the weights they have in common.
"""

import copy
from math import gcd

import torch
from torch import nn

from bnmem import seeds
from bnmem.errors import InputError

NORMS = ("batch", "none", "affine", "group")
INITS = ("torch", "he")


class LeNet(nn.Module):
    """LeNet-5's sizes with ReLU and max-pooling; batch normalisation after its two convolutions only.

    Input [n, channels, 28, 28] or [n, channels, 32, 32]; output logits [n, classes].
    """

    def __init__(self, channels: int, size: int, classes: int):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 6, 5, padding=(32 - size) // 2, bias=False)
        self.norm1 = nn.BatchNorm2d(6)
        self.conv2 = nn.Conv2d(6, 16, 5, bias=False)
        self.norm2 = nn.BatchNorm2d(16)
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Sequential(
            nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, classes)
        )

    def forward(self, x):
        x = self.pool(torch.relu(self.norm1(self.conv1(x))))
        x = self.pool(torch.relu(self.norm2(self.conv2(x))))
        return self.head(x)


class Block(nn.Module):
    """Two 3x3 convolutions around a skip connection; a 1x1 convolution on the skip where the shape changes."""

    def __init__(self, inner: int, outer: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outer)
        self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outer)
        self.skip = nn.Identity()
        if stride > 1 or inner != outer:
            self.skip = nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))

    def forward(self, x):
        inner = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(inner)) + self.skip(x))


class ResNet(nn.Module):
    """The CIFAR ResNet of depth 6n + 2: three stages of n blocks with 16, 32 and 64 channels.

    Input [n, channels, H, W]; output logits [n, classes].
    """

    def __init__(self, channels: int, classes: int, n: int):
        super().__init__()
        self.conv = nn.Conv2d(channels, 16, 3, 1, 1, bias=False)
        self.norm = nn.BatchNorm2d(16)
        stages, inner = [], 16
        for outer, stride in ((16, 1), (32, 2), (64, 2)):
            for i in range(n):
                stages.append(Block(inner, outer, stride if i == 0 else 1))
                inner = outer
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(64, classes)

    def forward(self, x):
        x = self.stages(torch.relu(self.norm(self.conv(x))))
        return self.head(x.mean((2, 3)))


ARCHS = {
    "lenet": lambda channels, size, classes: LeNet(channels, size, classes),
    "resnet8": lambda channels, size, classes: ResNet(channels, classes, 1),
}


class Affine2d(nn.Module):
    """BatchNorm2d without the statistics: gamma x + beta for each channel. x [n, C, H, W]."""

    def __init__(self, channels: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x):
        return x * self.weight[:, None, None] + self.bias[:, None, None]


def make(arch: str, norm: str, shape: tuple[int, ...], classes: int, seed: int, init: str = "torch") -> nn.Module:
    """A new net. Arms that differ in `norm` only start from the same convolution and linear weights.

    shape is an image's, (H, W) or (H, W, 3). init "torch" is each layer's default, "he" draws convolution and linear
    weights from N(0, 2 / fan_in) and sets their biases to zero. The global random state is left as found.
    Raises InputError for an unknown arch, norm or init, or an image size that LeNet does not take.
    """
    if arch not in ARCHS:
        raise InputError(f"unknown architecture {arch!r}; choose one of {', '.join(ARCHS)}")
    if init not in INITS:
        raise InputError(f"unknown initialisation {init!r}; choose one of {', '.join(INITS)}")
    if shape[0] not in (28, 32):
        raise InputError(f"images must be 28x28 or 32x32, not {shape}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seeds.torch_seed(seed, "init"))
        model = ARCHS[arch](shape[2] if len(shape) == 3 else 1, shape[0], classes)
        if init == "he":
            _he(model)
    return with_norm(model, norm, seed)


def with_norm(model: nn.Module, norm: str, seed: int = 0) -> nn.Module:
    """A copy of any model whose BatchNorm2d layers are replaced.

    batch: unchanged. none: removed, and convolutions without bias get one (torch's default draw, from a stream of its
    own). affine: gamma and beta stay, the statistics go. group: GroupNorm with gcd(C, 8) groups.
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
    if norm == "none":
        return nn.Identity()
    channels = layer.num_features
    new = nn.GroupNorm(gcd(channels, 8), channels, eps=layer.eps) if norm == "group" else Affine2d(channels)
    if layer.affine:
        new.weight.data, new.bias.data = layer.weight.data.clone(), layer.bias.data.clone()
    return new


def _he(model: nn.Module) -> None:
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
