"""A small net, trained, saved, loaded and audited as anybody's checkpoint would be; as a record."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from bnmem import data, models, seeds, train, training
from bnmem.audit import Audit, Samples, audit
from bnmem.checkpoint import load_state
from bnmem.errors import Diverged
from bnmem.jobs import Kind
from bnmem.ratio import LayerRatio
from bnmem.rebuild import build
from bnmem.settings import setting
from bnmem.training import Common

CODE = (
    *training.CODE, "audit", "audited", "checkpoint", "grads", "grads_any", "grads_layers", "grads_linear", "masks",
    "rebuild", "scores",
)  # fmt: skip


@dataclass(frozen=True)
class Audited(Common):
    """A short training of one of our nets, and how many of its training samples are audited."""

    n_train: int = setting(4000, "training images", low=2)
    arch: str = setting("resnet8", "architecture", models.ARCHS)
    corruption: str = setting("flip", "how training samples are made atypical", data.CORRUPTIONS)
    lr: float = setting(0.05, "learning rate", low=1e-8)
    epochs: int = setting(8, "epochs", low=1)
    limit: int = setting(2000, "training samples that are audited, chosen at random", low=2)
    seed: int = setting(0, "seed of all streams", low=0)


def compute(s: Audited, progress: bool = False) -> tuple[dict, dict]:
    """Train, save the state dict, load it again, audit.

    Numbers: `accuracy` of the groups clean, corrupted, test; `layers`, a dictionary for each BN layer with name, fed_by
    and number of channels; `classes`; `notes`. Arrays: gamma, sigma, weight_norm (NaN where unknown), batch_sigma
    float64, the layers' channels one after another; rows int64 [n], positions in the training set; noisy bool [n];
    label, predicted int64 [n]; loss, phi, norm float64 [n].
    Raises Diverged when the training does.
    """
    where = train.device()
    dataset, bad = training.inputs(s)
    model = models.make(s.arch, "batch", dataset.info.shape, dataset.info.classes, s.seed, s.init)
    model = model.to(where, memory_format=torch.channels_last)
    x = train.to_images(bad.images, dataset.info, where)
    y = torch.from_numpy(bad.labels).to(where)
    train.fit(
        model, x, y, epochs=s.epochs, lr=s.lr, batch_size=s.batch_size, optimizer=s.optimizer, momentum=s.momentum,
        weight_decay=s.weight_decay, seed=s.seed, label=training.describe(s), progress=progress,
    )  # fmt: skip
    if not all(bool(t.isfinite().all()) for t in model.state_dict().values()):
        raise Diverged(f"weights are not finite after the training ({training.describe(s)}); lower lr")
    net = _saved_and_loaded(model, s.arch).to(where)
    rows = seeds.rng(s.seed, "noise").permutation(s.n_train)[: s.limit]
    at = torch.from_numpy(rows).to(where)
    made = audit(net, (train.batch_of(x, at), y[at]), name=f"bnmem:{s.arch}", names=[str(row) for row in rows])
    correct = train.logits(net, x).argmax(1) == bad.labels
    groups = {"clean": correct[~bad.corrupted], "corrupted": correct[bad.corrupted]}
    x_test = train.to_images(dataset.test.images, dataset.info, where)
    groups["test"] = train.logits(net, x_test).argmax(1) == dataset.test.labels
    accuracy = {name: [float(values.mean())] for name, values in groups.items() if len(values)}
    numbers, arrays = pack(made)
    return {"accuracy": accuracy, **numbers}, {**arrays, "rows": rows, "noisy": bad.corrupted[rows]}


def pack(made: Audit) -> tuple[dict, dict]:
    """An audit with samples as a record's numbers and arrays."""
    layers = [{"name": r.name, "fed_by": r.fed_by, "channels": len(r.gamma), "note": r.note} for r in made.ratio]
    unknown = [np.full(len(r.gamma), np.nan) if r.weight_norm is None else r.weight_norm for r in made.ratio]
    arrays = {
        "gamma": np.concatenate([r.gamma for r in made.ratio]),
        "sigma": np.concatenate([r.sigma for r in made.ratio]),
        "weight_norm": np.concatenate(unknown),
        "batch_sigma": np.concatenate([r.sigma for r in made.in_batches]),
    }
    arrays |= {name: getattr(made.samples, name) for name in ("label", "predicted", "loss", "phi", "norm")}
    return {"name": made.name, "layers": layers, "classes": made.classes, "notes": list(made.notes)}, arrays


def unpack(numbers: dict, arrays: dict) -> Audit:
    """The audit that `pack` packed; samples are named by their rows."""
    ratio, in_batches, start = [], [], 0
    for layer in numbers["layers"]:
        part = slice(start, start := start + layer["channels"])
        norm = arrays["weight_norm"][part] if layer["fed_by"] else None
        for found, sigma, note in ((ratio, "sigma", layer["note"]), (in_batches, "batch_sigma", "")):
            found.append(
                LayerRatio(layer["name"], arrays["gamma"][part], arrays[sigma][part], layer["fed_by"], norm, note)
            )
    columns = {name: arrays[name] for name in ("label", "predicted", "loss", "phi", "norm")}
    samples = Samples(tuple(str(row) for row in arrays["rows"]), **columns)
    return Audit(numbers["name"], ratio, in_batches, samples, numbers["classes"], tuple(numbers["notes"]))


def _saved_and_loaded(model: torch.nn.Module, arch: str) -> torch.nn.Module:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.pt"
        torch.save(model.state_dict(), path)
        return build(f"bnmem:{arch}", load_state(path)).model


AUDITED = Kind("audited", Audited, training.fingerprint, compute, CODE)
