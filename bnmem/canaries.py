"""The one-run audit: mislabelled canaries with coin flips of their own, one training, a lower bound on epsilon."""

from dataclasses import dataclass, replace

import numpy as np
import torch

from bnmem import audit_one_run, data, models, norms, scores, seeds, shadows, train
from bnmem.errors import InputError
from bnmem.jobs import Kind
from bnmem.settings import setting
from bnmem.shadows import Pool, Shadows

CODE = (*shadows.CODE, "audit_one_run", "canaries")


@dataclass(frozen=True)
class Audit(Pool):
    """Everything that determines one audit. The number of guesses is fixed here, before any score is seen."""

    norm: str = setting("batch", "normalisation", norms.NORMS)
    canaries: int = setting(400, "samples of the pool that get a wrong label and a coin flip", low=2)
    guesses: int = setting(200, "guesses, half IN and half OUT", low=2)
    confidence: float = setting(0.95, "confidence of the lower bound, a fraction", low=0.5, high=0.9999)


def check(s: Audit) -> None:
    """Raises InputError where the audit could not be made."""
    if s.guesses % 2 or s.guesses > s.canaries:
        raise InputError(f"guesses must be even and at most {s.canaries} (canaries), not {s.guesses}")
    if s.canaries > s.pool // 2:
        raise InputError(f"canaries must be at most half of the pool of {s.pool}, not {s.canaries}")


def pool(s: Audit) -> tuple[data.Dataset, data.Corrupted, np.ndarray]:
    """The selection, the pool with its canaries flipped, and who is trained on: bool [N], all that is no canary in."""
    arm = Shadows(**{name: getattr(s, name) for name in Pool.__dataclass_fields__})
    selection, bad = shadows.pool(replace(arm, corruption="flip", rate=s.canaries / s.pool))
    trained = np.ones(len(bad.labels), bool)
    trained[bad.flipped] = audit_one_run.coins(len(bad.flipped), seed=seeds.rng(s.seed, "canary"))
    return selection, bad, trained


def fingerprint(s: Audit) -> str:
    selection, bad, trained = pool(s)
    return data.fingerprint(bad.images, bad.labels, trained, selection.test.images, selection.test.labels)


def compute(s: Audit, progress: bool = False) -> tuple[dict, dict]:
    """Train once on the pool without the canaries whose coin fell on tails; guess by phi of the wrong label.

    Numbers: epsilon (lower bound), ceiling, confidence, guesses, correct, canaries, p_at_zero, as in
    `audit_one_run.Audit`; `accuracy`: canaries_in, canaries_out (share answered with the wrong label), clean, test.
    """
    check(s)
    selection, bad, trained = pool(s)
    where, info = train.device(), selection.info
    net = models.make(s.arch, s.norm, info.shape, info.classes, s.seed, s.init)
    net = net.to(where, memory_format=torch.channels_last)
    x, x_test = (train.to_images(images, info, where) for images in (bad.images, selection.test.images))
    rows = torch.from_numpy(np.flatnonzero(trained)).to(where)
    norms.measure_frozen(net, train.batch_of(x, rows[: shadows.FROZEN_SAMPLES]))
    train.fit(
        net, x[rows], torch.from_numpy(bad.labels).to(where)[rows], epochs=s.epochs, lr=s.lr, batch_size=s.batch_size,
        optimizer=s.optimizer, momentum=s.momentum, weight_decay=s.weight_decay, seed=s.seed,
        label=f"audit, norm {s.norm}, lr {s.lr:g}", progress=progress,
    )  # fmt: skip
    z = train.logits(net, x)
    phi, correct = scores.phi(z, bad.labels), scores.correct(z, bad.labels)
    found = audit_one_run.audit(
        phi[bad.flipped],
        trained[bad.flipped],
        guesses=s.guesses,
        confidence=s.confidence,
        seed=seeds.rng(s.seed, "noise"),
    )
    parts = {"canaries_in": bad.corrupted & trained, "canaries_out": bad.corrupted & ~trained, "clean": ~bad.corrupted}
    accuracy = {name: float(correct[part].mean()) for name, part in parts.items()}
    accuracy["test"] = float(scores.correct(train.logits(net, x_test), selection.test.labels).mean())
    return found._asdict() | {"accuracy": accuracy}, {}


AUDIT = Kind("audit", Audit, fingerprint, compute, CODE)
