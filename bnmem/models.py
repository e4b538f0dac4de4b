"""Nets. Each is born with BatchNorm2d and then switched, so all arms of a comparison share what they can share."""

import torch
from torch import nn

from bnmem import seeds
from bnmem.errors import InputError
from bnmem.norms import with_norm

INITS = ("torch", "he")


def planar(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """layer(x) for x [n, C, H, W] with each channel's pixels side by side in memory, then channels last again.

    On a CPU, torch normalises a few channels several times faster so, forward and (hence the hook) backward. The hook
    sits on a view, so that hooks on the layer's own output see the gradient in that order too.
    """
    out = layer(x.contiguous())
    out = out.view_as(out)
    if out.requires_grad:
        out.register_hook(torch.Tensor.contiguous)
    return out.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)


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
        # relu after pooling gives the same numbers as before it, on a quarter of the pixels
        x = torch.relu(self.pool(planar(self.norm1, self.conv1(x))))
        x = torch.relu(self.pool(self.norm2(self.conv2(x))))
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


class Dense(nn.Module):
    """A DenseNet-BC layer: a 1x1 convolution to 4 x growth channels and a 3x3 one to `growth`, joined to the input."""

    def __init__(self, inner: int, growth: int):
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inner)
        self.conv1 = nn.Conv2d(inner, 4 * growth, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(4 * growth)
        self.conv2 = nn.Conv2d(4 * growth, growth, 3, 1, 1, bias=False)

    def forward(self, x):
        inner = self.conv1(torch.relu(self.norm1(x)))
        return torch.cat([x, self.conv2(torch.relu(self.norm2(inner)))], 1)


class DenseNet(nn.Module):
    """A thin DenseNet-BC: three blocks of two layers, growth 8, half of the channels kept between blocks.

    Input [n, channels, H, W]; output logits [n, classes].
    """

    def __init__(self, channels: int, classes: int, layers: int = 2, growth: int = 8):
        super().__init__()
        width = 2 * growth
        parts = [nn.Conv2d(channels, width, 3, 1, 1, bias=False)]
        for block in range(3):
            if block:
                kept = width // 2
                parts += [nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, kept, 1, bias=False), nn.AvgPool2d(2)]
                width = kept
            for _ in range(layers):
                parts.append(Dense(width, growth))
                width += growth
        self.features = nn.Sequential(*parts, nn.BatchNorm2d(width), nn.ReLU())
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        return self.head(self.features(x).mean((2, 3)))


def _resnet18(channels: int, size: int, classes: int) -> nn.Module:
    """torchvision's, with the stem for small images: a 3x3 convolution of stride 1 and no pooling."""
    from torchvision.models import resnet18

    net = resnet18(num_classes=classes)
    net.conv1, net.maxpool = nn.Conv2d(channels, 64, 3, 1, 1, bias=False), nn.Identity()
    return net


def _densenet121(channels: int, size: int, classes: int) -> nn.Module:
    """torchvision's, with the stem for small images."""
    from torchvision.models import densenet121

    net = densenet121(num_classes=classes)
    net.features.conv0, net.features.pool0 = nn.Conv2d(channels, 64, 3, 1, 1, bias=False), nn.Identity()
    return net


# name -> (channels, size of a side, classes) -> a net with BatchNorm2d
ARCHS = {
    "lenet": LeNet,
    "resnet8": lambda channels, size, classes: ResNet(channels, classes, 1),
    "resnet20": lambda channels, size, classes: ResNet(channels, classes, 3),
    "densenet": lambda channels, size, classes: DenseNet(channels, classes),
    "resnet18": _resnet18,
    "densenet121": _densenet121,
}


def make(
    arch: str, norm: str, shape: tuple[int, ...], classes: int, seed: int, init: str = "torch", dropout: float = 0.0
) -> nn.Module:
    """A new net. Arms that differ in `norm` only start from the same convolution and linear weights.

    shape is an image's, (H, W) or (H, W, 3). init "torch" is each layer's default, "he" draws convolution and linear
    weights from N(0, 2 / fan_in) and sets their biases to zero. dropout: probability with which each input of a linear
    layer is dropped in training. The global random state is left as found.
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
    if dropout:
        for name in [name for name, layer in model.named_modules() if isinstance(layer, nn.Linear)]:
            model.set_submodule(name, nn.Sequential(nn.Dropout(dropout), model.get_submodule(name)))
    return with_norm(model, norm, seed)


def _he(model: nn.Module) -> None:
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
