"""One training of the grid as a record: curves, gradient norms and gamma/sigma of the same net, as summaries."""

from dataclasses import dataclass

import numpy as np
import torch
from sklearn.metrics import roc_auc_score

from bnmem import gradients, train, training
from bnmem.gradients import Gradients, Probe
from bnmem.jobs import Kind
from bnmem.ratio import gamma_over_sigma
from bnmem.settings import setting
from bnmem.training import RATIO_SAMPLES

CODE = (*gradients.CODE, "sweep")
DEFINITIONS = ("eval", "frozen")


@dataclass(frozen=True)
class Sweep(Gradients):
    """A training of the grid. Everything is read at its last epoch, and along the way."""

    epochs: int = setting(25, "epochs", low=1)
    probe: int = setting(1024, "training samples whose gradients are measured, in fixed random batches", low=4)
    checkpoints: tuple = setting((0, 1, 2, 4, 8, 12, 18, 25), "epochs of the gradient measurements", low=0)


def compute(s: Sweep, progress: bool = False) -> tuple[dict, dict]:
    """Train as `training.compute` does. Its numbers and, at the checkpoints: `gradients`, definition (eval and, where
    the net has batch statistics, frozen) -> `noisy` and `clean` (medians of the l2 norm over all parameters),
    `last_noisy` (the same for the last convolution) and `auroc` (how well the norm tells noisy from clean); and
    `scale_free`, layer -> mean over channels of |gamma| ||w|| / sigma, where one layer feeds the BN. All float64.
    """
    gradients.check(s)
    found = {"checkpoints": [], "gradients": {}, "scale_free": {}}
    probes = []

    def also(epoch, model, x, bad):
        if epoch not in s.checkpoints:
            return
        if not probes:
            probes.append((Probe(s, bad.corrupted), torch.from_numpy(bad.labels).to(x.device)))
        probe, y = probes[0]
        found["checkpoints"].append(epoch)
        for definition in sorted({*DEFINITIONS} & {*gradients.definitions_for(model)}):
            norms, last = probe.norms(model, x, y, definition)
            values = {
                "noisy": np.median(norms[probe.noisy]),
                "clean": np.median(norms[~probe.noisy]),
                "last_noisy": np.median(last[probe.noisy]),
                "auroc": roc_auc_score(probe.noisy, norms),
            }
            for name, value in values.items():
                found["gradients"].setdefault(definition, {}).setdefault(name, []).append(float(value))
        for layer in gamma_over_sigma(model, train.batch_of(x, slice(RATIO_SAMPLES))):
            if layer.scale_free is not None:
                found["scale_free"].setdefault(layer.name, []).append(float(layer.scale_free.mean()))

    curves, _ = training.compute(s, progress, also)
    return curves | found, {}


SWEEP = Kind("sweep", Sweep, training.fingerprint, compute, CODE)
