"""What the arms of the regularization experiment are measured by: accuracies, the control at equal fit, attacks."""

from dataclasses import dataclass

import numpy as np

from bnmem import exp_membership_inference as attacks
from bnmem.regularization import Result, points
from bnmem.sources import SETS
from bnmem.stats import Interval, first_crossing, value_at

DESTROYED = 0.5  # of BN's accuracy on clean training images: an arm that stays below has not trained
UTILITY = 0.01  # arms are of equal utility when their test accuracies differ by no more
# Levels of accuracy on clean training images at which arms are compared, where both reach them.
FIT_LEVELS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.925, 0.95, 0.975, 0.99)


def accuracy(result: Result, name: str, group: str) -> np.ndarray:
    """Accuracy of one group at the last epoch, float64 [seeds]; NaN where the training diverged."""
    rows = result.runs[name]
    return np.array([np.nan if "diverged" in r.numbers else r.numbers["accuracy"][group][-1] for r in rows])


def destroyed(result: Result, name: str) -> bool:
    """Whether the arm has not trained: diverged under a seed, or left clean images unfitted (see DESTROYED)."""
    clean = accuracy(result, name, "clean")
    return not (clean.mean() >= DESTROYED * accuracy(result, "BN", "clean").mean())


def chosen(result: Result) -> str | None:
    """The penalty with the highest mean validation accuracy of those that have trained; the corrupted set plays no
    part in the choice."""
    trained = [p.name for p in points(result.settings) if p.family == "penalty" and not destroyed(result, p.name)]
    return max(trained, key=lambda name: accuracy(result, name, "val").mean(), default=None)


def strongest(result: Result) -> str | None:
    """The penalty with the largest weight, then the smallest bound, that has trained."""
    trained = [p for p in points(result.settings) if p.family == "penalty" and not destroyed(result, p.name)]
    order = max(
        trained, key=lambda p: (dict(p.changes)["penalty_weight"], -dict(p.changes)["penalty_bound"]), default=None
    )
    return order and order.name


def early_stopping(result: Result) -> dict[str, np.ndarray]:
    """BN alone, read at the epoch with the best validation accuracy: group -> accuracy [seeds]."""
    out = {}
    for group in ("corrupted", "clean", "test"):
        rows = [r.numbers["accuracy"] for r in result.runs["BN"]]
        out[group] = np.array([row[group][int(np.argmax(row["val"]))] for row in rows])
    return out


def excess(result: Result, values: np.ndarray) -> np.ndarray:
    """Accuracy on corrupted samples above that of random guessing, 1 / classes, and at least 0."""
    return np.maximum(values - 1 / SETS[result.settings.dataset].classes, 0.0)


@dataclass(frozen=True)
class EqualFit:
    """BN and another arm where their accuracy on clean training images first reaches `level`: group -> accuracies
    [seeds] of BN and of the arm."""

    level: float
    ours: dict[str, np.ndarray]
    theirs: dict[str, np.ndarray]


def equal_fit(result: Result, name: str) -> EqualFit | None:
    """The control: the highest of FIT_LEVELS that both arms reach under every seed; None where there is none."""
    both = [result.runs["BN"], result.runs[name]]
    if any("diverged" in r.numbers for rows in both for r in rows):
        return None
    for level in reversed(FIT_LEVELS):
        at = [
            [first_crossing(r.numbers["epoch"], r.numbers["accuracy"]["clean"], level) for r in rows] for rows in both
        ]
        if np.isfinite(at).all():
            read = [
                {
                    group: np.array([
                        value_at(r.numbers["epoch"], r.numbers["accuracy"][group], epoch)
                        for r, epoch in zip(rows, epochs, strict=True)
                    ])
                    for group in ("corrupted", "test")
                }
                for rows, epochs in zip(both, at, strict=True)
            ]  # fmt: skip
            return EqualFit(level, *read)
    return None


def of_equal_utility(result: Result) -> list[str]:
    """The claim's alternatives, no normalisation and the chosen penalty, whose mean test accuracy is at most UTILITY
    below BN's."""
    ours = accuracy(result, "BN", "test").mean()
    names = [name for name in ("none", chosen(result)) if name and not destroyed(result, name)]
    return [name for name in names if accuracy(result, name, "test").mean() >= ours - UTILITY]


def attacked(result: Result, name: str) -> attacks.Result:
    """BN and another arm as a result of the membership experiment: its measures then apply."""
    s = result.settings
    settings = attacks.MembershipInference(rates=(s.rate,), corruption=s.corruption, scored=s.scored, models=s.models)
    return attacks.Result(settings, {(s.rate, "batch"): result.attacks["BN"], (s.rate, name): result.attacks[name]},
                          {}, {}, [])  # fmt: skip


def auc_saved(result: Result, name: str, reading: str = "equal epochs", group: str = "outliers") -> Interval | None:
    """AUC over outliers, BN minus another arm, paired over pairs of shadow models; None where it cannot be read."""
    rate = result.settings.rate
    if name not in result.attacks:
        return None
    both = attacked(result, name)
    if reading == "equal fit":
        control = attacks.equal_fit(both, rate, name)
        gap = control and control.gap[group]
    else:
        gap = attacks.difference(both, rate, group, name)
    return gap and Interval(gap.mean, gap.low, gap.high, result.settings.models // 2)
