"""What one trained net shows of how it may memorize: gamma/sigma of its layers, and who pulls on its weights.

Nothing here says that a sample was a member of the training set: that takes models trained without it.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import torch
from torch import nn

from bnmem import grads, scores, train
from bnmem.checkpoint import some
from bnmem.errors import InputError
from bnmem.feeders import batch_norms
from bnmem.grads_any import one_by_one
from bnmem.ratio import LayerRatio, gamma_over_sigma

STATISTICS = 256  # samples whose batch statistics stand beside the running ones
FEW = 20  # samples from which on an accuracy says something


@dataclass(frozen=True)
class Samples:
    """The deployed net (eval mode) on n labelled samples, in the order in which they came.

    label, predicted int64 [n]; loss float64 [n], cross-entropy in nats; phi float64 [n], the margin z_y - logsumexp of
    the other logits; norm float64 [n], l2 norm of the gradient of the sample's loss with respect to all trainable
    parameters, definition eval of `bnmem.grads`; names, n texts.
    """

    names: tuple[str, ...]
    label: np.ndarray
    predicted: np.ndarray
    loss: np.ndarray
    phi: np.ndarray
    norm: np.ndarray

    @property
    def order(self) -> np.ndarray:
        """Positions by falling norm, int64 [n]: the samples that pull hardest come first."""
        return np.argsort(-self.norm, kind="stable")

    @property
    def accuracy(self) -> float:
        return float((self.label == self.predicted).mean())


@dataclass(frozen=True)
class Audit:
    """ratio: one entry a BN layer, by running statistics, empty without BN; in_batches: the same layers by the
    statistics of up to STATISTICS of the samples, empty without samples; samples: None without any; classes: of the
    net, 0 where unknown; notes: what a reader must know, for people.
    """

    name: str
    ratio: list[LayerRatio]
    in_batches: list[LayerRatio]
    samples: Samples | None
    classes: int
    notes: tuple[str, ...]


def audit(
    model: nn.Module,
    batches: tuple[torch.Tensor, torch.Tensor] | Iterable[tuple[torch.Tensor, torch.Tensor]] | None = None,
    *,
    name: str | None = None,
    names: Iterable[str] | None = None,
    batch: int = 64,
) -> Audit:
    """Look at a trained net, on its own device and in float32 or float64.

    batches: None for gamma/sigma alone, which needs no data; else (x, y), or pairs of them as a DataLoader gives,
    *shuffled*, since the first ones also give batch statistics. x [n, ...] as the net takes it, normalised as in
    training; y int64 [n] the labels that were trained on. names: one text a sample (default: its position). batch:
    samples a pass where x, y come whole. Norms cover all layers of `grads.norms`; a net with other layers gets one
    backward pass a sample instead, which is as exact and slower. The model is left as found; dropout is off.

    Raises InputError for a net that has neither batch normalisation nor data, weights or logits that are NaN or
    infinite, half precision, no trainable parameters, and data that do not fit.
    """
    model = _unwrapped(model)
    _check_model(model)
    ratio = gamma_over_sigma(model)
    title, notes = name or type(model).__name__, []
    if batches is None:
        if not ratio:
            raise InputError(
                f"{title} has no batch normalization layer, so there is no gamma/sigma to read; give data (--data) for "
                "gradient norms"
            )
        return Audit(title, ratio, [], None, 0, ())
    if not ratio:
        notes.append("The net has no batch normalization layer: there is no gamma/sigma to read.")
    where = next(model.parameters())
    pairs = _pairs(batches, batch, where)
    with _deployed(model):
        first, pairs = _first(pairs)
        _logits(model, first[0])  # a net that does not take these inputs says so before anything else is computed
        in_batches = gamma_over_sigma(model, first) if ratio and first[0].shape[0] > 1 else []
        ratio = _fed_as_traced(ratio, in_batches)
        if untracked := [n for n, layer in batch_norms(model) if layer.running_var is None]:
            notes.append(
                f"{some(untracked)}: no running statistics, so what the net says of one sample depends on the others. "
                "There are no gradient norms by definition eval; see bnmem.grads for other definitions."
            )
            return Audit(title, ratio, in_batches, None, 0, tuple(notes))
        samples, classes = _samples(model, pairs, names, notes)
    return Audit(title, ratio, in_batches, samples, classes, tuple(notes))


def _samples(model: nn.Module, pairs, names, notes: list[str]) -> tuple[Samples, int]:
    columns = {name: [] for name in ("label", "predicted", "loss", "phi", "norm")}
    measure = grads.norms
    for x, y in pairs:
        z = _logits(model, x).double().cpu().numpy()
        label = _labels(y, len(x), z.shape[1])
        loss, _ = train.loss_and_correct(z, label)
        columns["phi"].append(scores.phi(z, label))
        columns["loss"].append(loss)
        columns["label"].append(label)
        columns["predicted"].append(z.argmax(1))
        y = torch.from_numpy(label).to(x.device)
        try:
            columns["norm"].append(measure(model, x, y))
        except InputError as refusal:  # inputs and labels are checked: a layer is what it cannot measure
            measure = one_by_one
            notes.append(f"One backward pass a sample, which is slower: {str(refusal).partition(';')[0]}.")
            columns["norm"].append(measure(model, x, y))
    made = {name: np.concatenate(parts) for name, parts in columns.items()}
    n, classes = len(made["label"]), z.shape[1]
    names = tuple(str(i) for i in range(n)) if names is None else tuple(names)
    if len(names) != n:
        raise InputError(f"{len(names)} names for {n} samples; give one each")
    samples = Samples(names, **made)
    if n >= FEW and samples.accuracy <= 1 / classes + 2 * (1 / classes / n) ** 0.5:
        notes.append(
            f"The net is right on {samples.accuracy:.0%} of the samples, no more than chance would give. "
            "Are size, normalization and order of classes those of its training? If not, the norms mean little."
        )
    return samples, classes


def _logits(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    try:
        with torch.no_grad():
            z = model(x)
    except (RuntimeError, ValueError, TypeError, IndexError, AssertionError) as error:
        line = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(
            f"the net does not take inputs of shape {list(x.shape[1:])} ({line}); give them as in training (--size)"
        ) from None
    if not isinstance(z, torch.Tensor) or z.ndim != 2 or len(z) != len(x) or z.shape[1] < 2:
        raise InputError("the net must return logits [n, classes], two classes or more; wrap it so that it does")
    if not bool(z.isfinite().all()):
        raise InputError("the net's logits are NaN or infinite; take an earlier checkpoint, or check the inputs")
    return z


def _labels(y, n: int, classes: int) -> np.ndarray:
    y = torch.as_tensor(y).detach().cpu()
    if y.dtype.is_floating_point or y.dtype == torch.bool or y.shape != (n,):
        raise InputError(f"labels are {y.dtype} {list(y.shape)} for {n} samples; give one integer each")
    y = y.long().numpy()
    if y.min() < 0 or y.max() >= classes:
        raise InputError(f"labels go from {y.min()} to {y.max()} and the net has classes 0 to {classes - 1}")
    return y


def _pairs(batches, batch: int, like: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """(x, y), x on the model's device and of its floating type."""
    if batch < 1:
        raise InputError(f"batch must be 1 or more, not {batch}")
    whole = isinstance(batches, tuple | list) and len(batches) == 2 and isinstance(batches[0], torch.Tensor)
    if whole:
        x, y = batches[0], torch.as_tensor(batches[1])
        if y.ndim != 1 or len(x) != len(y):
            raise InputError(f"labels have shape {list(y.shape)} for {len(x)} samples; give one each")
        batches = zip(x.split(batch), y.split(batch), strict=True)
    for pair in batches:
        if not isinstance(pair, tuple | list) or len(pair) != 2 or not isinstance(pair[0], torch.Tensor):
            raise InputError("batches must be pairs (x, y) of tensors, as a DataLoader gives them")
        x = pair[0].to(like.device, like.dtype if pair[0].is_floating_point() else None)
        if len(x):
            yield x, pair[1]


def _first(pairs) -> tuple[list[torch.Tensor], Iterator]:
    """The inputs of the first pairs, up to STATISTICS samples, a lone sample left out; and all pairs."""
    pairs, held, n = iter(pairs), [], 0
    while n < STATISTICS and (pair := next(pairs, None)) is not None:
        held.append(pair)
        n += len(pair[0])
    if not held:
        raise InputError("the data hold no sample; check the path or the batches")
    inputs = [x for x, _ in held if len(x) > 1] or [held[0][0]]
    return inputs, chain(held, pairs)


def _fed_as_traced(ratio: list[LayerRatio], traced: list[LayerRatio]) -> list[LayerRatio]:
    """What feeds each layer, read off a forward pass where there was one."""
    found = {layer.name: layer for layer in traced}
    return [
        replace(r, fed_by=found[r.name].fed_by, weight_norm=found[r.name].weight_norm) if r.name in found else r
        for r in ratio
    ]


@contextmanager
def _deployed(model: nn.Module) -> Iterator[None]:
    """Eval mode inside, each layer's own mode after, also after an exception."""
    modes = [(layer, layer.training) for layer in model.modules()]
    try:
        for layer, _ in modes:
            vars(layer)["training"] = False
        yield
    finally:
        for layer, mode in modes:
            vars(layer)["training"] = mode


def _unwrapped(model: nn.Module) -> nn.Module:
    """The net inside torch.compile, DataParallel or DistributedDataParallel."""
    if not isinstance(model, nn.Module):
        raise InputError(f"model must be a torch.nn.Module, not {type(model).__name__}; load weights into a net first")
    model = getattr(model, "_orig_mod", model)
    parallel = isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel)
    return getattr(model.module, "_orig_mod", model.module) if parallel else model


def _check_model(model: nn.Module) -> None:
    if any(map(nn.parameter.is_lazy, model.parameters())):
        raise InputError("the net has lazy parameters; run one batch through it first")
    values = [*model.named_parameters()]
    for layer_name, layer in batch_norms(model):
        values += [(f"{layer_name}.{name}", t) for name, t in layer.named_buffers(recurse=False)]
    bad = [name for name, t in values if t.is_floating_point() and not bool(t.isfinite().all())]
    if bad:
        raise InputError(f"weights are NaN or infinite: {some(bad)}; the training diverged, take an earlier checkpoint")
    if not any(p.requires_grad for p in model.parameters()):
        raise InputError("the net has no trainable parameters; set requires_grad_(True) on those to audit")
    kinds = {p.dtype for p in model.parameters()}
    if len(kinds) != 1 or not kinds <= {torch.float32, torch.float64}:
        listed = ", ".join(sorted(map(str, kinds)))
        raise InputError(f"the net's weights are {listed}; make them all float32 with model.float()")
