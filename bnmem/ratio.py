"""gamma/sigma of batch normalisation layers, for anyone's model: measure it, and limit it while training."""

import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from bnmem.errors import InputError

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
FEEDERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)
THROUGH = ("gamma", "sigma", "both")
# What autograd calls steps that move numbers without changing them: a layer's output is still what feeds the next one.
_MOVES = ("Clone", "View", "UnsafeView", "Permute", "Transpose", "Reshape", "ToCopy", "Unsqueeze", "Squeeze")


@dataclass(frozen=True)
class LayerRatio:
    """One batch normalisation layer. gamma and sigma float64 [channels]; gamma is 1 where the layer has none, sigma =
    sqrt(Var + eps) is NaN where nothing is known about it. weight_norm float64 [channels], the l2 norm of the weights
    that make each channel, and fed_by, the name of that convolution or linear layer; both None where there is no one.
    note says what is unusual.
    """

    name: str
    gamma: np.ndarray
    sigma: np.ndarray
    fed_by: str | None = None
    weight_norm: np.ndarray | None = None
    note: str = ""

    @property
    def ratio(self) -> np.ndarray:
        """|gamma| / sigma, float64 [channels]."""
        return np.abs(self.gamma) / self.sigma

    @property
    def scale_free(self) -> np.ndarray | None:
        """|gamma| ||w|| / sigma, float64 [channels]: rescaling the weights before the layer leaves it as it is."""
        return None if self.weight_norm is None else np.abs(self.gamma) * self.weight_norm / self.sigma


def gamma_over_sigma(
    model: nn.Module, batches: torch.Tensor | Iterable[torch.Tensor] | None = None
) -> list[LayerRatio]:
    """|gamma| / sigma of every BatchNorm1d, 2d, 3d and SyncBatchNorm, in the order of `model.named_modules()`.

    batches None: sigma from the running statistics. Else one batch of inputs or several, at least two samples each, on
    the model's device: Var is the mean over batches of each batch's (unbiased) variance, what a training step would
    see, and the layer that feeds each one is read off autograd's graph. Without batches it is guessed: the convolution
    or linear layer registered right before, in the same parent and with as many outputs. Layers other than batch
    normalisation work as in eval mode. The model is left as found; empty for a model without such layers.

    Source: claim C8; statement 6 of the theory chapter says why the ratio depends on the scale of the weights.
    Raises InputError for batches that are none.
    """
    measured = model if batches is None else _measured(model, batches)
    feeders = _registered_before(model) if batches is None else _traced(model, _first(batches))
    return [_layer(name, layer, feeders.get(name)) for name, layer in _layers(measured)]


def rows(found: Iterable[LayerRatio]) -> list[dict[str, str]]:
    """The table that people read: one row a layer, quantiles over its channels, every cell a text."""
    return [_row(layer) for layer in found]


class GammaSigmaPenalty:
    """weight * sum over layers of mean over channels of max(0, |gamma|/sigma - bound)^2: a term to add to any loss.

        with GammaSigmaPenalty(model, bound=0.5, weight=0.1) as penalty:
            for x, y in batches:
                loss = loss_function(model(x), y) + penalty()
                ...

    sigma = sqrt(Var + eps) of the current batch, in training mode. through: "gamma" holds sigma constant in the
    gradient, "sigma" holds gamma, "both" neither. Call it once after every forward pass of `model` itself, under
    gradient accumulation after each small batch. Layers in eval mode (frozen ones) are left out. The hooks it needs are
    gone after `close()`, or the end of the `with` block, also after an exception.

    Source: claim C9, formula "Penalty". Raises InputError for bound <= 0, a negative weight, an unknown `through`, a
    model without (trainable) batch normalisation, a layer used twice in one pass, two passes without a call between
    them, and a call without a pass.
    """

    def __init__(self, model: nn.Module, bound: float, weight: float, through: str = "gamma"):
        if not 0 < bound < float("inf"):
            raise InputError(f"bound must be larger than 0 and finite, not {bound}")
        if not 0 <= weight < float("inf"):
            raise InputError(f"weight must be 0 or larger and finite, not {weight}")
        if through not in THROUGH:
            raise InputError(f"unknown through {through!r}; choose one of {', '.join(THROUGH)}")
        layers = _layers(model)
        if not layers:
            raise InputError(f"{type(model).__name__} has no batch normalisation layer: there is nothing to limit")
        if through == "gamma" and all(layer.weight is None for _, layer in layers):
            raise InputError("no batch normalisation layer has a gamma; choose through='sigma'")
        self.bound, self.weight, self.through = float(bound), float(weight), through
        self._terms: dict[str, torch.Tensor] = {}
        self._inside = self._waiting = False
        self._hooks = [model.register_forward_pre_hook(self._begin), model.register_forward_hook(self._end)]
        self._hooks += [layer.register_forward_pre_hook(self._seen(name)) for name, layer in layers]

    def __call__(self) -> torch.Tensor:
        """The penalty of the last forward pass, a scalar on the model's device."""
        if not self._hooks:
            raise InputError("this penalty is closed; make a new one")
        if not self._terms:
            raise InputError("no forward pass in training mode since the last call; call the model itself, then this")
        total = self.weight * torch.stack(list(self._terms.values())).sum()
        self._terms, self._waiting = {}, False
        return total

    def close(self) -> None:
        """Remove every hook. Closing twice does no harm."""
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._terms = [], {}

    def __enter__(self) -> "GammaSigmaPenalty":
        return self

    def __exit__(self, *exception) -> None:
        self.close()

    def _begin(self, model, inputs):
        if self._waiting:
            raise InputError("two forward passes and no call of the penalty between them; call it after each one")
        self._inside, self._terms = torch.is_grad_enabled(), {}

    def _end(self, model, inputs, output):
        self._inside, self._waiting = False, bool(self._terms)

    def _seen(self, name: str):
        def hook(layer, inputs):
            if not (self._inside and layer.training):  # also out: a checkpointed block that backward computes again
                return
            if name in self._terms:
                raise InputError(f"{name} is used twice in one forward pass: it has no single sigma to limit")
            self._terms[name] = self._term(layer, inputs[0])

        return hook

    def _term(self, layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        x = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        gamma = x.new_ones(x.shape[1]) if layer.weight is None else layer.weight
        with torch.set_grad_enabled(self.through != "gamma"):
            sigma = (_variance(x) + layer.eps).sqrt()
        gamma = gamma.detach() if self.through == "sigma" else gamma
        return (gamma.abs() / sigma - self.bound).clamp(min=0).square().mean()


def _layers(model: nn.Module) -> list[tuple[str, nn.Module]]:
    return [(name, layer) for name, layer in model.named_modules() if isinstance(layer, BATCH_NORMS)]


def _variance(x: torch.Tensor) -> torch.Tensor:
    """Biased variance of each channel of x [n, C, ...]: what training mode divides by."""
    return x.var([d for d in range(x.ndim) if d != 1], correction=0)


def _first(batches) -> torch.Tensor:
    return batches if isinstance(batches, torch.Tensor) else batches[0]


@torch.no_grad()
def _measured(model: nn.Module, batches) -> nn.Module:
    """A copy of the model with the statistics of the batches in its running statistics."""
    model = copy.deepcopy(model).eval()
    for _, layer in _layers(model):
        if not layer.track_running_stats or layer.running_var is None:
            layer.track_running_stats = True
            layer.running_mean, layer.running_var = torch.zeros(layer.num_features), torch.ones(layer.num_features)
            layer.num_batches_tracked = torch.zeros((), dtype=torch.long)
            layer.to(next(model.parameters()).device)
        if layer.training is False:
            layer.train()
        if layer.training:  # False where a layer refuses: frozen normalisation keeps its constants
            layer.reset_running_stats()
            layer.momentum = None  # the plain mean over batches
    for x in [batches] if isinstance(batches, torch.Tensor) else batches:
        model(x)
    return model


def _traced(model: nn.Module, x: torch.Tensor) -> dict[str, tuple[str, nn.Module]]:
    """BN layer -> (name, layer) of what feeds it, read off the graph that autograd draws of two samples."""
    model = copy.deepcopy(model).eval()
    owners = {layer.weight: (name, layer) for name, layer in model.named_modules() if isinstance(layer, FEEDERS)}
    found, hooks = {}, []
    for p in model.parameters():
        p.requires_grad_(True)
    for name, layer in _layers(model):
        def note(_, inputs, name=name):
            found[name] = owners.get(_weight_behind(inputs[0].grad_fn))
        hooks.append(layer.register_forward_pre_hook(note))
    with torch.enable_grad():
        model(x[:2])
    return {name: feeder for name, feeder in found.items() if feeder}


def _weight_behind(node) -> torch.Tensor | None:
    """The weight of the convolution or linear layer that this node of autograd's graph is the output of."""
    while node is not None and node.name().startswith(_MOVES):
        node = node.next_functions[0][0]
    if node is None or not node.name().startswith(("Convolution", "Addmm", "Mm", "MkldnnConvolution", "CudnnConvolution")):
        return None
    parents = [parent for parent, _ in node.next_functions if parent is not None]
    while parents:
        parent = parents.pop()
        if hasattr(parent, "variable") and parent.variable.ndim > 1:
            return parent.variable
        if parent.name().startswith(("T", "Transpose")):  # a linear layer multiplies by its weight's transpose
            parents += [grand for grand, _ in parent.next_functions if grand is not None]
    return None
