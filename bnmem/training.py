"""One training as a record: settings in, curves out; and the search for a learning rate."""

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from bnmem import data, models, norms, train
from bnmem.errors import Diverged, InputError
from bnmem.jobs import Kind
from bnmem.ratio import THROUGH, GammaSigmaPenalty, gamma_over_sigma
from bnmem.settings import Settings, setting
from bnmem.sources import SETS

RATIO_SAMPLES = 1000  # training images whose statistics are sigma in the curves of gamma/sigma
CODE = ("data", "feeders", "models", "norms", "ratio", "seeds", "sources", "train", "training")


@dataclass(frozen=True)
class Common(Settings):
    """What all trainings of an experiment share."""

    dataset: str = setting("fashion_mnist", "data set", SETS)
    n_train: int = setting(5000, "training images", low=2)
    n_val: int = setting(1000, "validation images, training images kept aside", low=1)
    n_test: int = setting(2000, "test images", low=1)
    arch: str = setting("lenet", "architecture", models.ARCHS)
    init: str = setting("torch", "initialisation", models.INITS)
    rate: float = setting(0.05, "corrupted fraction of the training set", low=0.0, high=0.5)
    ood: str = setting("digits", "source of out-of-distribution images", data.OOD_SOURCES)
    optimizer: str = setting("sgd", "optimiser", train.OPTIMIZERS)
    momentum: float = setting(0.9, "momentum of SGD", low=0.0, high=0.999)
    weight_decay: float = setting(0.0, "weight decay", low=0.0)
    batch_size: int = setting(128, "batch size", low=2)


@dataclass(frozen=True)
class Mitigation(Settings):
    """What may hold memorization back, beside the choice of normalisation; all of it off by default."""

    dropout: float = setting(0.0, "probability of dropout before each linear layer", low=0.0, high=0.95)
    penalty_weight: float = setting(0.0, "weight of the gamma/sigma penalty", low=0.0)
    penalty_bound: float = setting(0.5, "bound of the gamma/sigma penalty", low=1e-6)
    penalty_through: str = setting("gamma", "where the penalty's gradient acts", THROUGH)


@dataclass(frozen=True)
class Training(Common, Mitigation):
    """Everything that determines one training."""

    norm: str = setting("batch", "normalisation", norms.NORMS)
    corruption: str = setting("none", "how training samples are made atypical", data.CORRUPTIONS)
    lr: float = setting(0.02, "learning rate", low=1e-8)
    epochs: int = setting(90, "epochs", low=1)
    seed: int = setting(0, "seed of all streams", low=0)


@dataclass(frozen=True)
class Search(Common):
    """Uncorrupted trainings with each learning rate under seeds 0 .. seeds - 1."""

    norm: str = setting("batch", "normalisation", norms.NORMS)
    epochs: int = setting(30, "epochs", low=1)
    lrs: tuple = setting((0.005, 0.01, 0.02, 0.05, 0.1, 0.2), "learning rates to try", low=1e-8)
    seeds: int = setting(2, "seeds a learning rate", low=1)


def describe(settings: Settings) -> str:
    """The settings that differ from the defaults, in one line."""
    return " ".join(f"{k}={json.dumps(v)}" for k, v in settings.changed().items()) or "default settings"


@lru_cache(maxsize=4)
def _dataset(name: str, n_train: int, n_val: int, n_test: int) -> data.Dataset:
    return data.load(name, n_train, n_val, n_test)


def inputs(s: Training | Search) -> tuple[data.Dataset, data.Corrupted]:
    """The selection and its training set, corrupted where the settings say so."""
    dataset = _dataset(s.dataset, s.n_train, s.n_val, s.n_test)
    if isinstance(s, Search):
        return dataset, data.corrupt(dataset, "none", 0.0, 0)
    return dataset, data.corrupt(dataset, s.corruption, s.rate, s.seed, s.ood)


def fingerprint(s: Training | Search) -> str:
    dataset, bad = inputs(s)
    arrays = (bad.images, bad.labels, dataset.val.images, dataset.val.labels, dataset.test.images, dataset.test.labels)
    return data.fingerprint(*arrays)


def net(s, shape: tuple[int, ...], classes: int, seed: int, where: torch.device) -> torch.nn.Module:
    """The net of settings with arch, norm, init and dropout, on its device, channels last."""
    made = models.make(s.arch, s.norm, shape, classes, seed, s.init, s.dropout)
    return made.to(where, memory_format=torch.channels_last)


@contextlib.contextmanager
def penalty(s, model: torch.nn.Module) -> Iterator[GammaSigmaPenalty | None]:
    """The gamma/sigma penalty of settings with penalty_weight, penalty_bound and penalty_through; None at weight 0."""
    if not s.penalty_weight:
        yield None
        return
    if s.norm != "batch":
        raise InputError(f"the gamma/sigma penalty needs norm batch, not {s.norm}; set penalty_weight to 0")
    with GammaSigmaPenalty(model, s.penalty_bound, s.penalty_weight, s.penalty_through) as term:
        yield term


def compute(s: Training, progress: bool = False, also=None) -> tuple[dict, dict]:
    """Train once. Numbers: `epoch` and, as long, accuracy and mean loss (float64) on the `corrupted`, `clean`, `val`
    and `test` images (empty groups left out), and `ratio`: layer -> mean over channels of |gamma|/sigma at each epoch.

    `also(epoch, model, x, bad)`, where given, is called after each measurement; x as in `train.fit`.
    Raises Diverged, which names the settings, when a training or evaluation loss leaves the finite.
    """
    where = train.device()
    dataset, bad = inputs(s)
    model = net(s, dataset.info.shape, dataset.info.classes, s.seed, where)
    x = train.to_images(bad.images, dataset.info, where)
    y = torch.from_numpy(bad.labels).to(where)
    norms.measure_frozen(model, train.batch_of(x, slice(RATIO_SAMPLES)))
    parts = {"train": (x, bad.labels)}
    parts |= {
        name: (train.to_images(split.images, dataset.info, where), split.labels)
        for name, split in (("val", dataset.val), ("test", dataset.test))
    }
    groups = {"corrupted": ("train", bad.corrupted), "clean": ("train", ~bad.corrupted)}
    groups |= {name: (name, np.ones(len(parts[name][1]), bool)) for name in parts if name != "train"}
    curves = {"epoch": [], "accuracy": {}, "loss": {}, "ratio": {}}

    def measure(epoch, model):
        result = {name: train.loss_and_correct(train.logits(model, px), pl) for name, (px, pl) in parts.items()}
        curves["epoch"].append(epoch)
        for group, (part, rows) in groups.items():
            if rows.any():
                loss, correct = (values[rows].mean() for values in result[part])
                if not np.isfinite(loss):
                    raise Diverged(f"{group} loss {loss} after epoch {epoch} ({describe(s)}); lower lr")
                curves["loss"].setdefault(group, []).append(float(loss))
                curves["accuracy"].setdefault(group, []).append(float(correct))
        for layer in gamma_over_sigma(model, train.batch_of(x, slice(RATIO_SAMPLES))):
            curves["ratio"].setdefault(layer.name, []).append(float(layer.ratio.mean()))
        if also:
            also(epoch, model, x, bad)

    with penalty(s, model) as term:
        train.fit(
            model, x, y, epochs=s.epochs, lr=s.lr, batch_size=s.batch_size, optimizer=s.optimizer, momentum=s.momentum,
            weight_decay=s.weight_decay, seed=s.seed, penalty=term, at_epoch=measure, label=describe(s),
            progress=progress,
        )  # fmt: skip
    return curves, {}


def compute_search(s: Search, progress: bool = False) -> tuple[dict, dict]:
    """Final validation accuracy [learning rate][seed] of uncorrupted trainings (None where one diverged) and `best`,
    the learning rate with the highest mean; a rate that diverged under any seed is out.

    Raises Diverged when no rate trains.
    """
    base = {name: value for name, value in vars(s).items() if name not in ("lrs", "seeds")}
    accuracy, diverged = [], []
    for lr in s.lrs:
        row = []
        for seed in range(s.seeds):
            try:
                curves, _ = compute(Training(**base, lr=lr, seed=seed), progress)
                row.append(curves["accuracy"]["val"][-1])
            except Diverged as error:
                row.append(None)
                diverged.append(str(error))
        accuracy.append(row)
    mean = [-1.0 if None in row else float(np.mean(row)) for row in accuracy]
    if max(mean) < 0:
        raise Diverged(f"no learning rate of {list(s.lrs)} trains ({describe(s)}); offer lower ones")
    return {"lrs": list(s.lrs), "val_accuracy": accuracy, "diverged": diverged, "best": s.lrs[int(np.argmax(mean))]}, {}


TRAINING = Kind("training", Training, fingerprint, compute, CODE)
SEARCH = Kind("search", Search, fingerprint, compute_search, CODE)
