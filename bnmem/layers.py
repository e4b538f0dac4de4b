"""One training looked at layer by layer, as a record: gamma and sigma of every channel at checkpoints, and how much of
what the net has memorized hangs on each layer.

The second is measured by rewinding (Maini et al., "Can neural network memorization be localized?", ICML 2023): after
training, one layer's weights are set back to an earlier checkpoint while all others stay. A layer here is a BN layer's
gamma and beta together with the convolution that feeds it. What is forgotten then was stored with that layer's help.
"""

import copy
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from bnmem import train, training
from bnmem.errors import InputError
from bnmem.feeders import batch_norms
from bnmem.jobs import Kind
from bnmem.ratio import LayerRatio, gamma_over_sigma
from bnmem.settings import setting
from bnmem.training import RATIO_SAMPLES, Training

CODE = (*training.CODE, "layers")


@dataclass(frozen=True)
class Layers(Training):
    """A training, and what is measured on the way and at its end."""

    checkpoints: tuple = setting((0, 1, 2, 4, 8, 14, 20, 30), "epochs measured by channel, 0 and the last too", low=0)
    rewind: tuple = setting((0, 2), "checkpoints to which each layer is set back after training", low=0)
    rewind_clean: int = setting(1000, "clean training images that rewinding is measured on", low=1)


def check(s: Layers) -> None:
    """Raises InputError where the checkpoints are no measured epochs, the first or last is not among them, a rewound
    one is not, or the net has no batch normalisation."""
    known, ends = train.evaluation_epochs(s.epochs), (s.checkpoints[0], s.checkpoints[-1])
    if list(s.checkpoints) != sorted(set(s.checkpoints) & set(known)) or ends != (0, s.epochs):
        raise InputError(f"checkpoints must rise from 0 to {s.epochs} within {known}, not {list(s.checkpoints)}")
    if not set(s.rewind) <= set(s.checkpoints[:-1]) or len(set(s.rewind)) < len(s.rewind):
        raise InputError(f"rewind must name checkpoints before the last, each once, not {list(s.rewind)}")
    if s.norm != "batch":
        raise InputError(f"gamma and sigma are those of norm batch, not {s.norm}")


def rewound(model: nn.Module, early: dict[str, torch.Tensor], names: tuple[str, ...]) -> nn.Module:
    """A copy of the model in which the named layers have the weights of the state dict `early`."""
    model = copy.deepcopy(model)
    own = {name: value for name, value in early.items() if name.rpartition(".")[0] in names}
    model.load_state_dict(own, strict=False)
    return model


@torch.no_grad()
def measure_statistics(model: nn.Module, x: torch.Tensor) -> nn.Module:
    """The model, in eval mode, its BN layers' running statistics set to those of one batch x [n, C, H, W], in place."""
    model.eval()
    for _, layer in batch_norms(model):
        layer.reset_running_stats()
        layer.momentum = None  # the plain mean over batches, here of one
        layer.train()
    model(x)
    return model.eval()


class Memory:
    """Which training samples a net fits, and which of them it forgets when a layer is rewound.

    x float32 [n, H, W, C] and labels int64 [n], the training set; corrupted bool [n]. Looked at are all corrupted
    samples and the first `clean` others; the statistics of BN are measured anew, on the same images, for every net.
    """

    def __init__(self, model: nn.Module, x: torch.Tensor, labels: np.ndarray, corrupted: np.ndarray, clean: int):
        rows = np.concatenate([np.flatnonzero(corrupted), np.flatnonzero(~corrupted)[:clean]])
        self.statistics = train.batch_of(x, slice(RATIO_SAMPLES))
        self.x, self.labels = x[torch.from_numpy(rows).to(x.device)], labels[rows]
        self.groups = {"corrupted": corrupted[rows], "clean": ~corrupted[rows]}
        self.before = self.fits(copy.deepcopy(model))

    def fits(self, model: nn.Module) -> np.ndarray:
        """bool [rows]; the model's running statistics are replaced."""
        return train.logits(measure_statistics(model, self.statistics), self.x).argmax(1) == self.labels

    def loss_by(self, model: nn.Module) -> dict[str, float]:
        """Of each group: `forgotten`, the share of the samples fitted before that the model does not fit (NaN where
        none was fitted), and `drop`, the fall of the accuracy."""
        now, found = self.fits(model), {}
        for group, rows in self.groups.items():
            had = rows & self.before
            found[f"forgotten_{group}"] = float((~now[had]).mean()) if had.any() else np.nan
            found[f"drop_{group}"] = float(self.before[rows].mean() - now[rows].mean()) if rows.any() else np.nan
        return found


def compute(s: Layers, progress: bool = False) -> tuple[dict, dict]:
    """Train as `training.compute` does, with more measurements. Numbers: the curves, and `layers`, `channels`, `fed_by`
    (names of the BN layers, their sizes, the convolution that feeds each or None), `fitted`: group -> how many of its
    samples the trained net fits, of how many.

    Arrays, float32. gamma, sigma (over training images), running_sigma, weight_norm (NaN without a single feeding
    convolution) [checkpoints, channels of all layers]; forgotten_G and drop_G [rewind, layers], see `Memory.loss_by`,
    for G corrupted and clean.
    """
    check(s)
    found: dict[str, list] = {"gamma": [], "sigma": [], "running_sigma": [], "weight_norm": []}
    states: dict[int, dict] = {}
    numbers: dict = {}

    def measure(epoch, model, x, bad):
        if epoch not in s.checkpoints:
            return
        layers, running = gamma_over_sigma(model, train.batch_of(x, slice(RATIO_SAMPLES))), gamma_over_sigma(model)
        for name in ("gamma", "sigma"):
            found[name].append(np.concatenate([getattr(layer, name) for layer in layers]))
        found["running_sigma"].append(np.concatenate([layer.sigma for layer in running]))
        found["weight_norm"].append(np.concatenate([_weights(layer) for layer in layers]))
        if epoch in s.rewind:
            states[epoch] = copy.deepcopy(model.state_dict())
        if epoch == s.epochs:
            numbers.update(_names(layers))
            memory = Memory(model, x, bad.labels, bad.corrupted, s.rewind_clean)
            numbers["fitted"] = {
                g: [int(memory.before[rows].sum()), int(rows.sum())] for g, rows in memory.groups.items()
            }
            for early in s.rewind:
                row = [memory.loss_by(rewound(model, states[early], _parts(layer))) for layer in layers]
                for name in row[0]:
                    found.setdefault(name, []).append([values[name] for values in row])

    curves, _ = training.compute(s, progress, measure)
    return curves | numbers, {name: np.asarray(rows, np.float32) for name, rows in found.items()}


def _weights(layer: LayerRatio) -> np.ndarray:
    return np.full(len(layer.gamma), np.nan) if layer.weight_norm is None else layer.weight_norm


def _parts(layer: LayerRatio) -> tuple[str, ...]:
    return (layer.name, layer.fed_by) if layer.fed_by else (layer.name,)


def _names(layers: list[LayerRatio]) -> dict[str, list]:
    return {
        "layers": [layer.name for layer in layers],
        "channels": [len(layer.gamma) for layer in layers],
        "fed_by": [layer.fed_by for layer in layers],
    }


LAYERS = Kind("layers", Layers, training.fingerprint, compute, CODE)
