"""One training with per-sample gradient norms at checkpoints, as a record."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from bnmem import grads, models, norms, scores, seeds, train, training
from bnmem.errors import Diverged, InputError
from bnmem.jobs import Kind
from bnmem.ratio import gamma_over_sigma
from bnmem.settings import setting
from bnmem.training import RATIO_SAMPLES, Training

CODE = (*training.CODE, "gradients", "grads", "grads_layers", "grads_linear", "masks", "scores")
STATISTICS_FREE = ("eval",)  # without statistics shared in a batch, the four definitions are one


@dataclass(frozen=True)
class Gradients(Training):
    """A training, and what is measured on the way."""

    probe: int = setting(2048, "training samples whose gradients are measured, in fixed random batches", low=4)
    checkpoints: tuple = setting((0, 1, 2, 4, 6, 10, 14, 20, 26, 30, 40, 50, 60), "epochs of the measurements", low=0)


def check(s: Gradients) -> None:
    """Raises InputError where the checkpoints are no measured epochs or the probe does not fit."""
    known = train.evaluation_epochs(s.epochs)
    if list(s.checkpoints) != sorted(set(s.checkpoints) & set(known)):
        raise InputError(f"checkpoints must rise within {known}, not {list(s.checkpoints)}")
    if s.probe > s.n_train:
        raise InputError(f"probe {s.probe} is more than the {s.n_train} training images; lower probe")


def compute(s: Gradients, progress: bool = False) -> tuple[dict, dict]:
    """Train as `training.compute` does, and measure at the checkpoints.

    Numbers: epoch, accuracy of the groups clean, corrupted and test, and `ratio`, the mean |gamma|/sigma of the last BN
    layer (running statistics), as long as epoch. Arrays: rows int64 [P], noisy bool [P]; for each definition D of
    `grads.norms` (only eval where the net has no batch statistics) norm_D and last_D float32 [epochs, P], l2 norms
    over all parameters and over those of the last convolution; phi float32 [epochs, P], the deployed net's margin.
    """
    check(s)
    where = train.device()
    dataset, bad = training.inputs(s)
    model = models.make(s.arch, s.norm, dataset.info.shape, dataset.info.classes, s.seed, s.init)
    model = model.to(where, memory_format=torch.channels_last)
    x = train.to_images(bad.images, dataset.info, where)
    y = torch.from_numpy(bad.labels).to(where)
    x_test = train.to_images(dataset.test.images, dataset.info, where)
    norms.measure_frozen(model, train.batch_of(x, slice(RATIO_SAMPLES)))
    rng = seeds.rng(s.seed, "noise")
    chosen = rng.choice(s.n_train, s.probe, replace=False)
    parts = [chosen[part.numpy()] for part in train.batches(s.probe, s.batch_size, rng)]
    rows = np.concatenate(parts)
    noisy = bad.corrupted[rows]
    if not noisy.any() or noisy.all():
        raise InputError(f"the probe of {s.probe} samples holds {noisy.sum()} corrupted ones; raise probe or rate")
    shared = any(isinstance(layer, nn.BatchNorm2d) and s.norm == "batch" for layer in model.modules())
    definitions = grads.DEFINITIONS if shared else STATISTICS_FREE
    last = [name for name, layer in model.named_modules() if isinstance(layer, nn.Conv2d)][-1]
    numbers = {"epoch": [], "accuracy": {"clean": [], "corrupted": [], "test": []}, "ratio": []}
    arrays = {f"{what}_{d}": [] for what in ("norm", "last") for d in definitions} | {"phi": []}

    def measure(epoch, model):
        if epoch not in s.checkpoints:
            return
        z = train.logits(model, x)
        correct = z.argmax(1) == bad.labels
        if not np.isfinite(z).all():
            raise Diverged(f"logits are not finite after epoch {epoch} ({training.describe(s)}); lower lr")
        numbers["epoch"].append(epoch)
        numbers["accuracy"]["clean"].append(float(correct[~bad.corrupted].mean()))
        numbers["accuracy"]["corrupted"].append(float(correct[bad.corrupted].mean()))
        right = train.logits(model, x_test).argmax(1) == dataset.test.labels
        numbers["accuracy"]["test"].append(float(right.mean()))
        ratios = list(gamma_over_sigma(model).values())
        numbers["ratio"].append(float(ratios[-1].mean()) if ratios else None)
        arrays["phi"].append(scores.phi(z[rows], bad.labels[rows]))
        for d in definitions:
            whole, conv = [], []
            for part in parts:
                at = torch.from_numpy(part).to(where)
                layers = grads.norms(model, train.batch_of(x, at), y[at], bn=d, per_layer=True)
                whole.append(np.sqrt(sum(v**2 for v in layers.values())))
                conv.append(layers[last])
            arrays[f"norm_{d}"].append(np.concatenate(whole))
            arrays[f"last_{d}"].append(np.concatenate(conv))

    train.fit(
        model, x, y, epochs=s.epochs, lr=s.lr, batch_size=s.batch_size, optimizer=s.optimizer, momentum=s.momentum,
        weight_decay=s.weight_decay, seed=s.seed, at_epoch=measure, label=training.describe(s), progress=progress,
    )  # fmt: skip
    packed = {name: np.asarray(values, np.float32) for name, values in arrays.items()}
    return numbers, packed | {"rows": rows, "noisy": noisy}


GRADIENTS = Kind("gradients", Gradients, training.fingerprint, compute, CODE)
