"""The scorecard's table and its forest plots."""

import math
import re
import textwrap

from matplotlib.ticker import MaxNLocator

from bnmem import rules
from bnmem.digits import significant
from bnmem.grid_cells import FACE, FIT
from bnmem.plots import COLOURS, Figure, panels, style
from bnmem.rules import RULES, Cell, Metric
from bnmem.scorecard import Scorecard
from bnmem.stats import factor, interval, of_cell

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

# Cells that prose quotes: name -> claim, metric, the cell's name.
QUOTED = {
    "flip-fashion": ("C1", "corrupted_accuracy", "fashion_mnist / lenet / 5 % flip, 5,000 images"),
    "flip-cifar10-lenet": ("C1", "corrupted_accuracy", "cifar10 / lenet / 5 % flip, 5,000 images"),
    "attack-fashion-resnet8": ("C4", "auc_gap_5_percent", "fashion_mnist / resnet8"),
    "attack-cifar10-resnet8": ("C4", "auc_gap_5_percent", "cifar10 / resnet8"),
    "attack-clean-fashion-resnet8": ("C5", "auc_gap_0_percent", "fashion_mnist / resnet8"),
    "noisy-cifar10-resnet8": ("C3", "log2_norm_batch_over_none", "cifar10 / resnet8 / 5 % flip, 5,000 images"),
    "flip-cifar10-resnet8": ("C1", "corrupted_accuracy", "cifar10 / resnet8 / 5 % flip, 5,000 images"),
}


def forest(card: Scorecard, claims: tuple[str, ...]) -> Figure:
    """Effect with 95 % interval of every cell, a row each; a column a metric, equal fit as hollow marks below.

    The dotted line is 0, the dashed one the rule's margin. An interval that leaves the panel ends in an arrow head.
    """
    metrics = [(claim, metric) for claim in claims for metric in RULES[claim].metrics]
    metrics = [(claim, m) for claim, m in metrics if any(c.metric == m.name for c in card.of(claim))]
    wheres = list(dict.fromkeys(c.where for claim in claims for c in card.of(claim)))
    with style():
        height = 1.5 + 0.27 * max(len(wheres), 1)
        figure, axes = panels(1, max(len(metrics), 1), width=10, height=height, sharey=True)
        for ax, (claim, metric) in zip(axes[0], metrics, strict=False):
            title = f"{claim}: {SHORT[metric.name]}" if len(claims) > 1 else SHORT[metric.name]
            ax.set_title("\n".join(textwrap.wrap(title, 72 // len(metrics))), fontsize=9.5)
            _column(ax, claim, metric, card, wheres)
        axes[0][0].set_yticks(range(len(wheres)), [proper(where) for where in wheres], fontsize=8.5)
        axes[0][0].set_ylim(len(wheres) - 0.4, -0.7)
    return figure


def proper(where: str) -> str:
    """A cell's name as people write it."""
    return re.sub(r"\w+", lambda word: PROPER.get(word[0], word[0]), where)


def unreached(cell: Cell) -> bool:
    """Whether neither arm memorized half of the corrupted samples under any seed: the speed-up is then zero by the
    rule, which says nothing about BN."""
    return cell.metric == "log2_epochs_to_half" and cell.low == cell.high == 0


def _column(ax, claim: str, metric: Metric, card: Scorecard, wheres: list[str]) -> None:
    marks = [
        (cell, wheres.index(cell.where) + below, fill)
        for reading, below, fill in ((FACE, 0.0, True), (FIT, 0.3, False))
        for cell in card.of(claim, reading)
        if cell.metric == metric.name and cell.where in wheres
    ]
    reach = [cell.effect for cell, _, _ in marks]
    low, high = min([*reach, 0, metric.margin]), max([*reach, 0, metric.margin])
    room = 0.35 * (high - low) or 0.1
    ax.set_xlim(low - room, high + room)
    for mark in marks:
        _mark(ax, metric, *mark)
    ax.axvline(0, color=COLOURS["grey"], lw=1, ls=":")
    if metric.margin:
        ax.axvline(metric.margin, color=COLOURS["grey"], lw=1, ls="--")
    ax.xaxis.set_major_locator(MaxNLocator(nbins=4))
    ax.tick_params(axis="x", labelsize=8.5)
    ax.grid(visible=False, axis="y")


def _mark(ax, metric: Metric, cell: Cell, y: float, fill: bool) -> None:
    name, marker = ("grey", "x") if unreached(cell) else STATUS[rules.cell_status(cell, metric)]
    colour = COLOURS[name]
    if not math.isnan(cell.low):
        ax.plot([cell.low, cell.high], [y, y], color=colour, lw=1.6 if fill else 1.0, solid_capstyle="butt")
        for end, beyond, head in zip(ax.get_xlim(), (cell.low, -cell.high), "<>", strict=True):
            if beyond < (end if head == "<" else -end):
                ax.plot([end], [y], head, ms=4, color=colour, clip_on=False, gid="beyond")
    ax.plot(cell.effect, y, marker, ms=5, color=colour, mfc=colour if fill else "white", zorder=3)


def scorecard_rows(card: Scorecard) -> list[dict[str, str]]:
    """Table: every claim, its verdict at face value and at equal fit, and how its cells fell."""
    rows = []
    for claim, rule in RULES.items():
        row = {
            "claim": claim,
            "the paper's statement": _as_the_book_spells(rule.states),
            "verdict": card.verdict(claim),
        }
        row["cells (holds / open / fails)"] = counts(card, claim, FACE)
        theorem = not rule.metrics
        row["at equal fit"] = "" if theorem else at_equal_fit(card, claim)
        row["cells at equal fit"] = counts(card, claim, FIT)
        rows.append(row)
    return rows


def _as_the_book_spells(text: str) -> str:
    for old, new in {
        "(gamma/sigma)^2": "(γ/σ)²",
        "normalisation": "normalization",
        "regulariser": "regularizer",
    }.items():
        text = text.replace(old, new)
    return text


def at_equal_fit(card: Scorecard, claim: str) -> str:
    """The verdict at equal fit, or why there is none: the claim has no such reading, or no cell could be read so."""
    if card.of(claim, FIT):
        return card.verdict(claim, FIT)
    return "no such reading" if claim == "C8" else "no cell"


def counts(card: Scorecard, claim: str, reading: str, metric: str | None = None) -> str:
    """ "9 / 4 / 2": how many cells, of one metric or of all, hold, are open and fail."""
    metrics = {m.name: m for m in RULES[claim].metrics if metric in (None, m.name)}
    cells = [cell for cell in card.of(claim, reading) if cell.metric in metrics]
    found = [rules.cell_status(cell, metrics[cell.metric]) for cell in cells]
    return " / ".join(str(found.count(status)) for status in STATUS) if found else ""


def cell_rows(card: Scorecard, claim: str) -> list[dict[str, str]]:
    """Table: every cell of a claim with its effect in both readings. Log ratios are shown as factors."""
    rows = []
    for metric in RULES[claim].metrics:
        at_fit = {c.where: c for c in card.of(claim, FIT) if c.metric == metric.name}
        for cell in card.of(claim):
            if cell.metric == metric.name:
                rows.append({
                    "cell": proper(cell.where),
                    "learning rates, BN / none": _rates(card, cell),
                    "metric": SHORT[metric.name].replace("log2 ", "factor: "),
                    "least effect": significant(2**metric.margin, 3) if _is_log(metric.name) else f"{metric.margin:g}",
                    "effect": _text(cell),
                    "status": _status(cell, metric),
                    "at equal fit": _text(at_fit.get(cell.where)),
                    "status there": _status(at_fit.get(cell.where), metric),
                })  # fmt: skip
    return rows


def _rates(card: Scorecard, cell: Cell) -> str:
    return " / ".join(f"{rate:g}" for rate in card.rates.get(cell.where, {}).values())


def _status(cell: Cell | None, metric: Metric) -> str:
    return "" if cell is None else "fails (neither got there)" if unreached(cell) else rules.cell_status(cell, metric)


def _is_log(metric: str) -> bool:
    return metric.startswith("log2")


def _text(cell: Cell | None) -> str:
    if cell is None:
        return ""
    return factor(of_cell(cell)) if _is_log(cell.metric) else interval(of_cell(cell))


def glue_values(card: Scorecard) -> dict[str, str]:
    """Verdicts, counts and cells that prose quotes, by name."""
    values = {"records": str(len(card.used))}
    values |= {f"tier-{tier}": f"{done} of {rows}" for tier, (done, rows) in card.coverage.items()}
    for claim, rule in RULES.items():
        values[f"{claim}-verdict"] = card.verdict(claim)
        values[f"{claim}-cells"] = counts(card, claim, FACE)
        values[f"{claim}-fit-verdict"] = at_equal_fit(card, claim)
        values[f"{claim}-fit-cells"] = counts(card, claim, FIT)
        held = counts(card, claim, FIT).partition(" /")[0]
        values |= {f"{claim}-fit-held": held or "0", f"{claim}-fit-all": str(len(card.of(claim, FIT)))}
        for metric in rule.metrics:
            values[f"{claim}-{metric.name}"] = counts(card, claim, FACE, metric.name)
            values[f"{claim}-fit-{metric.name}"] = counts(card, claim, FIT, metric.name)
        values[f"{claim}-unreached"] = str(sum(map(unreached, card.of(claim))))
    for name, (claim, metric, where) in QUOTED.items():
        for reading, end in ((FACE, ""), (FIT, "-fit")):
            found = [c for c in card.of(claim, reading) if (c.metric, c.where) == (metric, where)]
            values[f"cell-{name}{end}"] = _text(found[0]) if found else "no common level" if end else "not measured"
        values[f"cell-{name}-rates"] = " and ".join(f"{rate:g}" for rate in card.rates.get(where, {}).values())
    return {f"sc-{name}": text for name, text in values.items()}
