"""The figures of the regularization experiment."""

import numpy as np
from matplotlib.patches import Rectangle

from bnmem import labels
from bnmem import regularization_measures as measures
from bnmem.plots import COLOURS, LABELS, Figure, panels, style
from bnmem.regularization import PARTNERS, Result, middle, points

_FAMILIES = {
    "BN": (COLOURS["batch"], "o"),
    "early stopping": (COLOURS["batch"], "o"),
    "penalty": ("#B07800", "s"),
    "penalty through sigma": ("#B07800", "^"),
    "penalty through both": ("#B07800", "D"),
    "weight decay": (COLOURS["instance"], "P"),
    "dropout": (COLOURS["frozen"], "X"),
    "DP-SGD": (COLOURS["grey"], "*"),
}
_NORMS = {name: LABELS[name] for name in PARTNERS}
_LAYER_MARKS = "osD^vPX*"


def look(family: str, name: str) -> tuple[str, str]:
    """Colour and marker of an arm."""
    return (COLOURS[name], "o") if family == "norm" else _FAMILIES[family]


def label(name: str, epsilon: float | None = None) -> str:
    """An arm's name as a figure or table writes it."""
    return f"{name}, ε = {epsilon:.2g}" if epsilon is not None else _NORMS.get(name, name.replace("sigma", "σ"))


def short(name: str, epsilon: float | None = None) -> str:
    """The name that fits beside a point: a penalty is its weight / bound."""
    if epsilon is not None:
        return f"DP-SGD, ε = {epsilon:.2g}"
    for long, brief in (("penalty through sigma ", "σ "), ("penalty through both ", "both "), ("penalty ", "")):
        name = name.replace(long, brief)
    return label(name.replace(", bound ", " / "))


def sweep(result: Result) -> Figure:
    """Corrupted and test accuracy over weight and bound; destroyed cells are hatched, the chosen one is framed."""
    s = result.settings
    by_setting = {tuple(dict(p.changes).values())[:2]: p.name for p in points(s) if p.family == "penalty"}
    with style():
        figure, axes = panels(1, 2, height=1.6 + 0.8 * len(s.weights))
        for ax, group, name, colours in zip(axes[0], ("corrupted", "test"), ("corrupted samples", "test images"),
                                            ("YlOrBr", "Blues"), strict=True):  # fmt: skip
            values = [[measures.accuracy(result, by_setting[w, b], group).mean() for b in s.bounds] for w in s.weights]
            alone = measures.accuracy(result, "BN", group).mean()
            # pale enough for black digits everywhere
            ax.imshow(np.nan_to_num(values), cmap=colours, vmin=0, vmax=max(alone, np.nanmax(values), 0.01) * 2.5,
                      aspect="auto")  # fmt: skip
            for (row, column), value in np.ndenumerate(values):
                arm = by_setting[s.weights[row], s.bounds[column]]
                corner = (column - 0.5, row - 0.5)
                if measures.destroyed(result, arm):
                    box = {"facecolor": "white", "edgecolor": COLOURS["grey"], "hatch": "///", "lw": 0}
                    ax.add_patch(Rectangle(corner, 1, 1, **box))
                    paper = {"facecolor": "white", "edgecolor": "none", "pad": 2}
                    how = f"{value:.2f}" if np.isfinite(value) else "diverged"
                    ax.text(column, row, f"destroyed\n({how})", ha="center", va="center", bbox=paper)
                else:
                    ax.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=13)
                if arm == measures.chosen(result):
                    ax.add_patch(Rectangle((corner[0] + 0.03, corner[1] + 0.03), 0.94, 0.94, fill=False, lw=2.5))
            ax.set_xticks(range(len(s.bounds)), [f"{b:g}" for b in s.bounds])
            ax.set_yticks(range(len(s.weights)), [f"{w:g}" for w in s.weights])
            ax.set(xlabel="bound on γ/σ", title=f"Accuracy, {name}\nBN alone: {alone:.2f}")
            ax.grid(visible=False)
        axes[0][0].set_ylabel("weight of the penalty")
    return figure


def named_arms(result: Result) -> set[str]:
    """The arms that the chapter speaks of: these get labels. Of a family of alternatives that is the strongest."""
    strongest = {p.family: p.name for p in points(result.settings) if p.family in ("weight decay", "dropout")}
    penalties = (measures.chosen(result), measures.attacked_penalty(result), middle(result.settings).name)
    private = map(measures.private_name, result.private)
    return {"BN", "BN, early stopping", *PARTNERS, *strongest.values(), *filter(None, penalties), *private}


def pareto(result: Result) -> Figure:
    """Test accuracy (the price) against what is memorized, above, and what the attack gains, below. Better is down and
    to the right; lines span the seeds, or below the middle half of the models. Destroyed arms are left out; arms that
    the chapter does not name have no label."""
    arms = measures.arms(result)
    family = {arm.name: arm.family for arm in arms}
    with style():
        figure, axes = panels(2 if result.attacks else 1, 1, height=10.4 if result.attacks else 5.4)
        named = named_arms(result)
        shown = [(arm.name, arm.accuracy["test"], arm.accuracy["corrupted"],
                  short(arm.name, arm.epsilon) if arm.name in named else "")
                 for arm in arms if not arm.destroyed]  # fmt: skip
        upper = _scatter(axes[0][0], shown, (0, 100), family, measures.chosen(result))
        axes[0][0].set(ylabel="accuracy on corrupted samples", xlabel="accuracy on test images")
        axes[0][0].set_title("Memorization and its price (best: bottom right)")
        if result.attacks:
            shown = [(a.name, a.test, a.auc, short(a.name)) for a in measures.attacked_arms(result)]
            lower = _scatter(axes[1][0], shown, (25, 75), family, measures.chosen(result))
            axes[1][0].set(ylabel="AUC of LiRA over outliers", xlabel="accuracy on test images, shadow models")
            axes[1][0].set_title("Leakage and its price (best: bottom right)")
            labels.place(axes[1][0], *lower)
        labels.place(axes[0][0], *upper)
    return figure


def _scatter(ax, rows: list[tuple], span: tuple, family: dict[str, str], chosen: str | None) -> tuple[list, list, list]:
    """One marker a row of (name, x [n], y [n], text), lines over the percentiles `span`, a ring around the chosen arm.
    Returns what `labels.place` takes, for when all axes are final."""
    colours = []
    for name, x, y, _ in rows:
        colour, marker = look(family[name], name)
        colours.append(colour)
        ax.plot(np.percentile(x, span), [y.mean()] * 2, color=colour, lw=1, alpha=0.4)
        ax.plot([x.mean()] * 2, np.percentile(y, span), color=colour, lw=1, alpha=0.4)
        fill = "white" if family[name] == "early stopping" else colour
        ax.plot(x.mean(), y.mean(), marker, ms=13 if marker == "*" else 8, color=colour, mfc=fill)
        if name == chosen:
            ax.plot(x.mean(), y.mean(), "o", ms=15, color=colour, mfc="none")
    ax.margins(x=0.08, y=0.1)
    return [(x.mean(), y.mean()) for _, x, y, _ in rows], [row[3] for row in rows], colours


def acts(result: Result) -> Figure:
    """Mean |gamma|, sigma and weight norm of each BN layer, from the start (hollow) to the end (full) of training."""
    found = measures.acts(result)
    with style():
        figure, axes = panels(1, 3, height=4.4)
        for ax, (what, title) in zip(axes[0], measures.PARTS.items(), strict=True):
            for i, layers in enumerate(found.values()):
                for j, (name, ends) in enumerate(layers.items()):
                    start, end = ends[what]
                    x, mark = i + (j + 0.5) / len(layers) * 0.7 - 0.35, _LAYER_MARKS[j % len(_LAYER_MARKS)]
                    colour = COLOURS["batch"] if not i else _FAMILIES["penalty"][0]
                    if np.isfinite([start, end]).all():
                        ax.plot([x, x], [start, end], color=colour, lw=1.5)
                        ax.plot(x, start, mark, ms=7, color=colour, mfc="white")
                        ax.plot(x, end, mark, ms=7, color=colour, label=name if not i else None)
            ax.set_xticks(range(len(found)), [way.replace("through ", "through\n") for way in found])
            ax.set_title(title)
            ax.set_ylim(bottom=0)
            ax.grid(axis="x", visible=False)
        handles, names = axes[0][0].get_legend_handles_labels()
        figure.legend(handles, names, title="BN layer", fontsize=9, ncols=8, loc="outside lower center")
    return figure


def equal_fit(result: Result) -> Figure:
    """Corrupted accuracy of BN (circle) and of each arm where both fit the clean training images equally well; the arms
    by what they save, the accuracy in common at the right. Left of the dotted line is no more than guessing reaches."""
    rows = [(p, measures.equal_fit(result, p.name)) for p in points(result.settings)[1:]]
    rows = [(p, control) for p, control in rows if control and not measures.destroyed(result, p.name)]
    rows.sort(key=lambda row: (row[1].ours["corrupted"] - row[1].theirs["corrupted"]).mean())
    with style():
        figure, axes = panels(1, 1, height=1.4 + 0.33 * max(len(rows), 3))
        ax = axes[0][0]
        for y, (p, control) in enumerate(rows):
            colour, marker = look(p.family, p.name)
            ours, theirs = (side["corrupted"] for side in (control.ours, control.theirs))
            ax.plot([ours.mean(), theirs.mean()], [y, y], color=COLOURS["grey"], lw=1)
            for values, dot, paint in ((ours, "o", COLOURS["batch"]), (theirs, marker, colour)):
                ax.plot(values, [y] * len(values), dot, ms=3.5, color=paint, alpha=0.45, mew=0)
                ax.plot(values.mean(), y, dot, ms=8, color=paint)
            ax.text(1.01, y, f"{control.level:g}", transform=ax.get_yaxis_transform(), va="center", fontsize=10)
        ax.text(
            1.01, len(rows) - 0.3, "at clean\naccuracy", transform=ax.get_yaxis_transform(), va="bottom", fontsize=9
        )
        ax.axvline(measures.chance(result), color=COLOURS["grey"], ls=":", lw=1.2)
        ax.set_yticks(range(len(rows)), [label(p.name) for p, _ in rows])
        ax.set_xlim(left=0)
        ax.set(xlabel="accuracy on corrupted samples", title="Equal fit: BN (blue circle) and each arm")
        ax.grid(axis="y", visible=False)
    return figure
