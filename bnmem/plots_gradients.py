"""The figures and tables of gradient norms."""

import numpy as np

from bnmem import exp_gradient_norms as exp
from bnmem import rules
from bnmem.grads import DEFINITIONS
from bnmem.plots import COLOURS, LABELS, LINES, Figure, named, panels, style
from bnmem.stats import Interval, factor, interval, of_cell, t_interval

MEANS = {
    "eval": "the deployed net, running statistics",
    "frozen": "this batch's mean and variance as constants",
    "loss": "the sample's own loss, through the shared statistics",
    "param": "the batch's loss, by the sample's private copy of the weights",
}
CLOSE = 0.2  # a measured ratio within a fifth of the predicted one counts as close to it
_DEFINITION_LINES = dict(zip(DEFINITIONS, ("-", "--", "-.", ":"), strict=True))


def distributions(result: exp.Result) -> Figure:
    """Histograms of log10 norms at three checkpoints, noisy and clean samples of all seeds, `norm` above `against`."""
    at = exp.epochs(result)
    inside = np.flatnonzero((at > 0) & (at <= result.settings.compared))
    shown = dict.fromkeys((inside[0], inside[len(inside) // 2], inside[-1]))
    arms = (result.settings.norm, result.settings.against)
    with style():
        figure, axes = panels(2, len(shown), height=5.4, sharex=True)
        for row, arm in zip(axes, arms, strict=True):
            for ax, checkpoint in zip(row, shown, strict=True):
                for noisy, name, colour in ((False, "clean", "typical"), (True, "noisy", "outlier")):
                    values = [exp.norm_of(r)[checkpoint, r.arrays["noisy"] == noisy] for r in result.runs[arm]]
                    logs = np.log10(np.maximum(np.concatenate(values), 1e-12))
                    options = {"bins": np.linspace(-6, 3, 46), "density": True, "color": COLOURS[colour]}
                    ax.hist(logs, alpha=0.25, **options)
                    ax.hist(logs, histtype="step", lw=1.8, label=name, **options)
                ax.set_title(f"{LABELS[arm]}, epoch {at[checkpoint]:g}")
                ax.set_yticks([])
                ax.grid(visible=False)
        for ax in axes[-1]:
            ax.set_xlabel("log10 of the gradient norm")
        axes[0][0].legend(loc="upper left")
    return figure


def definitions(result: exp.Result) -> Figure:
    """C3 in all definitions: the ratio of medians, noisy over clean in the BN net, and noisy BN over noisy no norm."""
    at = exp.epochs(result)
    with style():
        figure, axes = panels(1, 2, height=4.2)
        for ax, curves, title in (
            (
                axes[0][0],
                lambda d: exp.noisy_over_clean(result, result.settings.norm, d),
                "noisy over clean, in one net",
            ),
            (axes[0][1], lambda d: exp.over(result, d), f"noisy: {_name(result)}"),
        ):
            for d in DEFINITIONS:
                ax.plot(at, 2 ** curves(d).mean(axis=0), _DEFINITION_LINES[d], label=d)
            ax.axhline(1, color=COLOURS["grey"], lw=1, ls=":")
            ax.axvline(result.settings.compared, color=COLOURS["grey"], lw=1, ls=":")
            ax.set(yscale="log", xlabel="epoch", title=title)
        axes[0][0].set_ylabel("ratio of median norms")
        axes[0][1].legend(title="definition")
    return figure


def detection(result: exp.Result) -> Figure:
    """What the norm tells: noisy from clean (AUROC), and who will be memorized (rank correlation)."""
    at = exp.epochs(result)
    with style():
        figure, axes = panels(1, 2, height=4.2)
        for arm in result.arms:
            look = {
                "color": COLOURS[arm],
                "ls": LINES[arm],
                "label": LABELS[arm],
            }
            for ax, curves in ((axes[0][0], exp.auroc(result, arm)), (axes[0][1], exp.foretells(result, arm))):
                ax.plot(at, curves.mean(axis=0), **look)
                ax.plot(at, curves.T, **look | {"label": None, "lw": 0.7, "alpha": 0.4})
        for ax, neutral in zip(axes[0], (0.5, 0.0), strict=True):
            ax.axhline(neutral, color=COLOURS["grey"], lw=1, ls=":")
            ax.axvline(result.settings.compared, color=COLOURS["grey"], lw=1, ls=":")
            ax.set_xlabel("epoch")
        axes[0][0].set(title="AUROC: noisy from clean by the norm alone", ylim=(0, 1.02))
        axes[0][1].set(title=f"rank correlation with the score at epoch {result.settings.compared}", ylim=(-1, 1))
        axes[0][0].legend(loc="lower right")
    return figure


def theory(result: exp.Result) -> Figure:
    """Left: the control at equal fit. Right: the last convolution's ratio, measured and as one channel predicts."""
    at = exp.epochs(result)
    with style():
        figure, axes = panels(1, 2, height=4.2)
        left, right = axes[0]
        for arm in result.arms:
            look = {"color": COLOURS[arm], "label": LABELS[arm], "ls": "", "marker": "o"}
            for seed, record in enumerate(result.runs[arm]):
                fit, norm = record.numbers["accuracy"]["clean"][1:], 2 ** exp.log2_median(record, True)[1:]
                left.plot(
                    fit, norm, **look | {"ms": 4.5, "alpha": 0.7, "mew": 0, "label": None if seed else look["label"]}
                )
        left.set(yscale="log", xlabel="accuracy on clean training images", ylabel="median norm of noisy samples")
        left.set_title("at equal fit")
        left.legend(loc="lower left")
        ratios = [r.numbers["ratio"] for r in result.runs[result.settings.norm]]
        if None not in ratios[0]:
            # the running sigma of an untrained net is 1, whatever its activations: leave it out
            right.plot(
                at[at > 0], np.mean(ratios, axis=0)[at > 0], color=COLOURS["grey"], lw=3, label="γ/σ, last BN layer"
            )
        for other in result.arms[1:]:
            curves = exp.over(result, "frozen", other, "last")
            label = f"measured, over {LABELS[other]}"
            right.plot(at, 2 ** curves.mean(axis=0), ls=LINES[other], color=COLOURS[other], label=label)
        right.axhline(1, color=COLOURS["grey"], lw=1, ls=":")
        right.set(yscale="log", xlabel="epoch", title="last convolution, noisy samples")
        right.legend(loc="best", fontsize=9)
    return figure


def definition_rows(result: exp.Result) -> list[dict[str, str]]:
    """Table: the four definitions, and what C3 looks like in each."""
    rows = []
    for d in DEFINITIONS:
        inside, across = exp.cells(result, d)["C3"]
        row = {"definition": d, "meaning": MEANS[d]}
        row |= {"noisy over clean": factor(of_cell(inside)), f"noisy, {_name(result)}": factor(of_cell(across))}
        rows.append(row | {"C3": " / ".join(_statuses(result, d))})
    return rows


def equal_fit_rows(result: exp.Result) -> list[dict[str, str]]:
    """Table: the noisy samples' median norms at equal fit, `norm` over the other arms, as factors, at every level."""
    rows = []
    for other in result.arms[1:]:
        for level, gap in exp.equal_fit(result, "eval", other).items():
            cell = rules.Cell("log2_norm_batch_over_none", "", gap.mean, gap.low, gap.high)
            row = {"against": LABELS[other], "clean accuracy": f"{level:g}", "ratio": factor(gap)}
            rows.append(row | {"by the rule of C3": rules.cell_status(cell, _metrics()[cell.metric])})
    return rows


def detection_rows(result: exp.Result) -> list[dict[str, str]]:
    """Table: AUROC and rank correlation at the checkpoint where the norm tells most, by the mean over seeds."""
    inside = np.flatnonzero((exp.epochs(result) > 0) & (exp.epochs(result) <= result.settings.compared))
    rows = []
    for arm in result.arms:
        area, rank = exp.auroc(result, arm)[:, inside], exp.foretells(result, arm)[:, inside]
        best = int(area.mean(axis=0).argmax())
        row = {"arm": LABELS[arm], "best epoch": f"{exp.epochs(result)[inside][best]:g}"}
        row["AUROC there"] = interval(t_interval(area[:, best]), sign="")
        row["rank correlation there"] = interval(t_interval(rank[:, best]))
        rows.append(row | {f"AUROC at epoch {result.settings.compared}": interval(t_interval(area[:, -1]), sign="")})
    return rows


def verdict_rows(result: exp.Result) -> list[dict[str, str]]:
    """Table: each metric of the scorecard's rules, its least effect, the effect, and whether it holds in this cell."""
    rows = []
    for cell in exp.cells(result)["C3"]:
        metric = _metrics()[cell.metric]
        effect = interval(Interval(cell.effect, cell.low, cell.high, result.settings.seeds))
        row = {
            "claim": "C3",
            "reading": "equal epochs, eval",
            "metric": named(metric.says, result.arms),
            "least effect": f"{metric.margin:g}",
        }
        rows.append(row | {"effect": effect, "verdict": rules.cell_status(cell, metric)})
    return rows


def record_rows(result: exp.Result) -> list[dict[str, str]]:
    """Table: where the numbers come from."""
    return [
        {"what": f"{LABELS[arm]}, seed {seed}", "record": record.line}
        for arm, rows in result.runs.items()
        for seed, record in enumerate(rows)
    ]


def glue_values(result: exp.Result) -> dict[str, str]:
    """The numbers that the chapter's prose quotes, as text, by name."""
    values = {"epoch": str(result.settings.compared), "seeds": str(result.settings.seeds)}
    for d in DEFINITIONS:
        inside, across = exp.cells(result, d)["C3"]
        values |= {f"{d}-inside": factor(of_cell(inside)), f"{d}-across": factor(of_cell(across))}
        values[f"{d}-status"] = " / ".join(_statuses(result, d))
    for i, half in enumerate(("first", "second")):
        by_status = {}
        for d in DEFINITIONS:
            by_status.setdefault(_statuses(result, d)[i], []).append(d)
        values[f"{half}-half"] = ", ".join(
            f"{status} under {'all four' if len(ds) == len(DEFINITIONS) else ' and '.join(ds)}"
            for status, ds in by_status.items()
        )
    common = list(exp.equal_fit(result).items())
    for name, at in (("early", common[:1]), ("late", common[-1:])):
        values[f"{name}-level"] = f"{at[0][0]:g}" if at else "no level in common"
        values[f"{name}-fit"] = factor(at[0][1]) if at else "not comparable"
    apart = [i for i, (_, gap) in enumerate(common) if not gap.low <= 0 <= gap.high]
    alike = common[apart[-1] + 1 if apart else 0 :]  # from here on every interval contains 1
    values["alike-from"] = f"{alike[0][0]:g}" if alike else "no level"
    values["agree"] = f"{100 * (2 ** _agreement(result) - 1):.0f} %"
    for name, epoch in zip(("first", "last"), _close_to_theory(result), strict=True):
        values[f"theory-{name}"] = f"{epoch:g}" if np.isfinite(epoch) else "none"
    theirs = exp.mean_until_compared(result, exp.noisy_over_clean(result, result.settings.against))
    values["inside-theirs"] = factor(theirs)
    for row, name in zip(detection_rows(result), ("ours", "theirs"), strict=False):
        values[f"auroc-{name}"], values[f"auroc-{name}-epoch"] = row["AUROC there"], row["best epoch"]
    values["verdict"] = rules.verdict("C3", exp.cells(result)["C3"])
    return {f"gn-{name}": text for name, text in values.items()}


def _metrics() -> dict[str, rules.Metric]:
    return {metric.name: metric for metric in rules.RULES["C3"].metrics}


def _statuses(result: exp.Result, definition: str) -> list[str]:
    return [rules.cell_status(cell, _metrics()[cell.metric]) for cell in exp.cells(result, definition)["C3"]]


def _agreement(result: exp.Result) -> float:
    """log2 of the largest factor between any two of eval, frozen and loss, in noisy over clean norms of the net under
    study, at a checkpoint after initialization and up to the last compared epoch."""
    at = exp.epochs(result)
    curves = [exp.noisy_over_clean(result, result.settings.norm, d).mean(axis=0) for d in ("eval", "frozen", "loss")]
    return float(np.ptp(curves, axis=0)[(at > 0) & (at <= result.settings.compared)].max())


def _close_to_theory(result: exp.Result) -> tuple[float, float]:
    """First and last epoch of the longest run of checkpoints at which the last convolution's measured ratio lies within
    CLOSE of the predicted one; NaN where there is none, or no BN layer."""
    ratios = [r.numbers["ratio"] for r in result.runs[result.settings.norm]]
    best = run = []
    if None not in ratios[0]:
        measured = 2 ** exp.over(result, "frozen", what="last").mean(axis=0)
        for epoch, gap in zip(exp.epochs(result), abs(measured / np.mean(ratios, axis=0) - 1), strict=True):
            run = [*run, epoch] if epoch > 0 and gap <= CLOSE else []
            best = max(best, run, key=len)
    return (best[0], best[-1]) if best else (np.nan, np.nan)


def _name(result: exp.Result) -> str:
    return " over ".join(LABELS[arm] for arm in (result.settings.norm, result.settings.against))
