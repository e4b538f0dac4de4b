"""From the scores of one arm of shadow models to its record: how well it is attacked, who is exposed, how well it fits.

LiRA online with shrunk variance at every scored epoch; other attacks at the last one. All of it with running
statistics.
"""

from dataclasses import dataclass, replace

import numpy as np

from bnmem import lira, roc, scores, shadows
from bnmem.jobs import Job, Kind
from bnmem.records import Record
from bnmem.shadows import Shadows

CODE = (*shadows.CODE, "lira", "roc", "shadow_summary")
GROUPS = ("all", "outliers", "clean")
FPRS = (0.001, 0.01, 0.1)
ROC_FPRS = np.geomspace(1e-4, 1, 81)
ATTACKS = {
    "LiRA online, per-example variance": ("online", "per-example"),
    "LiRA online, pooled variance": ("online", "pooled"),
    "LiRA offline, shrunk variance": ("offline", "shrunk"),
}


def members_of(s: Shadows) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The groups of samples, name -> bool [N], empty ones left out; and the masks, bool [models, N]."""
    _, bad = shadows.pool(s)
    found = {"all": np.ones(len(bad.labels), bool), "outliers": bad.corrupted, "clean": ~bad.corrupted}
    return {name: rows for name, rows in found.items() if rows.any()}, shadows.masks_of(s)


def compute(s: Shadows, progress: bool = False) -> tuple[dict, dict]:
    """Numbers: `epochs`, and for each of them `auc` (group -> [epochs][models], one AUC a target), `tpr` (group ->
    FPR -> [epochs] of the TPR pooled over targets, or None where it rests on fewer than 10 of `false_positives`), and
    `accuracy` ([epochs][models]: in_clean, in_outliers, out_clean, out_outliers, test); `attacks`, name -> group -> one
    AUC a target, at the last epoch.

    Arrays, at the last epoch: the pooled ROC at FPR `roc_fpr` (`roc_GROUP`, NaN below 10 false positives) and a row a
    sample: `index` (official position), `label` (trained), `true_label`, `group` (0 clean, 1 flip, 2 OOD), `d_prime`,
    `memorization` and its standard error, mean phi IN and OUT.
    """
    shadows.fill([s], progress=progress)
    parts, inside = members_of(s)
    numbers = {"epochs": list(s.scored), "auc": {}, "tpr": {}, "accuracy": {}, "attacks": {}}
    for epoch in s.scored:
        phi = shadows.column(s, f"phi_{epoch}").astype(np.float64)
        correct = shadows.column(s, f"correct_{epoch}")
        score = lira.score(phi, inside)
        for name, rows in parts.items():
            numbers["auc"].setdefault(name, []).append(_aucs(score, inside, rows))
            for fpr in FPRS:
                point = roc.tpr_at_fpr(score[:, rows], inside[:, rows], fpr)
                at = numbers["tpr"].setdefault(name, {}).setdefault(f"{fpr:g}", {"tpr": [], "false_positives": []})
                at["tpr"].append(point.tpr)
                at["false_positives"].append(point.false_positives)
            if name != "all":
                for side, chosen in (("in", inside), ("out", ~inside)):
                    share = correct[:, rows].mean(axis=1, where=chosen[:, rows])
                    numbers["accuracy"].setdefault(f"{side}_{name}", []).append(share.tolist())
    numbers["accuracy"]["test"] = shadows.column(s, "test").T.tolist()
    for attack, (mode, variance) in ATTACKS.items():
        other = lira.score(phi, inside, mode, variance)
        numbers["attacks"][attack] = {name: _aucs(other, inside, rows) for name, rows in parts.items()}
    for attack, other in (("loss threshold", scores.loss_threshold(phi)), ("RMIA", scores.rmia(phi, inside))):
        numbers["attacks"][attack] = {name: _aucs(other, inside, rows) for name, rows in parts.items()}
    arrays = {"roc_fpr": ROC_FPRS} | {f"roc_{name}": _roc(score, inside, rows) for name, rows in parts.items()}
    return numbers, arrays | _risk(s, phi, inside, correct)


def _aucs(score: np.ndarray, inside: np.ndarray, rows: np.ndarray) -> list[float]:
    return roc.auc_per_target(score[:, rows], inside[:, rows]).tolist()


def _roc(score: np.ndarray, inside: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """TPR at ROC_FPRS, float32, NaN where it rests on fewer than 10 false positives."""
    members = inside[:, rows]
    points = roc.curve(score[:, rows], members)
    last = np.searchsorted(points.fpr, ROC_FPRS, side="right") - 1
    enough = np.round(points.fpr[last] * (~members).sum()) >= roc.MIN_FALSE_POSITIVES
    return np.where(enough, points.tpr[last], np.nan).astype(np.float32)


def _risk(s: Shadows, phi: np.ndarray, inside: np.ndarray, correct: np.ndarray) -> dict[str, np.ndarray]:
    selection, bad = shadows.pool(s)
    table = lira.risk_table(phi, inside, correct)
    kept = ("d_prime", "memorization", "memorization_se", "mu_in", "mu_out")
    kinds = np.select([shadows.groups(bad) == "flip", shadows.groups(bad) == "ood"], [1, 2], 0)
    return {
        "index": selection.train.index.astype(np.int32),
        "label": bad.labels.astype(np.int16),
        "true_label": bad.true_labels.astype(np.int16),
        "group": kinds.astype(np.int8),
    } | {name: table[name].astype(np.float32) for name in kept}


SHADOWS = Kind("shadows", Shadows, shadows.fingerprint, compute, CODE)


@dataclass(frozen=True)
class ArmJob(Job):
    """A record made of many trainings: its seconds are those of all its models together, on one core."""

    def compute(self, progress: bool = False) -> Record:
        record = super().compute(progress)
        seconds = round(float(shadows.column(self.settings, "seconds").sum()), 2)
        return replace(record, provenance=record.provenance | {"seconds": seconds})
