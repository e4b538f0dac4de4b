"""How well scores tell members from non-members: tie-exact ROC, AUC, TPR at a small FPR, and differences of two arms.

Rates are fractions, here and in every name: tpr_at_fpr_0.001 is the share of members found while at most one non-member
in a thousand is accused.
"""

from typing import NamedTuple

import numpy as np
from scipy import stats
from sklearn.metrics import roc_auc_score, roc_curve

from bnmem.errors import InputError

MIN_FALSE_POSITIVES = 10


class Curve(NamedTuple):
    """``fpr``, ``tpr``, ``thresholds`` float64 [R], from (0, 0) at threshold infinity to (1, 1)."""

    fpr: np.ndarray
    tpr: np.ndarray
    thresholds: np.ndarray


class TprAtFpr(NamedTuple):
    """One operating point: ``tpr`` is None where it is refused, so that it cannot be printed by accident."""

    tpr: float | None
    false_positives: int
    negatives: int


class Difference(NamedTuple):
    """A paired difference: mean, standard error, interval, degrees of freedom, two-sided p, and the pairs' values."""

    mean: float
    standard_error: float
    low: float
    high: float
    dof: int
    p: float
    per_pair: np.ndarray


def curve(scores, members) -> Curve:
    """The ROC with one point per distinct score, the end of its block of ties: nothing between, nothing dropped.

    Parameters: ``scores`` reals and ``members`` booleans of one shape, any number of axes (pooled); larger = member.
    Returns: Curve.
    Raises: InputError on NaN or infinity, wrong types or shapes, or if one of the two classes is missing.
    """
    scores, members = _check(scores, members)
    return Curve(*roc_curve(members.ravel(), scores.ravel(), drop_intermediate=False))


def auc(scores, members) -> float:
    """P(score of a member > score of a non-member) + P(equal) / 2, all entries pooled; arguments as in ``curve``."""
    scores, members = _check(scores, members)
    return float(roc_auc_score(members.ravel(), scores.ravel()))


def auc_per_target(scores, members) -> np.ndarray:
    """The AUC of every target model on its own, float64 [M].

    Parameters: ``scores`` reals [M, N], ``members`` booleans [M, N]; for a group of samples pass its columns.
    Raises: InputError as ``curve``, for the first target that has members only or none.
    """
    scores, members = _check(scores, members)
    if scores.ndim != 2:
        raise InputError(f"scores must have shape [M, N], not {list(scores.shape)}: use auc for a single target")
    sides = members.sum(axis=1)
    alone = np.flatnonzero((sides == 0) | (sides == members.shape[1]))
    if alone.size:
        raise InputError(
            f"target {alone[0]} has {sides[alone[0]]} members of {members.shape[1]} samples: "
            "use a larger group, or masks stratified by group"
        )
    return np.array([roc_auc_score(m, s) for s, m in zip(scores, members, strict=True)])


def tpr_at_fpr(scores, members, fpr: float, *, min_false_positives: int = MIN_FALSE_POSITIVES) -> TprAtFpr:
    """The largest TPR whose FPR is at most ``fpr``, with the number of false positives that it rests on.

    That number is of the last point of the ROC within ``fpr``. A rate that rests on fewer than ``min_false_positives``
    is noise (one more or less moves it by a tenth and more) and is refused: ``tpr`` is None. Pass [M, N] to pool over
    targets: 16 targets with 2,000 non-members each give 32 false positives at 0.001, one target gives 2.

    Parameters: ``scores``, ``members`` as in ``curve``; ``fpr`` a fraction, 0 < fpr < 1.
    Returns: TprAtFpr.
    Raises: InputError as ``curve``, and if ``fpr`` is no such fraction.
    """
    if not (np.isscalar(fpr) and 0 < fpr < 1):
        raise InputError(f"fpr must be a fraction between 0 and 1, not {fpr!r}: write one per mille as 0.001")
    scores, members = _check(scores, members)
    points = curve(scores, members)
    last = int(np.searchsorted(points.fpr, fpr, side="right")) - 1
    negatives = int(members.size - members.sum())
    false_positives = round(points.fpr[last] * negatives)
    refused = false_positives < min_false_positives
    return TprAtFpr(None if refused else float(points.tpr[last]), false_positives, negatives)


def summary(scores, members, fprs=(0.001, 0.01), *, min_false_positives: int = MIN_FALSE_POSITIVES) -> dict:
    """What a table row needs: mean AUC over targets, and TPR from the scores pooled over targets.

    Parameters: ``scores`` reals [M, N], ``members`` booleans [M, N], ``fprs`` fractions.
    Returns: a dict of plain numbers: auc, and for every fraction F tpr_at_fpr_F (None if refused) and
    false_positives_at_fpr_F.
    Raises: InputError as ``auc_per_target`` and ``tpr_at_fpr``.
    """
    row = {"auc": float(auc_per_target(scores, members).mean())}
    for fpr in fprs:
        point = tpr_at_fpr(scores, members, fpr, min_false_positives=min_false_positives)
        name = np.format_float_positional(fpr, trim="-")
        row[f"tpr_at_fpr_{name}"] = point.tpr
        row[f"false_positives_at_fpr_{name}"] = point.false_positives
    return row


def paired_difference(first, second, *, confidence: float = 0.95) -> Difference:
    """First arm minus second, per pair of models, with a t interval over the pairs: M/2 - 1 degrees of freedom.

    The two models of a pair share one split of the pool, so their values are averaged first; counting them as two
    would make the interval too narrow. The pairs of an arm still share shadow models and one pool: the interval is
    conditional on them and says nothing about another pool.

    Parameters: ``first``, ``second`` reals [M], one value a target, such as ``auc_per_target`` of the arm with BN and
    of the arm without, in the same order; ``confidence`` a fraction.
    Returns: Difference.
    Raises: InputError on unequal shapes, odd M, fewer than 2 pairs, NaN or infinity.
    """
    first, second = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if first.ndim != 1 or first.shape != second.shape or first.size % 2 or first.size < 4:
        raise InputError(
            f"need two arrays [M], M even and at least 4, not {list(first.shape)} and {list(second.shape)}: "
            "pass one value a target, models in pairs"
        )
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        raise InputError("values hold NaN or infinity: find the model that diverged")
    if not 0 < confidence < 1:
        raise InputError(f"confidence must be a fraction between 0 and 1, not {confidence!r}: write 95 % as 0.95")
    per_pair = (first - second).reshape(-1, 2).mean(axis=1)
    dof = per_pair.size - 1
    mean, error = float(per_pair.mean()), float(per_pair.std(ddof=1) / np.sqrt(per_pair.size))
    half = float(stats.t.ppf((1 + confidence) / 2, dof)) * error
    if error > 0:
        p = float(2 * stats.t.sf(abs(mean) / error, dof))
    else:
        p = 1.0 if mean == 0 else 0.0
    return Difference(mean, error, mean - half, mean + half, dof, p, per_pair)


def _check(scores, members) -> tuple[np.ndarray, np.ndarray]:
    scores, members = np.asarray(scores), np.asarray(members)
    if scores.dtype.kind not in "fiu" or members.dtype != np.bool_ or scores.shape != members.shape or not scores.ndim:
        raise InputError(
            f"scores ({scores.dtype} {list(scores.shape)}) and members ({members.dtype} {list(members.shape)}) must be "
            "reals and booleans of one shape: pass lira.score's result and its masks"
        )
    scores = scores.astype(np.float64, copy=False)
    if not np.isfinite(scores).all():
        raise InputError("scores hold NaN or infinity: find the model that diverged")
    if members.all() or not members.any():
        raise InputError("a ROC needs members and non-members, this has one of the two: check the masks")
    return scores, members
