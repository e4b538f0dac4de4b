"""One training with per-sample gradient norms at checkpoints, as a record."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from bnmem import grads, norms, scores, seeds, train, training
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


class Probe:
    """The samples whose gradients are measured: rows int64 [P] of the training set, noisy bool [P], in fixed batches.

    Raises InputError where they hold no noisy or no clean sample.
    """

    def __init__(self, s: "Gradients", noisy: np.ndarray):
        rng = seeds.rng(s.seed, "noise")
        chosen = rng.choice(s.n_train, s.probe, replace=False)
        self.parts = [chosen[part.numpy()] for part in train.batches(s.probe, s.batch_size, rng)]
        self.rows = np.concatenate(self.parts)
        self.noisy = noisy[self.rows]
        if not self.noisy.any() or self.noisy.all():
            raise InputError(
                f"the probe of {s.probe} samples holds {self.noisy.sum()} corrupted ones; raise probe or rate"
            )

    def norms(self, model: nn.Module, x: torch.Tensor, y: torch.Tensor, definition: str) -> tuple[np.ndarray, ...]:
        """l2 norms over all parameters and over those of the last convolution, both float64 [P]; x, y whole."""
        last, whole, conv = last_convolution(model), [], []
        for part in self.parts:
            at = torch.from_numpy(part).to(x.device)
            layers = grads.norms(model, train.batch_of(x, at), y[at], bn=definition, per_layer=True)
            whole.append(np.sqrt(sum(v**2 for v in layers.values())))
            conv.append(layers[last])
        return np.concatenate(whole), np.concatenate(conv)


def last_convolution(model: nn.Module) -> str:
    return [name for name, layer in model.named_modules() if isinstance(layer, nn.Conv2d)][-1]


def definitions_for(model: nn.Module) -> tuple[str, ...]:
    """The definitions that differ: all of them where samples of a batch share statistics."""
    shared = any(
        isinstance(layer, nn.BatchNorm2d) and not isinstance(layer, norms.FrozenNorm2d) for layer in model.modules()
    )
    return grads.DEFINITIONS if shared else STATISTICS_FREE


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
    model = training.net(s, dataset.info.shape, dataset.info.classes, s.seed, where)
    x = train.to_images(bad.images, dataset.info, where)
    y = torch.from_numpy(bad.labels).to(where)
    x_test = train.to_images(dataset.test.images, dataset.info, where)
    norms.measure_frozen(model, train.batch_of(x, slice(RATIO_SAMPLES)))
    probe, definitions = Probe(s, bad.corrupted), definitions_for(model)
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
        ratios = gamma_over_sigma(model)
        numbers["ratio"].append(float(ratios[-1].ratio.mean()) if ratios else None)
        arrays["phi"].append(scores.phi(z[probe.rows], bad.labels[probe.rows]))
        for d in definitions:
            for what, values in zip(("norm", "last"), probe.norms(model, x, y, d), strict=True):
                arrays[f"{what}_{d}"].append(values)

    with training.penalty(s, model) as term:
        train.fit(
            model, x, y, epochs=s.epochs, lr=s.lr, batch_size=s.batch_size, optimizer=s.optimizer, momentum=s.momentum,
            weight_decay=s.weight_decay, seed=s.seed, penalty=term, at_epoch=measure, label=training.describe(s),
            progress=progress,
        )  # fmt: skip
    packed = {name: np.asarray(values, np.float32) for name, values in arrays.items()}
    return numbers, packed | {"rows": probe.rows, "noisy": probe.noisy}


GRADIENTS = Kind("gradients", Gradients, training.fingerprint, compute, CODE)
