"""Figures and tables of an audit."""

import numpy as np
from matplotlib.ticker import LogFormatter

from bnmem.audit import Audit
from bnmem.digits import percent, significant
from bnmem.plots import COLOURS, Figure, panels, style
from bnmem.ratio import LayerRatio

MARKED = 10


def ratio(audit: Audit) -> Figure:
    """gamma/sigma of every layer, from the input down: mean and the middle 90 % of its channels, and sigma of batches
    where there were any."""
    layers = audit.ratio
    height = float(np.clip(0.24 * len(layers) + 1.4, 2.6, 16))
    with style():
        figure, axes = panels(1, 1, height=height)
        ax = axes[0][0]
        drawn = [(layers, 0.0, "typical", "o", "running statistics")]
        if audit.in_batches:
            drawn.append((audit.in_batches, 0.25, "outlier", "D", "statistics of your samples"))
        for found, shift, colour, marker, label in drawn:
            known = [(i, layer.ratio) for i, layer in enumerate(found) if _known(layer)]
            at = np.array([i for i, _ in known]) + shift
            low, high = (np.array([np.quantile(r, q) for _, r in known]) for q in (0.05, 0.95))
            ax.hlines(at, low, high, color=COLOURS[colour], lw=2, alpha=0.5)
            ax.plot([r.mean() for _, r in known], at, marker, color=COLOURS[colour], ms=5, label=label)
        ax.axvline(1, color=COLOURS["grey"], lw=1, ls=":")
        ax.set_yticks(range(len(layers)), [layer.name for layer in layers], fontsize=9 if len(layers) < 60 else 6)
        ax.set(xlabel="|γ|/σ: mean over channels, and their middle 90 %", ylim=(len(layers) - 0.4, -0.6), xscale="log")
        ax.xaxis.set_major_formatter(LogFormatter())
        ax.xaxis.set_minor_formatter(LogFormatter(minor_thresholds=(1.5, 0.5)))
        ax.set_title(f"γ/σ, layer by layer: {audit.name}")
        ax.legend(loc="best", fontsize=9)
    return figure


def influence(audit: Audit) -> Figure:
    """Left: the gradient norms of all samples. Right: norm against margin; wrong answers apart, the largest marked."""
    samples = audit.samples
    logs = np.log10(np.maximum(samples.norm, 1e-12))
    wrong = samples.label != samples.predicted
    with style():
        figure, axes = panels(1, 2, height=4.2)
        left, right = axes[0]
        bins = np.linspace(logs.min() - 0.1, logs.max() + 0.1, 40)
        for rows_, colour, marker, label in (
            (~wrong, "typical", "o", "right"),
            (wrong, "outlier", "X", "wrong, by its label"),
        ):
            left.hist(logs[rows_], bins=bins, color=COLOURS[colour], alpha=0.35)
            left.hist(logs[rows_], bins=bins, color=COLOURS[colour], histtype="step", lw=1.8, label=label)
            right.plot(samples.phi[rows_], logs[rows_], marker, color=COLOURS[colour], ms=4, alpha=0.6, mew=0)
        top = samples.order[:MARKED]
        right.plot(samples.phi[top], logs[top], "o", mfc="none", mec="black", ms=9, label=f"largest {len(top)}")
        left.set(xlabel="log10 of the gradient norm", ylabel="samples", title="who pulls on the weights")
        right.set(
            xlabel="margin φ of the given label", ylabel="log10 of the gradient norm", title="and how it is fitted"
        )
        left.legend(loc="best", fontsize=9)
        right.legend(loc="best", fontsize=9)
    return figure


def gallery(audit: Audit, images: np.ndarray, classes: tuple[str, ...], columns: int = 10) -> Figure:
    """The samples with the largest norms, above, and with the smallest, below. images uint8 [n, H, W(, 3)]."""
    order = audit.samples.order
    with style():
        figure, axes = panels(2, columns, height=3.6)
        for line, chosen, name in ((axes[0], order, "largest"), (axes[1], order[::-1], "smallest")):
            for ax, i in zip(line, chosen, strict=False):
                ax.imshow(images[i], cmap="gray_r")
                label, predicted = (classes[row[i]] for row in (audit.samples.label, audit.samples.predicted))
                ax.set_title(label if label == predicted else f"{label}\n({predicted}?)", fontsize=8, loc="center")
                ax.set_xlabel(significant(audit.samples.norm[i], 3), fontsize=9)
            for ax in line:
                ax.set(xticks=[], yticks=[])
                ax.grid(visible=False)
                ax.spines[:].set_visible(False)
            line[0].set_ylabel(name, fontsize=10)
    return figure


def ratio_rows(audit: Audit) -> list[dict[str, str]]:
    """Table: gamma/sigma of each layer, by running statistics, and its mean by those of the samples.

    Narrow enough for a page; ratio.csv has every number of `bnmem.ratio.rows`.
    """
    table = []
    for i, layer in enumerate(audit.ratio):
        known = bool(np.isfinite(layer.ratio).all())
        low, high = np.quantile(layer.ratio, (0.05, 0.95))
        row = {"layer": layer.name, "channels": str(len(layer.ratio))}
        row["mean γ/σ"] = significant(layer.ratio.mean(), 3) if known else "unknown"
        row["5 to 95 %"] = f"{significant(low, 3)} to {significant(high, 3)}" if known else "unknown"
        row["above 1"] = percent((layer.ratio > 1).mean()) if known else "unknown"
        row["scale-free"] = "-" if layer.scale_free is None else significant(layer.scale_free.mean(), 3)
        if audit.in_batches:
            row["mean in batches"] = significant(audit.in_batches[i].ratio.mean(), 3)
        table.append(row | ({"note": layer.note} if any(layer.note for layer in audit.ratio) else {}))
    return table


def sample_rows(audit: Audit, most: int = MARKED, classes: tuple[str, ...] = ()) -> list[dict[str, str]]:
    """Table: the samples with the largest gradient norms."""
    s, table = audit.samples, []
    named = dict(enumerate(classes))
    for rank, i in enumerate(s.order[:most], 1):
        label, predicted = (str(named.get(int(v[i]), v[i])) for v in (s.label, s.predicted))
        row = {"rank": str(rank), "sample": s.names[i], "label": label, "predicted": predicted}
        values = {"norm": significant(s.norm[i], 3), "loss": f"{s.loss[i]:.2f}", "margin": f"{s.phi[i]:.2f}"}
        table.append(row | values)
    return table


def _known(layer: LayerRatio) -> bool:
    return bool(np.isfinite(layer.ratio).all() and (layer.ratio > 0).any())
