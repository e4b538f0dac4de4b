"""DP-SGD (differentially private training) as one more alternative: a GroupNorm net, its curves and its epsilon.

Batch normalisation has no place here: it mixes the samples whose influence is to be bounded. Per-sample gradients,
noise and accounting are Opacus's, an optional extra (`pip install "opacus>=1.6"`); the batches are drawn here.
"""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from bnmem import norms, seeds, train, training
from bnmem.errors import Diverged, InputError
from bnmem.jobs import Kind
from bnmem.settings import setting
from bnmem.training import Training

CODE = (*training.CODE, "dp")


@dataclass(frozen=True)
class DPTraining(Training):
    """A training by DP-SGD; `norm` must be one that keeps samples apart."""

    noise_multiplier: float = setting(1.0, "standard deviation of the noise over the clip", low=0.1)
    clip: float = setting(1.0, "largest l2 norm of one sample's gradient", low=1e-6)
    delta: float = setting(1e-5, "delta at which epsilon is read", low=1e-12, high=0.1)


def compute(s: DPTraining, progress: bool = False) -> tuple[dict, dict]:
    """Train once. Numbers: `epoch`, `accuracy` and `loss` as `training.compute` gives them, and `epsilon` at each of
    these epochs (float; 0 before training). A training that diverges gives `diverged`, the message, and nothing else.

    Batches are Poisson samples: every image enters each with probability batch_size / n, on its own.
    Raises InputError for norm batch, for more than plain SGD can do, and where Opacus is missing.
    """
    check(s)
    where = train.device()
    dataset, bad = training.inputs(s)
    model = training.net(s, dataset.info.shape, dataset.info.classes, s.seed, where)
    x = train.to_images(bad.images, dataset.info, where)
    norms.measure_frozen(model, train.batch_of(x, slice(training.RATIO_SAMPLES)))
    y = torch.from_numpy(bad.labels).to(where)
    sets = {n: (x[rows], bad.labels[rows]) for n, rows in (("corrupted", bad.corrupted), ("clean", ~bad.corrupted))}
    for name, split in (("val", dataset.val), ("test", dataset.test)):
        sets[name] = (train.to_images(split.images, dataset.info, where), split.labels)
    curves = {"epoch": [], "accuracy": {}, "loss": {}, "epsilon": []}
    measured = train.evaluation_epochs(s.epochs)
    try:
        for epoch, epsilon in _epochs(s, model, x, y):
            if epoch in measured:
                curves["epoch"].append(epoch)
                curves["epsilon"].append(epsilon)
                _measure(s, model, sets, curves)
    except Diverged as error:
        return {"diverged": str(error)}, {}
    return curves, {}


def check(s: DPTraining) -> None:
    """Raises InputError for settings that DP-SGD cannot train, and where Opacus is missing."""
    if s.norm == "batch":
        raise InputError("DP-SGD cannot train a net whose batch statistics mix samples; choose norm group")
    if s.optimizer != "sgd" or s.penalty_weight or s.dropout:
        raise InputError("DP-SGD takes optimizer sgd, no penalty and no dropout; set them so")
    try:
        import opacus  # noqa: F401
    except ImportError:
        raise InputError('DP-SGD needs Opacus; install it with: pip install "opacus>=1.6"') from None


def per_sample(model: torch.nn.Module) -> torch.nn.Module:
    """The model in Opacus's wrapper: after a backward pass each parameter has `grad_sample` [batch, ...].

    Opacus reads a convolution's input as if its channels came first in memory, and is silently wrong where they come
    last, as they do in our nets. So every convolution is handed such a copy.
    """
    from opacus.grad_sample import GradSampleModule

    for layer in model.modules():
        if isinstance(layer, torch.nn.Conv2d):
            layer.register_forward_pre_hook(lambda _, inputs: (inputs[0].contiguous(),))
    return GradSampleModule(model, loss_reduction="mean")


def _epochs(s: DPTraining, model, x, y):
    """Train in place; yields (epoch, epsilon spent so far) from epoch 0 on."""
    from opacus.accountants import RDPAccountant
    from opacus.optimizers import DPOptimizer

    wrapped, accountant = per_sample(model), RDPAccountant()
    rate, order = min(1.0, s.batch_size / len(x)), seeds.rng(s.seed, "order")
    noise = torch.Generator(x.device).manual_seed(seeds.torch_seed(s.seed, "noise"))
    plain = torch.optim.SGD(model.parameters(), lr=s.lr, momentum=s.momentum, weight_decay=s.weight_decay)
    opt = DPOptimizer(plain, noise_multiplier=s.noise_multiplier, max_grad_norm=s.clip, generator=noise,
                      expected_batch_size=max(1, round(rate * len(x))))  # fmt: skip
    yield 0, 0.0
    for epoch in range(1, s.epochs + 1):
        wrapped.train()
        for _ in range(max(1, round(1 / rate))):
            rows = torch.from_numpy(np.flatnonzero(order.random(len(x)) < rate)).to(x.device)
            opt.zero_grad(set_to_none=True)
            if len(rows):
                F.cross_entropy(wrapped(train.batch_of(x, rows)), y[rows]).backward()
            else:  # nobody was drawn: a step of noise alone
                for p in model.parameters():
                    p.grad_sample = p.new_zeros(0, *p.shape)
            opt.step()
            accountant.step(noise_multiplier=s.noise_multiplier, sample_rate=rate)
        yield epoch, float(accountant.get_epsilon(s.delta))


def _measure(s: DPTraining, model, sets: dict, curves: dict) -> None:
    """Append accuracy and mean loss of every group that has images."""
    for group, (images, labels) in sets.items():
        if len(labels):
            loss, correct = (v.mean() for v in train.loss_and_correct(train.logits(model, images), labels))
            if not loss <= train.LOSS_LIMIT:
                raise Diverged(f"{group} loss {loss} after epoch {curves['epoch'][-1]} ({training.describe(s)})")
            curves["loss"].setdefault(group, []).append(float(loss))
            curves["accuracy"].setdefault(group, []).append(float(correct))


PRIVATE = Kind("private", DPTraining, training.fingerprint, compute, CODE)
