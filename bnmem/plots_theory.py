"""The figures of the theory: exact against fixed statistics, and the toy model."""

import numpy as np

from bnmem import growth, toy
from bnmem.growth import ANGLES, MarginGrowth
from bnmem.plots import COLOURS, Figure, panels, style
from bnmem.toy import Run, ToyModel

ARM_COLOURS = {"exact": COLOURS["exact"], "fixed": COLOURS["fixed"], "none": COLOURS["grey"]}
ARM_LINES = {"exact": "-", "fixed": "-.", "none": "--"}
ARM_LABELS = {"exact": "BN, exact", "fixed": "BN, statistics held", "none": "no BN"}
SHADES = ("#08306b", "#2171b5", "#6baed6", "#E69F00")


def damping(settings: MarginGrowth) -> Figure:
    """Exact over fixed growth of one outlier: against its distance from its batch mates, and against the batch size.

    The mates are drawn from a round Gaussian; medians over ``settings.draws`` batches.
    """
    distances, sizes = np.geomspace(1, 100, 15), 2 ** np.arange(2, 10)
    sweep = {"draws": settings.draws, "seed": settings.seed, "eps": settings.eps}
    left = growth.over_fixed_sweep(distances, ANGLES, [settings.batch_size], **sweep)[0]
    right = growth.over_fixed_sweep([settings.distance], ANGLES, sizes, **sweep)[:, :, 0]
    with style():
        figure, [[far, large]] = panels(1, 2, height=4.2, sharey=True)
        for at, (angle, colour) in enumerate(zip(ANGLES, SHADES, strict=True)):
            far.loglog(distances, left[at], color=colour, label=f"{angle}°")
            large.loglog(sizes, right[:, at], color=colour)
        for ax in (far, large):
            ax.axhline(1, color=COLOURS["grey"], lw=1, ls=":")
            ax.set_ylim(1e-6, 3)
        far.set(xlabel="distance in standard deviations", ylabel="exact / fixed")
        far.set_title(f"farther out, B = {settings.batch_size}")
        large.set(xlabel="batch size B", title=f"larger batches, distance {settings.distance:g}")
        large.set_xscale("log", base=2)
        far.legend(title="angle to w", loc="lower left")
    return figure


def neither_bound(settings: MarginGrowth) -> Figure:
    """Exact over fixed growth against the direction of w, in an elongated cloud."""
    angles, ratios = growth.elongated(settings)
    far = f"{settings.distance:g} deviations out"
    labels = (f"{far}, narrow side", f"{far}, wide side", "near the origin")
    with style():
        figure, [[ax]] = panels(1, 1, width=9, height=4.4)
        for column, (label, colour) in enumerate(zip(labels, (SHADES[0], SHADES[2], SHADES[3]), strict=True)):
            ax.semilogy(angles, ratios[:, column], color=colour, label=label)
        ax.axhline(1, color=COLOURS["grey"], lw=1, ls=":")
        ax.set(xlabel="angle between w and the narrow side, in degrees", ylabel="exact / fixed")
        ax.set(ylim=(1e-6, 3e3), xlim=(-90, 90), xticks=range(-90, 91, 30))
        ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3)
    return figure


def same_factor(settings: ToyModel) -> Figure:
    """Growth of every sample in its own step on w against g ||x||^2, before training; v = 1 in all arms."""
    samples, state = toy.draw(settings)
    whole = growth.look(samples, state, "exact", settings.eps)
    with style():
        figure, [axes] = panels(1, 2, height=4.2, sharex=True, sharey=True)
        for ax, arm in zip(axes, ("fixed", "exact"), strict=True):
            for name, colour in (("none", COLOURS["grey"]), (arm, ARM_COLOURS[arm])):
                view = growth.look(samples, state, name, settings.eps, (whole.mu, whole.sigma))
                grown = growth.alone(samples, view, state, name, 1.0, settings.eps)["alone_small"]
                size = view.g * (samples.x**2).sum(1)
                for mask, marker, kind in ((samples.outlier, "D", "outliers"), (~samples.outlier, ".", "typical")):
                    ax.loglog(size[mask], grown[mask], marker, color=colour, ms=5, label=f"{ARM_LABELS[name]}: {kind}")
            ax.legend(loc="lower right", fontsize=9)
            ax.set(xlabel=r"$g_i \, \|x_i\|^2$", title=ARM_LABELS[arm])
        axes[0].set_ylabel(r"growth of $m_i$ per unit of $\eta$")
    return figure


def margins(runs: dict[str, Run]) -> Figure:
    """Margins over steps, one panel an arm; thin lines are some thirty samples, thick ones medians."""
    with style():
        figure, [axes] = panels(1, len(runs), height=3.8, sharey=True)
        for ax, (arm, run) in zip(axes, runs.items(), strict=True):
            for values, name in zip(run.split(run.margin), ("outlier", "typical"), strict=True):
                ax.plot(values[:, :: max(1, values.shape[1] // 30)], color=COLOURS[name], lw=0.6, alpha=0.3)
                ax.plot(np.median(values, axis=1), color=COLOURS[name], lw=2.5, label=name)
            ax.axhline(0, color=COLOURS["grey"], lw=1, ls=":")
            ax.set(title=ARM_LABELS[arm], xlabel="step")
        axes[0].set_ylabel("margin $m_i$")
        axes[-1].legend(loc="lower right")
        low, high = np.percentile(np.concatenate([run.margin.ravel() for run in runs.values()]), [0.1, 99.9])
        axes[0].set_ylim(low - 0.5, high + 0.5)
    return figure


def measured_over_predicted(runs: dict[str, Run]) -> Figure:
    """Growth of each sample in its own step on w, measured over predicted: dots are medians, bars 5 to 95 %."""
    none, fixed, exact = runs["none"], runs["fixed"], runs["exact"]
    rows = [
        ("no BN, by its theorem", none, none.alone, none.alone_theorem),
        ("statistics held, by its theorem", fixed, fixed.alone, fixed.alone_theorem),
        ("exact, by its theorem, small step", exact, exact.alone_small, exact.alone_theorem),
        ("exact, by its theorem, full step", exact, exact.alone, exact.alone_theorem),
        ("exact, by the fixed form", exact, exact.alone_small, exact.alone_paper),
    ]
    with style():
        figure, [[ax]] = panels(1, 1, width=9, height=4.2)
        for at, (_, run, measured, predicted) in enumerate(reversed(rows)):
            ratio = growth.over(measured, predicted)
            for shift, values, name in zip((0.15, -0.15), run.split(ratio), ("outlier", "typical"), strict=True):
                low, middle, high = (
                    np.nanpercentile(values, [5, 50, 95]) if np.isfinite(values).any() else (np.nan,) * 3
                )
                ax.plot([low, high], [at + shift] * 2, color=COLOURS[name], lw=3, alpha=0.5)
                ax.plot(middle, at + shift, "o", color=COLOURS[name], ms=7, label=name if at == 0 else None)
        ax.axvline(1, color=COLOURS["grey"], lw=1, ls=":")
        ax.set_xscale("log")
        ax.set_yticks(range(len(rows)), [row[0] for row in reversed(rows)])
        ax.set_xlabel("growth of the margin in one step, measured / predicted")
        ax.grid(axis="y", visible=False)
        ax.legend(loc="upper left")
    return figure


def readings(runs: dict[str, Run], scaled: Run) -> Figure:
    """gamma/sigma and |gamma| ||w||/sigma over steps; ``scaled`` is the exact arm from larger first weights."""
    with style():
        figure, [[ratio, free, length]] = panels(1, 3, height=3.8)
        curves = [
            (ARM_LABELS[arm], run, ARM_COLOURS[arm], ARM_LINES[arm]) for arm, run in runs.items() if arm != "none"
        ]
        curves.append(("BN, exact, first w doubled", scaled, SHADES[2], ":"))
        for label, run, colour, line in curves:
            ratio.plot(run.ratio, line, color=colour, label=label)
            free.plot(run.scale_free, line, color=colour)
            length.plot(np.linalg.norm(run.w, axis=1), line, color=colour)
        ratio.axhline(1, color=COLOURS["grey"], lw=1, ls=":")
        ratio.set(title=r"$\gamma/\sigma$")
        free.set(title=r"$|\gamma| \, \|w\| / \sigma$")
        length.set(title=r"$\|w\|$", yscale="log")
        for ax in (ratio, free, length):
            ax.set_xlabel("step")
        ratio.legend(loc="best", fontsize=9)
    return figure


def phases(runs: list[Run], flow: Run) -> Figure:
    """Left: the flow of (m, |gamma|/sigma) and trainings in it. Right: gamma and v of a training and the closed form.

    Args:
        runs: trainings of w and gamma on one outlier, statistics held (`bnmem.toy.portrait`).
        flow: a training with beta = b = 0.
    """
    one, sample = runs[0], int(np.flatnonzero(runs[0].samples.outlier)[0])
    seen = np.array([run.margin[:, sample] for run in runs])
    low, high = 1.1 * max(-seen.min(), 1), 1.1 * max(seen.max(), 1)
    top = 1.15 * max(np.abs(run.ratio).max() for run in runs)
    with style():
        figure, [[field, time]] = panels(1, 2, width=11, height=4.6)
        m, ratio = np.meshgrid(np.linspace(-low, high, 60), np.linspace(0.02 * top, top, 60))
        size = float(np.linalg.norm(one.samples.x[sample]))
        dm, dr = growth.phase_field(m, ratio, 1.0, one.sigma[0], size)
        field.streamplot(m, ratio, dm, dr, color="#bbbbbb", linewidth=0.7, arrowsize=0.8, density=0.9)
        for run in runs:
            x, y = run.margin[:, sample], np.abs(run.ratio)
            field.plot(x, y, color="#222222", lw=1)
            field.plot(np.where(x < 0, x, np.nan), y, color=COLOURS["outlier"], lw=2.5)
            field.plot(np.where(x >= 0, x, np.nan), y, color=COLOURS["typical"], lw=2.5)
            field.plot(x[0], y[0], "o", color="#222222", ms=5)
        field.axvline(0, color=COLOURS["grey"], lw=1, ls=":")
        field.set(xlim=(-low, high), ylim=(0, top), xlabel="margin m of the outlier", ylabel=r"$|\gamma|/\sigma$")
        field.set_title(r"wrong side: $|\gamma|$ shrinks | right side: it grows", fontsize=11)
        kappa = np.concatenate([[0], np.cumsum(flow.settings.learning_rate * flow.pull)])
        for values, closed, name, colour in zip(
            (flow.gamma, flow.v),
            growth.closed_form(flow.gamma[0], flow.v[0], kappa),
            (r"$\gamma$", "$v$"),
            (COLOURS["exact"], COLOURS["fixed"]),
            strict=True,
        ):
            time.plot(values, color=colour, label=f"{name}, trained")
            time.plot(closed, ":", color="#222222", lw=2, label="closed form" if name == "$v$" else None)
        time.set(xlabel="step", title=r"$\gamma$ and $v$, trained and in closed form")
        time.legend(loc="best")
    return figure
