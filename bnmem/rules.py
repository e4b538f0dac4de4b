"""The rules of the scorecard, fixed before the first record was made: claim, metric, margin, verdict.

A cell is one data set and architecture (and, where the claim has them, one kind or rate of corruption). It *holds* when
its 95 % interval lies above zero and its effect reaches the margin, *fails* when its whole interval lies below the
margin, and is *open* otherwise. A claim is `reproduced` when every cell of every metric holds, `not reproduced` when
none holds, `partly` in between, `not measured` without cells. The same rule is read twice: at face value (equal
settings, equal number of epochs) and at equal fit (equal accuracy on the clean training images). The scorecard shows
both; the claim's verdict is the one at face value, because that is how the paper states it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

REPRODUCED, PARTLY, NOT, UNMEASURED = "reproduced", "partly", "not reproduced", "not measured"
PROVED = "proved under its assumptions"


@dataclass(frozen=True)
class Metric:
    """One number a cell must show: positive means as claimed, `margin` is the least effect that counts."""

    name: str
    says: str
    margin: float


@dataclass(frozen=True)
class Rule:
    """How one claim is judged. Theorems have no metrics: they are judged by their tests."""

    claim: str
    states: str
    metrics: tuple[Metric, ...] = ()
    reading: str = ""


@dataclass(frozen=True)
class Cell:
    """One measured effect with its 95 % interval."""

    metric: str
    where: str
    effect: float
    low: float
    high: float


_MEMORIZED = (
    Metric("corrupted_accuracy", "accuracy on the corrupted samples at the last common epoch, BN minus none", 0.05),
    Metric("log2_epochs_to_half", "log2 of the epochs until half of them are memorized, none over BN", 0.25),
)

RULES = {
    rule.claim: rule
    for rule in (
        Rule(
            "C1",
            "With flipped labels, BN models memorize the corrupted samples faster and end at a higher accuracy on "
            "them, in every data set and architecture.",
            _MEMORIZED,
            "Paired over seeds, same settings in both arms. A run that never reaches one half counts with the epoch at "
            "which it stopped, a lower bound of its time.",
        ),
        Rule("C2", "The same with out-of-distribution samples mixed in.", _MEMORIZED, "As C1."),
        Rule(
            "C3",
            "Gradient norms of noisy samples in BN models are clearly larger than those of clean samples in the same "
            "model, and than those of noisy samples without BN.",
            (
                Metric("log2_norm_noisy_over_clean", "log2 of the ratio of medians, noisy over clean, BN", 0.585),
                Metric("log2_norm_batch_over_none", "log2 of the ratio of noisy samples' medians, BN over none", 0.585),
            ),
            "Definition `eval` (running statistics); mean of the log ratio over the checkpoints after initialisation "
            "and up to the last common epoch. 0.585 is a factor of 1.5.",
        ),
        Rule(
            "C4",
            "LiRA reaches a higher AUC on BN models: at least 3 points with 1 % outliers, at least 4 with 5 %.",
            (
                Metric("auc_gap_1_percent", "AUC over all samples, BN minus none, 1 % outliers", 0.03),
                Metric("auc_gap_5_percent", "AUC over all samples, BN minus none, 5 % outliers", 0.04),
            ),
            "Paired over pairs of shadow models; online, shrunk variance, running statistics.",
        ),
        Rule(
            "C5",
            "The AUC gap stays on clean data sets.",
            (Metric("auc_gap_0_percent", "AUC over all samples, BN minus none, no outliers added", 0.01),),
            "As C4.",
        ),
        Rule(
            "C6",
            "In the single-channel model BN multiplies an outlier's margin growth per step by (gamma/sigma)^2.",
            reading="A theorem: its symbolic and numeric tests pass, or it is not proved.",
        ),
        Rule(
            "C7",
            "Outliers drive the growth of gamma out of proportion, which raises (gamma/sigma)^2 again.",
            reading="A theorem: as C6.",
        ),
        Rule(
            "C8",
            "In trained nets gamma/sigma > 1 in most layers.",
            (
                Metric(
                    "share_above_one", "share of BN layers with a mean ratio above 1 after training, minus 1/2", 0.0
                ),
                Metric("log2_ratio_change", "log2 of the mean ratio after training over that before it", 0.0),
            ),
            "Sigma over training images, torch's default initialisation; paired over seeds. The second metric makes "
            "the verdict one on what training does.",
        ),
        Rule(
            "C9",
            "Limiting gamma/sigma cuts memorization of the corrupted set strongly and keeps the clean performance.",
            (
                Metric("relative_cut", "share of the corrupted accuracy above chance that the penalty removes", 0.5),
                Metric("test_accuracy_kept", "clean test accuracy, penalised minus BN, plus 0.01", 0.0),
            ),
            "The weight and bound are chosen on validation accuracy alone, never on the corrupted set.",
        ),
        Rule(
            "C10",
            "With sensitive outliers present, nets without normalisation or with the regulariser offer a better "
            "privacy-utility trade-off.",
            (
                Metric("auc_saved", "LiRA AUC over outliers, BN minus the best alternative of equal utility", 0.01),
                Metric("corrupted_saved", "corrupted accuracy, BN minus the best alternative of equal utility", 0.05),
            ),
            "Alternatives: none and the penalty; equal utility: clean test accuracy at most 0.01 below BN's.",
        ),
    )
}


def cell_status(cell: Cell, metric: Metric) -> str:
    """ "holds", "fails" or "open"."""
    if cell.low > 0 and cell.effect >= metric.margin:
        return "holds"
    return "fails" if cell.high < metric.margin or cell.high <= 0 else "open"


def verdict(claim: str, cells: Sequence[Cell]) -> str:
    """The verdict of a measured claim on its cells. A claim with a metric that has no cell is not measured."""
    metrics = {metric.name: metric for metric in RULES[claim].metrics}
    if not metrics:
        raise ValueError(f"{claim} is a theorem: its verdict is that of its tests")
    cells = [cell for cell in cells if cell.metric in metrics]
    if {cell.metric for cell in cells} != set(metrics):
        return UNMEASURED
    held = [cell_status(cell, metrics[cell.metric]) == "holds" for cell in cells]
    return REPRODUCED if all(held) else PARTLY if any(held) else NOT
