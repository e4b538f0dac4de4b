"""The figures and tables of forced memorization."""

import numpy as np

from bnmem import exp_forced_memorization as exp
from bnmem import rules
from bnmem.plots import COLOURS, LABELS, LINES, MARKERS, Figure, named, panels, style
from bnmem.stats import Interval, interval, t_interval

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
        left.set(title="At equal epochs, BN has memorized more", xlabel="epoch", ylabel="accuracy on flipped labels")
        right.set_title("At equal fit, the arms lie close together")
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


def face_value_rows(result: exp.Result) -> list[dict[str, str]]:
    """Table: accuracy on the corrupted samples at the epoch of comparison, and the epochs until half are memorized."""
    rows = []
    for kind in result.settings.corruptions:
        for tuning in exp.TUNINGS:
            row = {"corrupted by": KINDS[kind], "tuning": f"{TUNING[tuning]} ({_rates(result, tuning, kind)})"}
            for arm in result.arms:
                row[f"accuracy, {LABELS[arm]}"] = f"{exp.at_epoch(result, tuning, kind, arm).mean():.2f}"
            row["difference"] = interval(exp.difference(result, tuning, kind))
            for arm in result.arms:
                row[f"epochs to half, {LABELS[arm]}"] = _epochs(
                    exp.epochs_to(result, tuning, kind, arm, "corrupted", 0.5)
                )
            row["log2 speed-up"] = interval(exp.log2_speedup(result, tuning, kind))
            rows.append(row)
    return rows


def equal_fit_rows(result: exp.Result) -> list[dict[str, str]]:
    """Table: the control. Empty where the arms have no level of clean-training accuracy in common."""
    rows = []
    for kind in result.settings.corruptions:
        for tuning in exp.TUNINGS:
            control = exp.equal_fit(result, tuning, kind)
            if control:
                level, values, gap = control
                row = {"corrupted by": KINDS[kind], "tuning": TUNING[tuning], "clean accuracy": f"{level:g}"}
                row |= {
                    f"accuracy, {LABELS[arm]}": f"{v.mean():.2f}" for arm, v in zip(result.arms, values, strict=True)
                }
                row |= {"difference at equal fit": interval(gap)}
                row |= {"difference at equal epochs": interval(exp.difference(result, tuning, kind))}
                rows.append(row)
    return rows


def bought_rows(result: exp.Result) -> list[dict[str, str]]:
    """Table: what normalisation bought: epochs to fit the clean images, test accuracy with early stopping."""
    rows = []
    for kind in result.settings.corruptions:
        for tuning in exp.TUNINGS:
            row = {"corrupted by": KINDS[kind], "tuning": TUNING[tuning]}
            for arm in result.arms:
                row[f"epochs to 0.8 clean, {LABELS[arm]}"] = _epochs(
                    exp.epochs_to(result, tuning, kind, arm, "clean", 0.8)
                )
            tests = [exp.test_accuracy(result, tuning, kind, arm) for arm in result.arms]
            for arm, values in zip(result.arms, tests, strict=True):
                row[f"test accuracy, {LABELS[arm]}"] = f"{values.mean():.3f}"
            row["test difference"] = interval(t_interval(tests[0] - tests[1]), 3)
            rows.append(row)
    return rows


def record_rows(result: exp.Result) -> list[dict[str, str]]:
    """Table: where the numbers come from."""
    rows = [{"what": f"search, {LABELS[arm]}", "record": record.line} for arm, record in result.searches.items()]
    for (tuning, kind, arm), found in result.runs.items():
        what = f"{KINDS[kind]}, {LABELS[arm]}, {TUNING[tuning]}"
        rows += [{"what": f"{what}, seed {seed}", "record": record.line} for seed, record in enumerate(found)]
    return rows


def _rates(result: exp.Result, tuning: str, kind: str) -> str:
    rates = [result.settings.lr if tuning == "same" else result.searches[arm].numbers["best"] for arm in result.arms]
    return " / ".join(f"{rate:g}" for rate in dict.fromkeys(rates))


def _epochs(rows: list[tuple[float, bool]]) -> str:
    return ", ".join(f"{epoch:.0f}" if reached else f"> {epoch:.0f}" for epoch, reached in rows)


def verdict_rows(result: exp.Result) -> list[dict[str, str]]:
    """Table: each metric of the scorecard's rules, its margin, the effect, and whether it holds in this cell."""
    rows = []
    for reading, by_claim in (("same settings", exp.cells(result)), ("each at its best", exp.cells(result, "best"))):
        for claim, found in by_claim.items():
            metrics = {metric.name: metric for metric in rules.RULES[claim].metrics}
            for cell in found:
                metric = metrics[cell.metric]
                effect = interval(Interval(cell.effect, cell.low, cell.high, result.settings.seeds))
                row = {
                    "claim": claim,
                    "reading": reading,
                    "metric": named(metric.says, result.arms),
                    "margin": f"{metric.margin:g}",
                }
                rows.append(row | {"effect": effect, "verdict": rules.cell_status(cell, metric)})
    return rows


def glue_values(result: exp.Result) -> dict[str, str]:
    """The numbers that the chapter's prose quotes, as text, by name."""
    values = {"epoch": str(result.settings.epochs), "seeds": str(result.settings.seeds)}
    for kind in result.settings.corruptions:
        for tuning in exp.TUNINGS:
            name = f"{kind}-{tuning}"
            for arm, role in zip(result.arms, ("ours", "theirs"), strict=True):
                values[f"{name}-{role}"] = f"{exp.at_epoch(result, tuning, kind, arm).mean():.2f}"
            values[f"{name}-gap"] = interval(exp.difference(result, tuning, kind))
            control = exp.equal_fit(result, tuning, kind)
            values[f"{name}-level"] = f"{control[0]:g}" if control else "none in common"
            values[f"{name}-fit-gap"] = interval(control[2]) if control else "not comparable"
            tests = [exp.test_accuracy(result, tuning, kind, arm) for arm in result.arms]
            values[f"{name}-test-gap"] = interval(t_interval(tests[0] - tests[1]), 3)
        values[f"{kind}-verdict"] = rules.verdict(exp.CLAIMS[kind], exp.cells(result)[exp.CLAIMS[kind]])
    return {f"fm-{name}": text for name, text in values.items()}
