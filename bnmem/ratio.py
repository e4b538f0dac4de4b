"""gamma/sigma of batch normalisation layers, for anyone's model: measure it, and limit it while training."""

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Real

import numpy as np
import torch
from torch import nn

from bnmem import feeders
from bnmem.errors import InputError
from bnmem.feeders import batch_norms

THROUGH = ("gamma", "sigma", "both")


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

    Source: claim C8; Theorem 9 of the theory chapter says why the ratio depends on the scale of the weights.
    Raises InputError for batches that are none.
    """
    batches = _batches(batches)
    measured = model if batches is None else _measured(model, batches)
    fed = feeders.registered_before(model) if batches is None else feeders.traced(model, batches[0][:2])
    return [_layer(name, layer, fed.get(name)) for name, layer in batch_norms(measured)]


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
        if not isinstance(bound, Real) or not 0 < bound < float("inf"):
            raise InputError(f"bound must be larger than 0 and finite, not {bound!r}")
        if not isinstance(weight, Real) or not 0 <= weight < float("inf"):
            raise InputError(f"weight must be 0 or larger and finite, not {weight!r}")
        if through not in THROUGH:
            raise InputError(f"unknown through {through!r}; choose one of {', '.join(THROUGH)}")
        layers = batch_norms(model)
        if not layers:
            raise InputError(f"{type(model).__name__} has no batch normalisation layer: there is nothing to limit")
        if through == "gamma" and not any(
            layer.weight is not None and layer.weight.requires_grad for _, layer in layers
        ):
            raise InputError("no batch normalisation layer has a gamma that trains; choose through='sigma'")
        self.bound, self.weight, self.through = float(bound), float(weight), through
        self._inputs: dict[str, tuple[nn.Module, torch.Tensor]] = {}  # of the last pass, by layer
        self._inside = self._waiting = False
        self._hooks = [model.register_forward_pre_hook(self._begin), model.register_forward_hook(self._end)]
        self._hooks += [layer.register_forward_pre_hook(self._seen(name)) for name, layer in layers]

    def __call__(self) -> torch.Tensor:
        """The penalty of the last forward pass, a scalar on the model's device."""
        if not self._hooks:
            raise InputError("this penalty is closed; make a new one")
        if not self._inputs:
            raise InputError("no forward pass in training mode since the last call; call the model itself, then this")
        total = self.weight * torch.stack([self._term(layer, x) for layer, x in self._inputs.values()]).sum()
        self._inputs, self._waiting = {}, False
        return total

    def close(self) -> None:
        """Remove every hook. Closing twice does no harm."""
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._inputs = [], {}

    def __enter__(self) -> "GammaSigmaPenalty":
        return self

    def __exit__(self, *exception) -> None:
        self.close()

    def __deepcopy__(self, memo) -> "GammaSigmaPenalty":
        """What a copy of the model takes along in its hooks: a penalty that holds nothing and does nothing."""
        new = object.__new__(type(self))
        vars(new).update(vars(self) | {"_inputs": {}, "_hooks": [], "_inside": False, "_waiting": False})
        return new

    def _begin(self, model, inputs):
        if self._waiting:
            raise InputError("two forward passes and no call of the penalty between them; call it after each one")
        self._inside, self._inputs = torch.is_grad_enabled(), {}

    def _end(self, model, inputs, output):
        self._inside, self._waiting = False, bool(self._inputs)

    def _seen(self, name: str):
        def hook(layer, inputs):
            if not (self._inside and layer.training):  # also out: a checkpointed block that backward computes again
                return
            if name in self._inputs:
                raise InputError(f"{name} is used twice in one forward pass: it has no single sigma to limit")
            if not torch.is_grad_enabled():
                raise InputError(
                    f"{name} runs without a graph, so the penalty would have no gradient there; where that is "
                    "checkpointing, choose use_reentrant=False"
                )
            self._inputs[name] = (layer, inputs[0])

        return hook

    def _term(self, layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        x = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        gamma = x.new_ones(x.shape[1]) if layer.weight is None else layer.weight
        with torch.set_grad_enabled(self.through != "gamma"):
            sigma = (_variance(x) + layer.eps).sqrt()
        gamma = gamma.detach() if self.through == "sigma" else gamma
        return (gamma.abs() / sigma - self.bound).clamp(min=0).square().mean()


def _variance(x: torch.Tensor) -> torch.Tensor:
    """Biased variance of each channel of x [n, C, ...]: what training mode divides by."""
    return x.var([d for d in range(x.ndim) if d != 1], correction=0)


def _measured(model: nn.Module, batches) -> nn.Module:
    """A copy of the model with the statistics of the batches in its running statistics."""
    model = copy.deepcopy(model).eval()
    for _, layer in batch_norms(model):
        if layer.running_var is None:
            like, c = next(model.parameters(), batches[0]), layer.num_features
            layer.running_mean, layer.running_var = like.new_zeros(c), like.new_ones(c)
            layer.num_batches_tracked, layer.track_running_stats = like.new_zeros((), dtype=torch.long), True
        if layer.train().training:  # frozen normalisation refuses: it keeps its constants
            layer.reset_running_stats()
            layer.momentum = None  # the plain mean over batches
    with torch.no_grad():
        for x in batches:
            model(x)
    return model


def _batches(batches) -> list[torch.Tensor] | None:
    found = [batches] if isinstance(batches, torch.Tensor) else batches if batches is None else list(batches)
    if found is not None and (not found or any(not isinstance(x, torch.Tensor) or len(x) < 2 for x in found)):
        raise InputError("batches must be a tensor of two samples or more, or several such tensors")
    return found


def _layer(name: str, layer: nn.Module, feeder: tuple[str, nn.Module] | None) -> LayerRatio:
    notes = []
    gamma, sigma = np.ones(layer.num_features), np.full(layer.num_features, np.nan)
    if layer.weight is None:
        notes.append("no gamma (affine=False): it counts as 1")
    else:
        gamma = layer.weight.detach().double().cpu().numpy()
    if layer.running_var is None:
        notes.append("no running statistics: pass batches")
    else:
        sigma = (layer.running_var.double() + layer.eps).sqrt().cpu().numpy()
        if layer.num_batches_tracked is not None and layer.num_batches_tracked == 0 and (layer.running_var == 1).all():
            notes.append("running statistics were never updated: pass batches")
    weight_norm = feeder and feeder[1].weight.detach().double().flatten(1).norm(dim=1).cpu().numpy()
    return LayerRatio(name, gamma, sigma, feeder and feeder[0], weight_norm, "; ".join(notes))


def _row(layer: LayerRatio) -> dict[str, str]:
    ratio, free = layer.ratio, layer.scale_free
    known = np.isfinite(ratio).all()
    low, middle, high = np.quantile(ratio, (0.05, 0.5, 0.95))
    numbers = {"mean": ratio.mean(), "5 %": low, "median": middle, "95 %": high}
    row = {"layer": layer.name, "channels": str(len(ratio))}
    row |= {name: f"{value:.3g}" if known else "unknown" for name, value in numbers.items()}
    row["above 1"] = f"{(ratio > 1).mean():.0%}" if known else "unknown"
    row["scale-free mean"] = "" if free is None else f"{free.mean():.3g}" if known else "unknown"
    return row | {"fed by": layer.fed_by or "no single layer", "note": layer.note}
