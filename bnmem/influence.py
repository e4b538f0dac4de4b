"""One training on a whole pool, and the gradient norm of every sample on the way: to be joined with who is exposed."""

from dataclasses import dataclass

import numpy as np
import torch

from bnmem import data, grads, models, norms, shadows, train
from bnmem.errors import InputError
from bnmem.jobs import Kind
from bnmem.settings import setting
from bnmem.shadows import Pool, Shadows

CODE = (*shadows.CODE, "gradients", "grads", "grads_layers", "grads_linear", "influence")


@dataclass(frozen=True)
class Influence(Pool):
    """Everything that determines one training with the gradient norms of its pool."""

    norm: str = setting("batch", "normalisation", norms.NORMS)
    corruption: str = setting("flip", "how samples of the pool are made atypical", data.CORRUPTIONS)
    rate: float = setting(0.05, "atypical fraction of the pool", low=0.0, high=0.5)
    measured: tuple = setting((1, 2, 5, 10, 20), "epochs after which gradients are measured", low=0)


def arm_of(s: Influence) -> Shadows:
    """The shadow models' settings that share this pool."""
    same = {name: getattr(s, name) for name in Pool.__dataclass_fields__}
    return Shadows(**same, norm=s.norm, corruption=s.corruption, rate=s.rate)


def fingerprint(s: Influence) -> str:
    return shadows.fingerprint(arm_of(s))


def compute(s: Influence, progress: bool = False) -> tuple[dict, dict]:
    """Train once on all of the pool. Numbers: `epochs`, those measured; `accuracy`, clean and outliers, at the end.
    Arrays: `norms` float32 [epochs, N], the l2 norm of each sample's gradient over all parameters, definition eval.

    Raises InputError for epochs that are not evaluated, and Diverged when the training does.
    """
    known = train.evaluation_epochs(s.epochs)
    if list(s.measured) != sorted(set(s.measured) & set(known)):
        raise InputError(f"measured must rise within {known}, not {list(s.measured)}")
    selection, bad = shadows.pool(arm_of(s))
    where, info = train.device(), selection.info
    net = models.make(s.arch, s.norm, info.shape, info.classes, s.seed, s.init)
    net = net.to(where, memory_format=torch.channels_last)
    x, y = train.to_images(bad.images, info, where), torch.from_numpy(bad.labels).to(where)
    norms.measure_frozen(net, train.batch_of(x, slice(shadows.FROZEN_SAMPLES)))
    rows = []

    def measure(epoch, net):
        if epoch in s.measured:
            parts = torch.arange(len(x), device=where).split(train.EVAL_CHUNK)
            rows.append(np.concatenate([grads.norms(net, train.batch_of(x, at), y[at]) for at in parts]))

    train.fit(
        net, x, y, epochs=s.epochs, lr=s.lr, batch_size=s.batch_size, optimizer=s.optimizer, momentum=s.momentum,
        weight_decay=s.weight_decay, seed=s.seed, at_epoch=measure, label=f"pool, norm {s.norm}, lr {s.lr:g}",
        progress=progress,
    )  # fmt: skip
    right = train.logits(net, x).argmax(1) == bad.labels
    groups = {"clean": ~bad.corrupted, "outliers": bad.corrupted}
    accuracy = {name: float(right[part].mean()) for name, part in groups.items() if part.any()}
    return {"epochs": list(s.measured), "accuracy": accuracy}, {"norms": np.asarray(rows, np.float32)}


INFLUENCE = Kind("influence", Influence, fingerprint, compute, CODE)
