"""gamma/sigma of batch normalisation layers: how strongly each channel's pre-activation is scaled."""

import copy

import torch
from torch import nn


def gamma_over_sigma(model: nn.Module, x: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
    """|gamma| / sigma of every BatchNorm2d layer: name -> float64 [channels], sigma = sqrt(Var + eps).

    Var is the layer's running variance or, given images x [n, C, H, W], the variance over them as one batch (what an
    untrained net needs: its running variance is 1, whatever its activations). The model is left as found. Layers in the
    order of `model.named_modules()`; empty for a model without such layers. Claim C8; statement 6 says why the number
    depends on the scale of the weights before the layer.
    """
    if x is not None:
        model = _measured(copy.deepcopy(model), x)
    ratios = {}
    for name, layer in model.named_modules():
        if isinstance(layer, nn.BatchNorm2d):
            sigma = (layer.running_var.double() + layer.eps).sqrt()
            ratios[name] = (layer.weight.detach().double().abs() / sigma).cpu()
    return ratios


@torch.no_grad()
def _measured(model: nn.Module, x: torch.Tensor) -> nn.Module:
    """The model with the statistics of x in its running statistics."""
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.momentum = 1.0
    model.train()(x)
    return model
