"""The figures of forced memorization."""

import numpy as np

from bnmem import exp_forced_memorization as exp
from bnmem.plots import COLOURS, LABELS, LINES, MARKERS, Figure, panels, style

KINDS = {"flip": "flipped labels", "ood": "out-of-distribution images"}
TUNING = {"same": "same learning rate", "best": "each at its best"}


def curves(result: exp.Result, tuning: str = "same") -> Figure:
    """Accuracy and loss on the corrupted samples over epochs; thin lines are seeds, thick ones their mean."""
    kinds = result.settings.corruptions
    with style():
        figure, axes = panels(2, len(kinds), height=6.2, sharex=True, sharey="row")
        for column, kind in enumerate(kinds):
            for row, what in enumerate(("accuracy", "loss")):
                ax = axes[row][column]
                for arm in result.arms:
                    _seeds_and_mean(ax, result.runs[tuning, kind, arm], "corrupted", what, arm)
                ax.axvline(result.settings.epochs, color=COLOURS["grey"], lw=1, ls=":")
            axes[0][column].set_title(KINDS[kind])
            axes[0][column].axhline(0.5, color=COLOURS["grey"], lw=1, ls=":")
            axes[0][column].set_ylim(-0.02, 1.02)
            axes[1][column].set_xlabel("epoch")
        axes[0][0].set_ylabel("accuracy on corrupted")
        axes[1][0].set_ylabel("loss on corrupted")
        axes[0][0].legend(loc="lower right")
    return figure


def finals(result: exp.Result) -> Figure:
    """Corrupted accuracy at the epoch of comparison: every seed a dot, the mean a bar; the paired difference above."""
    kinds = result.settings.corruptions
    with style():
        figure, axes = panels(1, len(kinds), height=4.2, sharey=True)
        for ax, kind in zip(axes[0], kinds, strict=True):
            for i, tuning in enumerate(exp.TUNINGS):
                for j, arm in enumerate(result.arms):
                    values = exp.at_epoch(result, tuning, kind, arm)
                    x = 3 * i + j
                    jitter = np.linspace(-0.15, 0.15, len(values)) if len(values) > 1 else np.zeros(1)
                    ax.plot(
                        x + jitter, values, MARKERS[arm], ms=7, color=COLOURS[arm], label=LABELS[arm] if not i else None
                    )
                    ax.plot([x - 0.3, x + 0.3], [values.mean()] * 2, color=COLOURS[arm], lw=3, alpha=0.6)
                gap = exp.difference(result, tuning, kind)
                text = f"{gap.mean:+.2f}\n[{gap.low:+.2f}, {gap.high:+.2f}]"
                ax.text(
                    3 * i + 0.5, 1.04, text, ha="center", va="bottom", fontsize=10, transform=ax.get_xaxis_transform()
                )
            ax.set_xticks([0.5, 3.5], [TUNING[t] for t in exp.TUNINGS])
            ax.set_ylim(0, 1.02)
            ax.grid(axis="x", visible=False)
            ax.set_title(KINDS[kind], pad=42)
        axes[0][0].set_ylabel(f"accuracy on corrupted, epoch {result.settings.epochs}")
        axes[0][-1].legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def equal_fit(result: exp.Result, tuning: str = "same") -> Figure:
    """The control: corrupted against clean-training accuracy, both arms in one plot, every evaluation a dot."""
    kinds = result.settings.corruptions
    with style():
        figure, axes = panels(1, len(kinds), height=4.4, sharey=True)
        for ax, kind in zip(axes[0], kinds, strict=True):
            _against_clean(ax, result, tuning, kind)
            ax.set_title(KINDS[kind])
        axes[0][0].set_ylabel("accuracy on corrupted")
        axes[0][0].legend(loc="upper left")
    return figure


def cover(result: exp.Result) -> Figure:
    """The result in one picture: flipped labels at equal epochs (left) and at equal fit (right)."""
    with style():
        figure, axes = panels(1, 2, height=4.2, sharey=True)
        left, right = axes[0]
        for arm in result.arms:
            _seeds_and_mean(left, result.runs["same", "flip", arm], "corrupted", "accuracy", arm)
        _against_clean(right, result, "same", "flip")
        left.axvline(result.settings.epochs, color=COLOURS["grey"], lw=1, ls=":")
        left.set(title="At equal epochs, BN is ahead on average", xlabel="epoch", ylabel="accuracy on flipped labels")
        right.set_title("At equal fit, the arms overlap")
        left.legend(loc="lower right")
    return figure


def bought(result: exp.Result, tuning: str = "same") -> Figure:
    """What BN bought and what moved meanwhile: clean-training and test accuracy over epochs, gamma/sigma a layer."""
    kind = result.settings.corruptions[0]
    with style():
        figure, axes = panels(1, 3, height=3.9)
        left, middle, right = axes[0]
        for arm in result.arms:
            _seeds_and_mean(left, result.runs[tuning, kind, arm], "clean", "accuracy", arm)
            _seeds_and_mean(middle, result.runs[tuning, kind, arm], "test", "accuracy", arm)
        left.set_title("clean training images")
        middle.set_title("test images")
        for ax in (left, middle):
            ax.set_ylim(0.4, 1.01)
            ax.axvline(result.settings.epochs, color=COLOURS["grey"], lw=1, ls=":")
        left.set_ylabel("accuracy")
        left.legend(loc="lower right")
        ratios = [
            r.numbers["ratio"] for arm in result.arms for r in result.runs[tuning, kind, arm] if r.numbers["ratio"]
        ]
        epoch = result.runs[tuning, kind, result.arms[0]][0].numbers["epoch"]
        for i, layer in enumerate(ratios[0] if ratios else []):
            mean = np.mean([ratio[layer] for ratio in ratios], axis=0)
            right.plot(epoch, mean, ["-", "--", "-.", ":"][i % 4], color=COLOURS["batch"], label=layer)
        right.axhline(1, color=COLOURS["grey"], lw=1, ls=":")
        right.set_ylim(bottom=0)
        right.set_title("mean |γ|/σ of a layer" if ratios else "no BN layer, no ratio")
        if ratios:
            right.legend(loc="lower right")
        for ax in axes[0]:
            ax.set_xlabel("epoch")
    return figure


def _against_clean(ax, result: exp.Result, tuning: str, kind: str) -> None:
    for arm in result.arms:
        for seed, record in enumerate(result.runs[tuning, kind, arm]):
            clean, bad = (exp.curve(record, group)[1] for group in ("clean", "corrupted"))
            label = LABELS[arm] if not seed else None
            ax.plot(clean, bad, MARKERS[arm], ms=4.5, color=COLOURS[arm], alpha=0.65, mew=0, label=label)
    control = exp.equal_fit(result, tuning, kind)
    if control:
        ax.axvline(control[0], color=COLOURS["grey"], lw=1, ls=":")
    ax.set(xlabel="accuracy on clean training images", xlim=(0.4, 1.01), ylim=(-0.02, 1.02))


def _seeds_and_mean(ax, rows, group: str, what: str, arm: str) -> None:
    lines = [exp.curve(record, group, what) for record in rows]
    for epoch, values in lines:
        ax.plot(epoch, values, LINES[arm], color=COLOURS[arm], lw=0.8, alpha=0.45)
    mean = np.mean([values for _, values in lines], axis=0)
    ax.plot(lines[0][0], mean, LINES[arm], color=COLOURS[arm], label=LABELS[arm])
