"""Per-sample gradients of the layers that multiply by a matrix, Linear and Conv2d, and what all layers' rules share."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.grad import conv2d_weight

# Numbers in one working block: what the caches hold, yet many enough that calls cost little; a GPU wants few steps.
BLOCK = 2**20
GPU_BLOCK = 2**26


class Rule:
    """One call of `layer`; `bn` names the definition (see `bnmem.grads`). Parameters are called weight and bias."""

    def __init__(self, layer: nn.Module, bn: str):
        self.layer, self.bn = layer, bn

    def run(self, x, weight, bias):
        """The layer's output for input x [n, ...] with these parameters (or None), free of side effects."""
        raise NotImplementedError

    def grads(self, x, g, names):
        """{name: per-sample gradients [n, *shape]} of the parameters in `names`; x and g input and output gradient."""
        raise NotImplementedError

    def size(self, x, g):
        """Numbers that `grads` needs for one sample in passing."""
        return x[0].numel() + g[0].numel()

    def norms(self, x, g, names):
        """{name: l2 norms [n]} of what `grads` gives."""
        return self.blocked(lambda a, b: {k: norm(v) for k, v in self.grads(a, b, names).items()}, x, g)

    def blocked(self, function, x, g, size=None, budget=BLOCK):
        """function(x, g) -> {name: [n]} over blocks of samples that fit the cache, joined."""
        budget = budget if x.device.type == "cpu" else GPU_BLOCK
        pieces = -(-len(x) * (size or self.size(x, g)) // budget)
        step = max(1, -(-len(x) // pieces))
        parts = [function(a, b) for a, b in zip(x.split(step), g.split(step), strict=True)]
        return parts[0] if len(parts) == 1 else {k: torch.cat([part[k] for part in parts]) for k in parts[0]}


class Linear(Rule):
    """y = x W^T + b over the last axis; axes between the first and the last are positions."""

    def run(self, x, weight, bias):
        return F.linear(x, weight, bias)

    def size(self, x, g):
        return x.shape[-1] * g.shape[-1]

    def grads(self, x, g, names):
        x, g = x.reshape(len(x), -1, x.shape[-1]), g.reshape(len(g), -1, g.shape[-1])
        made = {"weight": lambda: g.transpose(1, 2) @ x, "bias": lambda: g.sum(1)}
        return {name: made[name]() for name in names}

    def norms(self, x, g, names):
        x, g = x.reshape(len(x), -1, x.shape[-1]), g.reshape(len(g), -1, g.shape[-1])
        positions, inner, outer = x.shape[1], x.shape[2], g.shape[2]
        if positions == 1:
            of_g = norm(g)
            return {name: of_g * norm(x) if name == "weight" else of_g for name in names}
        if positions * (inner + outer) >= inner * outer:
            return super().norms(x, g, names)
        out = self.blocked(lambda a, b: {"weight": self.gram(a, b)}, x, g, positions**2)
        return {name: out["weight"] if name == "weight" else norm(g.sum(1)) for name in names}

    def gram(self, x, g):
        a, b = x @ x.transpose(1, 2), g @ g.transpose(1, 2)
        return norm_by_gram(len(x), a, b, lambda rows: g[rows].transpose(1, 2) @ x[rows])


class Conv2d(Rule):
    """Any stride, padding, dilation, groups and padding mode.

    Four techniques, and per layer the one that a small cost model calls cheapest:

    patches: every sample's patches as a matrix times its output gradient. For 1x1.
    shifted: the same for each kernel row apart, on the input copied once for each kernel column: less is copied. Good
             for few input channels.
    grouped: one weight gradient of a convolution with a group for each sample (Rochette et al., arXiv:1912.06015).
             Fast in float32 on a CPU (oneDNN), and used there only.
    gram:    <sum over kernel offsets of shifted A, G>, with A and G the inner products of any two positions' inputs
             and output gradients (Goodfellow, arXiv:1510.01799; for convolutions Bu et al., arXiv:2205.10683). Nothing
             of the weight's size is made: for many channels on few positions.
    """

    def run(self, x, weight, bias):
        return self.layer._conv_forward(x, weight, bias)

    def grads(self, x, g, names):
        made = {
            "weight": lambda: self.blocked(lambda a, b: {"weight": self.patches(a, b)}, x, g)["weight"],
            "bias": lambda: sums(g),
        }
        return {name: made[name]().view(len(x), *getattr(self.layer, name).shape) for name in names}

    def size(self, x, g):
        return self.layer.weight[0].numel() * g[0, 0].numel() * self.layer.groups + self.layer.weight.numel()

    def norms(self, x, g, names):
        out = {}
        if "weight" in names:
            technique, size, budget = self.plan(x, g)
            out = self.blocked(lambda a, b: {"weight": technique(a, b)}, x, g, size, budget)
        if "bias" in names:
            out["bias"] = norm(sums(g))
        return out

    def plan(self, x, g):
        """(technique, numbers one sample needs in passing, block budget). Costs in microseconds of one AVX-512 core;
        only their order matters."""
        layer = self.layer
        (outer, inner, kh, kw), groups = layer.weight.shape, layer.groups
        pads = layer._reversed_padding_repeated_twice
        (ho, wo), h, w = g.shape[2:], x.shape[2] + sum(pads[2:]), x.shape[3] + sum(pads[:2])
        positions, pixels, weights = ho * wo, h * w, layer.weight.numel()
        flops = 2.0 * positions * weights
        copied = inner * groups * kh * kw * positions
        data = x[0].numel() + g[0].numel() + weights
        costs = {
            "patches": copied / 8e3 + flops / 60e3 + weights / 2.5e3,
            "gram": (pixels**2 * x.shape[1] + positions**2 * outer) / 40e3
            + groups * (kh * ho * w * ho * w + kw * positions**2) / 1.5e3,
        }
        if x.device.type == "cpu" and x.dtype == torch.float32:
            costs["grouped"] = flops / 200e3 * (-(-inner // 16) * 16 / inner) + data / 2.5e3
        if kh > 1 and layer.stride[0] == 1 and groups == 1:
            costs["shifted"] = copied / kh / 4e3 + flops / 75e3 + weights / 2.5e3
        sizes = {
            "patches": (copied + weights, BLOCK),
            "shifted": (inner * kw * h * wo + weights, BLOCK),
            "gram": (groups * (pixels**2 + (ho * w) ** 2 + 2 * positions**2), BLOCK // 4),
            "grouped": (data, BLOCK),
        }
        best = min(costs, key=costs.get)
        make = getattr(self, best)
        return (make if best == "gram" else lambda a, b: norm(make(a, b))), *sizes[best]

    def padded(self, x):
        pads, mode = self.layer._reversed_padding_repeated_twice, self.layer.padding_mode
        return F.pad(x, pads, mode="constant" if mode == "zeros" else mode) if any(pads) else x

    def patches(self, x, g):
        """Per-sample weight gradients [n, outer, inner * kh * kw] from explicit patches."""
        n, (sh, sw), (dh, dw), groups = len(x), self.layer.stride, self.layer.dilation, self.layer.groups
        outer, inner, kh, kw = self.layer.weight.shape
        x = self.padded(x)
        bn, bc, bh, bw = x.stride()
        shape = (n, groups, inner, kh, kw, *g.shape[2:])
        view = x.as_strided(shape, (bn, bc * inner, bc, bh * dh, bw * dw, bh * sh, bw * sw), x.storage_offset())
        columns = view.reshape(n * groups, inner * kh * kw, -1)
        product = columns @ _positions(g, groups).contiguous().transpose(1, 2)
        return product.transpose(1, 2).reshape(n, outer, -1)

    def shifted(self, x, g):
        """Per-sample weight gradients [n, kh, inner * kw, outer], for kernels that move by single rows."""
        n, sw, (dh, dw) = len(x), self.layer.stride[1], self.layer.dilation
        _, inner, kh, kw = self.layer.weight.shape
        (ho, wo), x = g.shape[2:], self.padded(x)
        bn, bc, bh, bw = x.stride()
        view = x.as_strided((n, inner, kw, x.shape[2], wo), (bn, bc, bw * dw, bh, bw * sw), x.storage_offset())
        columns, g = view.reshape(n, inner * kw, -1), g.reshape(n, g.shape[1], -1).transpose(1, 2)
        rows = (columns[:, :, k * dh * wo :][:, :, : ho * wo] for k in range(kh))
        return torch.stack([row @ g for row in rows], 1)

    def grouped(self, x, g):
        """Per-sample weight gradients [n * outer, inner, kh, kw] -> [n, ...] from one grouped weight gradient."""
        n, layer, padding = len(x), self.layer, self.layer.padding
        if isinstance(padding, str) or layer.padding_mode != "zeros":
            x, padding = self.padded(x), (0, 0)
        x, g = x.reshape(1, -1, *x.shape[2:]), g.reshape(1, -1, *g.shape[2:])
        shape = (n * layer.weight.shape[0], *layer.weight.shape[1:])
        grad = conv2d_weight(x, shape, g, layer.stride, padding, layer.dilation, n * layer.groups)
        return grad.view(n, -1)

    def gram(self, x, g):
        """Norms [n] of the weight gradients from inner products of positions; offsets are summed rows first."""
        (sh, sw), (dh, dw), groups = self.layer.stride, self.layer.dilation, self.layer.groups
        (kh, kw), (ho, wo), padded = self.layer.weight.shape[2:], g.shape[2:], self.padded(x)
        h, w = padded.shape[2:]
        a, b = _positions(padded, groups), _positions(g, groups)
        n, p, q = len(a), h * w, ho * w
        a = (a.transpose(1, 2) @ a).contiguous()
        a = a.as_strided((n, kh, ho, w, ho, w), (p * p, dh * w * (p + 1), sh * w * p, p, sh * w, 1)).sum(1)
        a = a.as_strided((n, kw, ho, wo, ho, wo), (q * q, dw * (q + 1), w * q, sw * q, w, sw)).sum(1)
        return norm_by_gram(len(x), a, b.transpose(1, 2) @ b, lambda rows: self.patches(x[rows], g[rows]))


def norm(t):
    """[n, ...] -> [n]: every sample's l2 norm."""
    return torch.linalg.vector_norm(t.flatten(1), dim=1)


def norm_by_gram(n, a, b, direct):
    """sqrt <a, b> of two Gram matrices for each of n samples: the norm [n] of what `direct(rows)` would form.

    Where nearly all of it cancels, rounding would show: there the norm is taken the direct way.
    """
    a, b = a.reshape(n, -1), b.reshape(n, -1)
    out = torch.linalg.vecdot(a, b)
    rows = (out < 1e-3 * norm(a) * norm(b)).nonzero()[:, 0]
    out = out.clamp(min=0).sqrt()
    if len(rows):
        out[rows] = norm(direct(rows))
    return out


def sums(t):
    """[n, C, ...] -> [n, C]: sums over positions."""
    return t.sum(tuple(range(2, t.dim()))) if t.dim() > 2 else t


def _positions(t, groups):
    """[n, C, H, W] -> [n * groups, C / groups, H * W], without a copy in either memory format if groups is 1."""
    if groups == 1 and t.is_contiguous(memory_format=torch.channels_last):
        return t.permute(0, 2, 3, 1).flatten(1, 2).transpose(1, 2)
    return t.reshape(len(t) * groups, t.shape[1] // groups, -1)
