"""Per-sample gradients of normalisation layers and PReLU, and which rule each layer of a model gets.

A rule is made for one call of one layer. It runs the layer with stand-in parameters, and turns the gradient of the
output into per-sample gradients of the parameters, or straight into their norms where that is cheaper. A rule
exists for a layer only if the layer's forward and train are the known ones: a subclass that overrides them has none.
"""

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import nn

from bnmem.errors import InputError
from bnmem.grads_linear import Conv2d, Linear, Rule, sums
from bnmem.norms import Affine2d, FrozenNorm2d


class Affine(Rule):
    """weight * normalised(x) + bias with one weight for each channel (axis 1)."""

    def normalised(self, x):
        return x

    def run(self, x, weight, bias):
        return x * weight[:, None, None] + bias[:, None, None]

    def grads(self, x, g, names):
        made = {"weight": lambda: sums(self.normalised(x) * g), "bias": lambda: sums(g)}
        return {name: made[name]() for name in names}


class _Constant(torch.autograd.Function):
    """run(x), an affine map of each channel by `scale`: the backward pass is that one product."""

    @staticmethod
    def forward(ctx, x, scale, run):
        ctx.scale = scale
        return run(x)

    @staticmethod
    def backward(ctx, g):
        return g * ctx.scale, None, None


class BatchNorm(Affine):
    """Statistics by definition: running (eval), this batch's as constants (frozen), this batch's (param, loss)."""

    def run(self, x, weight, bias):
        layer, mean, variance = self.layer, self.layer.running_mean, self.layer.running_var
        if self.bn in ("loss", "param"):
            out, self.mean, self.inverse = torch.native_batch_norm(x, weight, bias, None, None, True, 0.0, layer.eps)
            return out
        if self.bn == "frozen":
            with torch.no_grad():
                out, self.mean, self.inverse = torch.native_batch_norm(
                    x, weight, bias, None, None, True, 0.0, layer.eps
                )
            return _Constant.apply(x, self.scale(x, weight), lambda x: out)
        self.mean, self.inverse = mean, (variance + layer.eps).rsqrt()

        def run(x):
            return F.batch_norm(x, mean, variance, weight, bias, False, 0.0, layer.eps)

        if any(p is not None and p.requires_grad for p in (weight, bias)):
            return run(x)
        return _Constant.apply(x, self.scale(x, weight), run)

    def scale(self, x, weight):
        return (self.inverse if weight is None else self.inverse * weight).view(self.shape(x))

    def shape(self, x):
        return (-1,) + (1,) * (x.dim() - 2)

    def normalised(self, x):
        return (x - self.mean.view(self.shape(x))) * self.inverse.view(self.shape(x))

    def grads(self, x, g, names):
        if not (x.is_contiguous() and g.is_contiguous()):
            return super().grads(x, g, names)
        # One pass for both sums: each sample's channels as the channels of one sample.
        n, c = x.shape[:2]
        mean, inverse = self.mean.repeat(n), self.inverse.repeat(n)
        x, g, mask = x.view(1, n * c, -1), g.view(1, n * c, -1), (False, "weight" in names, "bias" in names)
        sums = torch.ops.aten.native_batch_norm_backward(g, x, None, None, None, mean, inverse, True, 0.0, mask)[1:]
        return {name: s.view(n, c) for name, s in zip(("weight", "bias"), sums, strict=True) if name in names}


class FrozenNorm(BatchNorm):
    """Its own constants in every definition."""

    def __init__(self, layer, bn):
        super().__init__(layer, "eval")


class GroupNorm(Affine):
    def run(self, x, weight, bias):
        return F.group_norm(x, self.layer.num_groups, weight, bias, self.layer.eps)

    def normalised(self, x):
        return self.run(x, None, None)


class InstanceNorm(Affine):
    """Running statistics in the definition eval if the layer tracks them, the instance's own otherwise."""

    def run(self, x, weight, bias):
        layer = self.layer
        if self.bn == "eval" and layer.running_mean is not None:
            return F.instance_norm(x, layer.running_mean, layer.running_var, weight, bias, False, 0.0, layer.eps)
        return F.instance_norm(x, None, None, weight, bias, True, 0.0, layer.eps)

    def normalised(self, x):
        return self.run(x, None, None)


class LayerNorm(Rule):
    def run(self, x, weight, bias):
        return F.layer_norm(x, self.layer.normalized_shape, weight, bias, self.layer.eps)

    def grads(self, x, g, names):
        shape = (len(x), -1, *self.layer.normalized_shape)
        made = {"weight": lambda: (self.run(x, None, None) * g).reshape(shape).sum(1)}
        made["bias"] = lambda: g.reshape(shape).sum(1)
        return {name: made[name]() for name in names}


class PReLU(Rule):
    def run(self, x, weight, bias):
        return F.prelu(x, weight)

    def grads(self, x, g, names):
        made = sums(x.clamp(max=0) * g)
        return {"weight": made if self.layer.num_parameters > 1 else made.sum(1, keepdim=True)}


RULES = {
    nn.Conv2d: Conv2d,
    nn.Linear: Linear,
    FrozenNorm2d: FrozenNorm,
    nn.modules.batchnorm._BatchNorm: BatchNorm,
    nn.GroupNorm: GroupNorm,
    nn.LayerNorm: LayerNorm,
    nn.modules.instancenorm._InstanceNorm: InstanceNorm,
    nn.PReLU: PReLU,
    Affine2d: Affine,
}


@lru_cache
def rule_of_type(kind: type) -> type[Rule] | None:
    """The rule for layers of this class, or None if there is none or the class does what the rule does not know."""
    for known, made in RULES.items():
        if issubclass(kind, known):
            same = all(getattr(kind, f, None) is getattr(known, f, None) for f in ("forward", "_conv_forward", "train"))
            return made if same else None
    return None


def rules_of(layers, x, bn):
    """{trainable parameter: name of the first layer that has it}, [(name, layer, rule)] of all layers with a rule.

    layers: {name: module} of a whole model. Raises InputError for a layer with trainable parameters and no rule, batch
    normalisation that has no rule or no running statistics to use, and devices or dtypes that differ from x's.
    """
    owners, rules, dtypes = {}, [], set()
    for name, layer in layers.items():
        made = None if "forward" in vars(layer) else rule_of_type(type(layer))
        batch_norm = isinstance(layer, nn.modules.batchnorm._BatchNorm)
        own = {which: p for which, p in layer._parameters.items() if p is not None}
        trained = {which: p for which, p in own.items() if p.requires_grad}
        lazy = any(map(nn.parameter.is_lazy, own.values()))
        if lazy or (made is None and (trained or batch_norm)) or not trained.keys() <= {"weight", "bias"}:
            raise InputError(
                f"no rule for layer {name!r} ({type(layer).__name__}) with parameters {', '.join(own) or 'none'}; "
                "freeze it with requires_grad_(False) or replace it by a layer of torch.nn that has a rule"
            )
        if bn == "eval" and batch_norm and layer.running_mean is None:
            raise InputError(f"layer {name!r} keeps no running statistics; choose bn='frozen', 'loss' or 'param'")
        for t in (*own.values(), *(b for b in layer._buffers.values() if b is not None)):
            if t.device != x.device:
                raise InputError(f"x is on {x.device} but layer {name!r} on {t.device}; move one with .to()")
        dtypes |= {p.dtype for p in own.values()}
        if made is not None:
            rules.append((name, layer, made))
        for p in trained.values():
            owners.setdefault(p, name)
    if not owners:
        raise InputError("the model has no trainable parameters; set requires_grad_(True) on those to measure")
    if x.dtype not in (torch.float32, torch.float64) or dtypes != {x.dtype}:
        listed = ", ".join(sorted(map(str, dtypes)))
        raise InputError(f"x is {x.dtype}, the model {listed}: both must be float32 or both float64; use .to(dtype)")
    return owners, rules
