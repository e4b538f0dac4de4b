"""Nets that leave no kind of layer out, and per-sample gradients of any net by autograd, done slowly by other means."""

import copy

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torchvision.models import resnet18

from bnmem import grads, models, norms

BN = nn.modules.batchnorm._BatchNorm
IN = nn.modules.instancenorm._InstanceNorm


# Nets that leave no kind of layer or connection out. Each takes [n, 4, 9, 8] and returns [n, 3].


class Strides(nn.Module):
    """Odd strides, paddings, dilations, groups and padding modes, with bias and without, ReLU in place, pooling."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 2), bias=False),
            nn.BatchNorm2d(6),
            nn.ReLU(inplace=True),
            nn.Conv2d(6, 8, 3, padding=2, dilation=(1, 2), groups=2),
            nn.MaxPool2d(2, 1),
            nn.BatchNorm2d(8, affine=False),
            nn.Conv2d(8, 6, (1, 3), padding="same", dilation=2),
            nn.LeakyReLU(0.1, inplace=True),
            nn.Conv2d(6, 6, 3, groups=6, padding=1, padding_mode="reflect", bias=False),
            nn.BatchNorm2d(6, eps=0.01),
            nn.Dropout(0.5),
            nn.PReLU(6),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(24, 3),
        )

    def forward(self, x):
        return self.body(x)


class Norms(nn.Module):
    """Every normalisation, a residual sum in place, a concatenation."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(4, 4, 1)
        self.group, self.layer = nn.GroupNorm(2, 4), nn.LayerNorm([9, 8])
        self.instance, self.tracking = (
            nn.InstanceNorm2d(4, affine=True),
            nn.InstanceNorm2d(4, affine=True, track_running_stats=True),
        )
        self.batch, self.affine, self.last = nn.BatchNorm2d(12), norms.Affine2d(12), nn.LayerNorm(12, bias=False)
        self.act, self.head = nn.PReLU(), nn.Linear(12, 3)

    def forward(self, x):
        x = self.first(x)
        y = self.group(x)
        y += x
        F.relu(y, inplace=True)
        z = self.act(self.layer(y))
        x = self.batch(torch.cat([self.instance(z), self.tracking(y), x], 1))
        x = F.avg_pool2d(self.affine(x).relu(), 3)
        return self.head(self.last(x.flatten(2).transpose(1, 2)).mean(1))


class Shared(nn.Module):
    """A convolution, a norm and a linear layer called twice; one parameter in two layers; one layer never called."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.never = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Linear(2, 2)
        self.up, self.down, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.down.weight = self.up.weight
        self.flat = nn.BatchNorm1d(8)

    def forward(self, x):
        x = self.norm(self.conv(x)).relu()
        x = self.norm(self.conv(x)).relu().mean(1)
        x = self.up(self.up(x).tanh())
        return self.head(self.flat(self.down(x).sum(1)))


def small_image(make):
    """torchvision's net with a 3x3 stem of stride 1 and no max-pooling."""
    net = make(num_classes=3)
    if hasattr(net, "conv1"):
        net.conv1, net.maxpool = nn.Conv2d(4, 64, 3, 1, 1, bias=False), nn.Identity()
    else:
        net.features.conv0, net.features.pool0 = nn.Conv2d(4, 64, 3, 1, 1, bias=False), nn.Identity()
    return net


def lenet(norm="batch"):
    return models.make("lenet", norm, (28, 28), 3, 0)


def resnet8(norm="batch"):
    return models.make("resnet8", norm, (32, 32, 3), 3, 0)


NETS = {
    "strides": Strides,
    "norms": Norms,
    "shared": Shared,
    "lenet": lenet,
    "lenet-none": lambda: lenet("none"),
    "lenet-affine": lambda: lenet("affine"),
    "lenet-frozen": lambda: lenet("frozen"),
    "resnet8": resnet8,
    "resnet8-group": lambda: resnet8("group"),
    "resnet18": lambda: small_image(resnet18),
}


def case(name, n=5, dtype=torch.float64, layout=torch.contiguous_format):
    """A net with statistics and affine parameters away from their defaults, inputs, labels; always the same."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        net = NETS[name]() if name in NETS else name()
        shape = {"lenet": (1, 28, 28), "resnet8": (3, 32, 32)}.get(str(name).split("-")[0], (4, 9, 8))
        x, y = torch.randn(n, *shape), torch.randint(0, 3, (n,))
        for layer in net.modules():
            if isinstance(layer, BN | IN | nn.GroupNorm | nn.LayerNorm) and layer.weight is not None:
                nn.init.uniform_(layer.weight, 0.5, 1.5)
                if layer.bias is not None:
                    nn.init.normal_(layer.bias, 0.0, 0.3)
        norms.measure_frozen(net, torch.randn(16, *shape))
        net.train()(torch.randn(16, *shape) + 0.2)
    return net.to(dtype, memory_format=layout), x.to(dtype, memory_format=layout), y


# The slow ways. All of them return {parameter name: gradients [n, *shape]}.


def switched(net, train):
    """A copy in eval mode whose normalisation layers are in train mode if asked."""
    net = copy.deepcopy(net).eval()
    for layer in net.modules():
        if isinstance(layer, BN | IN):
            layer.train(train)
    return net


def sample_losses(net, x, y):
    return F.cross_entropy(net(x).double(), y, reduction="none")


def derivatives(loss, net, keep=False):
    named = dict(net.named_parameters())
    made = torch.autograd.grad(loss, list(named.values()), retain_graph=keep, allow_unused=True)
    return {k: torch.zeros_like(p) if g is None else g for (k, p), g in zip(named.items(), made, strict=True)}


def stacked(rows):
    rows = list(rows)
    return {k: torch.stack([row[k] for row in rows]) for k in rows[0]}


def one_by_one(net, x, y):
    return stacked(derivatives(sample_losses(net, x[i : i + 1], y[i : i + 1])[0], net) for i in range(len(x)))


class Held(nn.Module):
    """A batch normalisation whose calls use, in turn, the statistics that it saw in its calls on the whole batch."""

    def __init__(self, layer):
        super().__init__()
        self.weight, self.bias, self.eps, self.seen, self.calls = layer.weight, layer.bias, layer.eps, [], 0

    def forward(self, x):
        axes = [a for a in range(x.dim()) if a != 1]
        if self.calls is None:
            self.seen.append((x.mean(axes, keepdim=True).detach(), x.var(axes, unbiased=False, keepdim=True).detach()))
            mean, var = self.seen[-1]
        else:
            mean, var = self.seen[self.calls % len(self.seen)]
            self.calls += 1
        x = (x - mean) / (var + self.eps).sqrt()
        shape = (-1,) + (1,) * (x.dim() - 2)
        return x if self.weight is None else x * self.weight.view(shape) + self.bias.view(shape)


def replaced(net, kinds, make):
    for name, layer in list(net.named_modules()):
        if isinstance(layer, kinds) and not (make is Held and isinstance(layer, norms.FrozenNorm2d)):
            net.set_submodule(name, make(layer))
    return net


def held(net, x):
    net = replaced(switched(net, True), BN, Held)
    holders = [m for m in net.modules() if isinstance(m, Held)]
    for m in holders:
        m.calls = None
    net(x)
    for m in holders:
        m.calls = 0
    return net


class Private(nn.Module):
    """A layer that gives every sample its own copy of the layer's parameters."""

    def __init__(self, layer, copies):
        super().__init__()
        self.layer = [layer]
        self.own = [None if p is None else copies[p] for p in (layer.weight, getattr(layer, "bias", None))]

    def forward(self, x):
        (layer,), (w, b), n = self.layer, self.own, len(x)
        if isinstance(layer, nn.Conv2d):
            if layer.padding_mode != "zeros" or layer.padding == "same":
                mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
                x, padding = F.pad(x, layer._reversed_padding_repeated_twice, mode=mode), 0
            else:
                padding = layer.padding
            out = F.conv2d(
                x.reshape(1, -1, *x.shape[2:]),
                w.flatten(0, 1),
                None if b is None else b.flatten(),
                layer.stride,
                padding,
                layer.dilation,
                layer.groups * n,
            )
            return out.view(n, -1, *out.shape[2:])
        if isinstance(layer, nn.Linear):
            out = torch.einsum("n...i,noi->n...o", x, w)
            return out if b is None else out + b.view(n, *(1,) * (x.dim() - 2), -1)
        if isinstance(layer, nn.PReLU):
            return torch.where(x > 0, x, x * w.view(n, -1, *(1,) * (x.dim() - 2)))
        if isinstance(layer, nn.LayerNorm):
            out = F.layer_norm(x, layer.normalized_shape, eps=layer.eps)
            per = (n, *(1,) * (x.dim() - 1 - len(layer.normalized_shape)), *layer.normalized_shape)
            return out * w.view(per) + (0 if b is None else b.view(per))
        if isinstance(layer, norms.FrozenNorm2d):
            x = F.batch_norm(x, layer.running_mean, layer.running_var, None, None, False, 0.0, layer.eps)
        elif isinstance(layer, BN):
            x = F.batch_norm(x, None, None, None, None, True, 0.0, layer.eps)
        elif isinstance(layer, IN):
            x = F.instance_norm(x, eps=layer.eps)
        elif isinstance(layer, nn.GroupNorm):
            x = F.group_norm(x, layer.num_groups, eps=layer.eps)
        per = (n, -1, *(1,) * (x.dim() - 2))
        return x if w is None else x * w.view(per) + b.view(per)


def privately(net, x, y):
    net = switched(net, True)
    named = dict(net.named_parameters())
    copies = {p: p.detach().expand(len(x), *p.shape).clone().requires_grad_() for p in named.values()}
    kinds = nn.Conv2d | nn.Linear | nn.PReLU | nn.LayerNorm | nn.GroupNorm | BN | IN | norms.Affine2d
    net = replaced(net, kinds, lambda layer: Private(layer, copies))
    made = torch.autograd.grad(sample_losses(net, x, y).sum(), list(copies.values()), allow_unused=True)
    made = [torch.zeros_like(c) if g is None else g for c, g in zip(copies.values(), made, strict=True)]
    return dict(zip(named, made, strict=True))


def slowly(net, x, y, bn):
    if bn == "eval":
        return one_by_one(switched(net, False), x, y)
    if bn == "frozen":
        return one_by_one(held(net, x), x, y)
    if bn == "param":
        return privately(net, x, y)
    net = switched(net, True)
    losses = sample_losses(net, x, y)
    return stacked(derivatives(loss, net, keep=True) for loss in losses)


def by_layer(made):
    layers = {}
    for name, g in made.items():
        layer = name.rpartition(".")[0]
        layers[layer] = layers.get(layer, 0.0) + g.detach().double().flatten(1).square().sum(1).numpy()
    return {layer: np.sqrt(s) for layer, s in layers.items()}


def assert_same(net, x, y, bn, rtol, chunk=None):
    expected = by_layer(slowly(net, x, y, bn))
    got = grads.norms(net, x, y, bn, per_layer=True, chunk=chunk)
    assert got.keys() == expected.keys()
    total = np.sqrt(sum(e**2 for e in expected.values()))
    for layer, norm in got.items():
        assert norm.dtype == np.float64 and norm.shape == (len(x),)
        np.testing.assert_allclose(norm, expected[layer], rtol, rtol * total.max() * 1e-3, err_msg=f"{bn} {layer}")
    np.testing.assert_allclose(grads.norms(net, x, y, bn, chunk=chunk), total, rtol)
