"""The figures of membership inference."""

import numpy as np

from bnmem import exp_membership_inference as exp
from bnmem import shadows
from bnmem.plots import COLOURS, LABELS, LINES, MARKERS, Figure, panels, style

GROUPS = {"all": "all samples", "outliers": "outliers", "clean": "clean samples"}
CLASSES = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot")
KINDS = {"flip": "flipped labels", "ood": "foreign images"}


def pool_name(rate: float, corruption: str) -> str:
    """ "5 % flipped labels" or "no outliers added"."""
    return f"{100 * rate:g} % {KINDS[corruption]}" if rate else "no outliers added"


def rates(result: exp.Result) -> list[float]:
    return list(dict.fromkeys(result.settings.rates))


def roc(result: exp.Result) -> Figure:
    """ROC on two logarithmic axes, scores pooled over targets; solid: all samples, and the outliers' beside it."""
    with style():
        figure, axes = panels(1, len(rates(result)), height=4.2, sharey=True)
        for ax, rate in zip(axes[0], rates(result), strict=True):
            for arm in result.arms:
                arrays = result.runs[rate, arm].arrays
                ax.plot(arrays["roc_fpr"], arrays["roc_all"], LINES[arm], color=COLOURS[arm], label=LABELS[arm])
                if "outliers" in exp.groups(result, rate):
                    ax.plot(arrays["roc_fpr"], arrays["roc_outliers"], LINES[arm], color=COLOURS[arm], lw=1, alpha=0.6)
            ax.plot([1e-4, 1], [1e-4, 1], color=COLOURS["grey"], lw=1, ls=":")
            ax.set(xscale="log", yscale="log", xlim=(1e-4, 1), ylim=(1e-4, 1.1), xlabel="false positive rate")
            ax.set_title(pool_name(rate, result.settings.corruption))
        axes[0][0].set_ylabel("true positive rate")
        axes[0][0].legend(loc="lower right")
    return figure


def gaps(result: exp.Result) -> Figure:
    """AUC at the last epoch by pool and group: a dot a pair of models, the mean a bar; above, the paired difference."""
    with style():
        figure, axes = panels(1, len(rates(result)), height=4.6, sharey=True)
        for ax, rate in zip(axes[0], rates(result), strict=True):
            found = exp.groups(result, rate)
            for i, group in enumerate(found):
                for j, arm in enumerate(result.arms):
                    pairs = exp.auc(result, rate, arm, group)[-1].reshape(-1, 2).mean(axis=1)
                    x = i * (len(result.arms) + 1) + j
                    jitter = np.linspace(-0.25, 0.25, len(pairs))
                    label = None if i else LABELS[arm]
                    ax.plot(x + jitter, pairs, MARKERS[arm], ms=4, color=COLOURS[arm], alpha=0.7, mew=0, label=label)
                    ax.plot([x - 0.35, x + 0.35], [pairs.mean()] * 2, color=COLOURS[arm], lw=3)
                gap = exp.difference(result, rate, group)
                text = f"{gap.mean:+.3f}\n[{gap.low:+.3f},\n{gap.high:+.3f}]"
                middle = i * (len(result.arms) + 1) + (len(result.arms) - 1) / 2
                ax.text(middle, 1.02, text, ha="center", va="bottom", fontsize=9, transform=ax.get_xaxis_transform())
            ticks = [i * (len(result.arms) + 1) + (len(result.arms) - 1) / 2 for i in range(len(found))]
            ax.set_xticks(ticks, [group for group in found])
            ax.axhline(0.5, color=COLOURS["grey"], lw=1, ls=":")
            ax.grid(axis="x", visible=False)
            ax.set_title(pool_name(rate, result.settings.corruption), pad=52)
        axes[0][0].set_ylabel("AUC of LiRA")
        axes[0][-1].legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def equal_fit(result: exp.Result) -> Figure:
    """The control: AUC over all samples against the fit to clean members; one dot a scored epoch, one line an arm."""
    with style():
        figure, axes = panels(1, len(rates(result)), height=4.2, sharey=True)
        for ax, rate in zip(axes[0], rates(result), strict=True):
            for arm in result.arms:
                fit = exp.accuracy(result, rate, arm, "in_clean").mean(axis=1)
                score = exp.auc(result, rate, arm).mean(axis=1)
                ax.plot(fit, score, LINES[arm], marker=MARKERS[arm], ms=5, lw=1, color=COLOURS[arm], label=LABELS[arm])
            control = exp.equal_fit(result, rate)
            if control:
                ax.axvline(np.mean(control.fit), color=COLOURS["grey"], lw=1, ls=":")
            ax.set_title(pool_name(rate, result.settings.corruption))
            ax.set_xlabel("accuracy on clean members")
        axes[0][0].set_ylabel("AUC of LiRA, all samples")
        axes[0][0].legend(loc="upper left")
    return figure


def gallery(result: exp.Result, columns: int = 10) -> Figure:
    """The images that the arm under study exposes most and least, and the most exposed outliers; by index elsewhere.

    Rows one and two from the pool with the fewest outliers, row three from the one with the most. The number is d'.
    """
    arm, low, high = result.settings.norm, min(rates(result)), max(rates(result))
    rows = [("most exposed", low, 0, False), ("least exposed", low, 0, True)]
    if "outliers" in exp.groups(result, high):
        rows.append(("most exposed\noutliers", high, 1, False))
    with style():
        figure, axes = panels(len(rows), columns, height=1.75 * len(rows))
        for line, (name, rate, kind, least) in zip(axes, rows, strict=True):
            record = result.runs[rate, arm]
            chosen = np.flatnonzero((record.arrays["group"] > 0) == kind)
            risk = np.abs(record.arrays["d_prime"][chosen]) if least else -record.arrays["d_prime"][chosen]
            for ax, i in zip(line, chosen[np.argsort(risk, kind="stable")], strict=False):
                _image(ax, result, rate, record, i)
            for ax in line:
                ax.set(xticks=[], yticks=[])
                ax.grid(visible=False)
                for side in ax.spines.values():
                    side.set_visible(False)
            line[0].set_ylabel(name, fontsize=10)
    return figure


def _image(ax, result: exp.Result, rate: float, record, i: int) -> None:
    """One image with its trained label and d'; its official index where the set's images are not shown."""
    _, bad = shadows.pool(exp.arm_of(result.settings, rate, result.settings.norm))
    label, true = (int(record.arrays[name][i]) for name in ("label", "true_label"))
    if result.settings.dataset == "fashion_mnist":
        ax.imshow(bad.images[i], cmap="gray_r")
        name, truth = CLASSES[label], CLASSES[true] if true >= 0 else "foreign"
    else:
        ax.text(0.5, 0.5, f"no. {record.arrays['index'][i]}", ha="center", va="center", fontsize=9)
        name, truth = str(label), str(true)
    trained = name if label == true else f"{name}\n(a {truth})"
    ax.set_title(trained, fontsize=8, loc="center", pad=3)
    ax.set_xlabel(f"{round(float(record.arrays['d_prime'][i]), 1) + 0.0:.1f}", fontsize=9)
