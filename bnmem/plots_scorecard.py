"""The scorecard's table and its forest plots."""

import math
import re

from bnmem import rules
from bnmem.grid_cells import FACE, FIT
from bnmem.plots import COLOURS, Figure, panels, style
from bnmem.rules import RULES, Cell, Metric
from bnmem.scorecard import Scorecard
from bnmem.stats import Interval, interval

STATUS = {"holds": ("batch", "o"), "open": ("grey", "D"), "fails": ("none", "s")}
PROPER = {
    "fashion_mnist": "Fashion-MNIST",
    "mnist": "MNIST",
    "cifar100": "CIFAR-100",
    "cifar10": "CIFAR-10",
    "lenet": "LeNet",
    "resnet8": "ResNet-8",
    "resnet20": "ResNet-20",
    "densenet": "DenseNet",
    "resnet18": "ResNet-18",
    "densenet121": "DenseNet-121",
    "ood": "OOD",
}
SHORT = {
    "corrupted_accuracy": "corrupted accuracy, BN − none",
    "log2_epochs_to_half": "log2 speed-up to half memorized",
    "log2_norm_noisy_over_clean": "log2 norm, noisy over clean, BN",
    "log2_norm_batch_over_none": "log2 norm, noisy, BN over none",
    "auc_gap_0_percent": "AUC, BN − none, no outliers",
    "auc_gap_1_percent": "AUC, BN − none, 1 % outliers",
    "auc_gap_5_percent": "AUC, BN − none, 5 % outliers",
    "share_above_one": "share of layers above 1, minus ½",
    "log2_ratio_change": "log2 change of the mean ratio",
    "relative_cut": "share of memorization removed",
    "test_accuracy_kept": "test accuracy kept, plus 0.01",
    "auc_saved": "AUC on outliers saved",
    "corrupted_saved": "corrupted accuracy saved",
}


def forest(card: Scorecard, claims: tuple[str, ...]) -> Figure:
    """Effect with 95 % interval of every cell, a row each; a column a metric, equal fit as hollow marks below.

    The dotted line is 0, the dashed one the rule's margin.
    """
    metrics = [(claim, metric) for claim in claims for metric in RULES[claim].metrics]
    metrics = [(claim, m) for claim, m in metrics if any(c.metric == m.name for c in card.of(claim))]
    wheres = list(dict.fromkeys(c.where for claim in claims for c in card.of(claim)))
    with style():
        height = 1.3 + 0.27 * max(len(wheres), 1)
        figure, axes = panels(1, max(len(metrics), 1), width=10, height=height, sharey=True)
        for ax, (claim, metric) in zip(axes[0], metrics, strict=False):
            _column(ax, claim, metric, card, wheres, named=len(claims) > 1)
        axes[0][0].set_yticks(range(len(wheres)), [proper(where) for where in wheres], fontsize=8.5)
        axes[0][0].set_ylim(len(wheres) - 0.4, -0.7)
    return figure


def proper(where: str) -> str:
    """A cell's name as people write it."""
    return re.sub(r"\w+", lambda word: PROPER.get(word[0], word[0]), where)


def _column(ax, claim: str, metric: Metric, card: Scorecard, wheres: list[str], named: bool) -> None:
    reach = []
    for reading, below, fill in ((FACE, 0.0, True), (FIT, 0.3, False)):
        for cell in card.of(claim, reading):
            if cell.metric == metric.name and cell.where in wheres:
                _mark(ax, cell, metric, wheres.index(cell.where) + below, fill)
                reach.append(cell.effect)
    ax.axvline(0, color=COLOURS["grey"], lw=1, ls=":")
    if metric.margin:
        ax.axvline(metric.margin, color=COLOURS["grey"], lw=1, ls="--")
    low, high = min([*reach, 0, metric.margin]), max([*reach, 0, metric.margin])
    room = 0.35 * (high - low) or 0.1
    ax.set_xlim(low - room, high + room)
    ax.set_title(f"{claim}: {SHORT[metric.name]}" if named else SHORT[metric.name], fontsize=9.5)
    ax.tick_params(axis="x", labelsize=8.5)
    ax.grid(visible=False, axis="y")


def _mark(ax, cell: Cell, metric: Metric, y: float, fill: bool) -> None:
    name, marker = STATUS[rules.cell_status(cell, metric)]
    colour = COLOURS[name]
    if not math.isnan(cell.low):
        ax.plot([cell.low, cell.high], [y, y], color=colour, lw=1.6 if fill else 1.0, solid_capstyle="butt")
    ax.plot(cell.effect, y, marker, ms=5, color=colour, mfc=colour if fill else "white", zorder=3)


def scorecard_rows(card: Scorecard) -> list[dict[str, str]]:
    """Table: every claim, its verdict at face value and at equal fit, and how its cells fell."""
    rows = []
    for claim, rule in RULES.items():
        row = {"claim": claim, "the paper's statement": rule.states, "verdict": card.verdict(claim)}
        row["cells (holds / open / fails)"] = counts(card, claim, FACE)
        theorem = not rule.metrics
        at_fit = bool(card.of(claim, FIT))
        row["at equal fit"] = "" if theorem else card.verdict(claim, FIT) if at_fit else "no such reading"
        row["cells at equal fit"] = counts(card, claim, FIT) if at_fit else ""
        rows.append(row)
    return rows


def counts(card: Scorecard, claim: str, reading: str) -> str:
    """ "9 / 4 / 2": how many cells hold, are open and fail."""
    metrics = {metric.name: metric for metric in RULES[claim].metrics}
    found = [rules.cell_status(cell, metrics[cell.metric]) for cell in card.of(claim, reading)]
    return " / ".join(str(found.count(status)) for status in STATUS) if found else ""


def cell_rows(card: Scorecard, claim: str) -> list[dict[str, str]]:
    """Table: every cell of a claim with its effect in both readings."""
    rows = []
    for metric in RULES[claim].metrics:
        at_fit = {c.where: c for c in card.of(claim, FIT) if c.metric == metric.name}
        for cell in card.of(claim):
            if cell.metric == metric.name:
                other = at_fit.get(cell.where)
                row = {"cell": proper(cell.where), "metric": SHORT[metric.name], "margin": f"{metric.margin:g}"}
                row |= {"effect": _text(cell), "": rules.cell_status(cell, metric)}
                rows.append(
                    row
                    | {
                        "at equal fit": _text(other) if other else "",
                        " ": (other and rules.cell_status(other, metric)) or "",
                    }
                )
    return rows


def _text(cell: Cell) -> str:
    return interval(Interval(cell.effect, cell.low, cell.high, 1 if math.isnan(cell.low) else 2))


def glue_values(card: Scorecard) -> dict[str, str]:
    """Verdicts and counts that prose quotes, by name."""
    values = {"records": str(len(card.used))}
    values |= {f"tier-{tier}": f"{done} of {rows}" for tier, (done, rows) in card.coverage.items()}
    for claim in RULES:
        values[f"{claim}-verdict"] = card.verdict(claim)
        values[f"{claim}-cells"] = counts(card, claim, FACE)
        values[f"{claim}-fit-verdict"] = card.verdict(claim, FIT) if card.of(claim, FIT) else "no such reading"
        values[f"{claim}-fit-cells"] = counts(card, claim, FIT)
    return {f"sc-{name}": text for name, text in values.items()}
