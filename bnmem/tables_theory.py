"""The tables and the quoted numbers of the theory's notebooks, as texts."""

import numpy as np

from bnmem import growth, toy
from bnmem.growth import ANGLES, MarginGrowth
from bnmem.plots_theory import ARM_LABELS
from bnmem.toy import Run, ToyModel


def decided(counts: tuple[int, int] | None) -> str:
    """What `bnmem.theory.decide` found, in a sentence."""
    if counts is None:
        return "The identities were not decided anew in this run."
    return f"sympy decided anew: {counts[0]} of the {counts[1]} equations below hold identically (B = 3, d = 2)."


def damping_rows(settings: MarginGrowth) -> list[dict[str, str]]:
    """Exact over fixed growth at ``settings.distance``: a row a direction, a column a batch size."""
    sizes = (8, 32, 128)
    sweep = {"draws": settings.draws, "seed": settings.seed, "eps": settings.eps}
    ratios = growth.over_fixed_sweep([settings.distance], ANGLES, sizes, **sweep)[:, :, 0]
    return [
        {"angle to w": f"{angle}°"} | {f"B = {size}": f"{ratios[row, at]:.2g}" for row, size in enumerate(sizes)}
        for at, angle in enumerate(ANGLES)
    ]


def equal_fit_rows(settings: ToyModel, level: float = 1.0) -> list[dict[str, str]]:
    """Each arm when its typical samples reach a median margin of ``level``: mean and range over seeds."""
    rows = []
    for arm, values in toy.at_equal_fit(settings, level, settings.repeats).items():
        steps, outliers = values[~np.isnan(values[:, 0])].T
        found = f"{outliers.mean():.2f} ({outliers.min():.2f} to {outliers.max():.2f})" if len(steps) else "not reached"
        when = f"{steps.mean():.0f} ({steps.min():.0f} to {steps.max():.0f})" if len(steps) else "not reached"
        rows.append({"arm": ARM_LABELS[arm], "step": when, "outliers' median margin then": found})
    return rows


def margin_values(settings: MarginGrowth) -> dict[str, str]:
    """The numbers that the theorem page and its notebook quote, as texts."""
    sweep = {"draws": settings.draws, "seed": settings.seed, "eps": settings.eps}
    ratios = growth.over_fixed_sweep([settings.distance], [45], (8, 32, 128), **sweep).ravel()
    highest = growth.elongated(settings)[1].max(0)
    values = {f"mg-far-{size}": f"{ratio:.2g}" for size, ratio in zip((8, 32, 128), ratios, strict=True)}
    return values | {
        "mg-distance": f"{settings.distance:g}",
        "mg-narrow": f"{highest[0]:.0f}",
        "mg-origin": f"{highest[2]:.0f}",
    }


def toy_values(runs: dict[str, Run], gap: float) -> dict[str, str]:
    """The numbers that the prose quotes of the toy model, as texts; ``gap`` is `bnmem.toy.equal_function_gap`."""
    exact, values = runs["exact"], {}
    for arm in ("none", "fixed"):
        values[f"toy-{arm}-off"] = _below(np.abs(runs[arm].alone - runs[arm].alone_theorem).max())
    for name, ratio in zip(
        ("outlier", "typical"), exact.split(growth.over(exact.alone_small, exact.alone_paper)), strict=True
    ):
        values[f"toy-{name}-over-fixed"] = f"{np.nanmedian(ratio):.2f}"
    off = np.abs(growth.over(exact.alone_small, exact.alone_theorem) - 1)
    values["toy-exact-off"] = f"{np.nanpercentile(off, 95):.0e}"
    values["toy-gap"] = _below(gap)
    values |= {"toy-ratio-start": f"{exact.ratio[0]:.2f}", "toy-ratio-low": f"{exact.ratio.min():.2f}"}
    values |= {"toy-ratio-end": f"{exact.ratio[-1]:.2f}", "toy-ratio-low-step": f"{exact.ratio.argmin()}"}
    outliers, _ = exact.split(exact.margin)
    turned = np.flatnonzero(np.median(outliers, axis=1) > 0)
    values["toy-turned"] = f"{turned[0]}" if len(turned) else "never"
    until = turned[0] if len(turned) else len(exact.pull)
    given = (
        exact.settings.learning_rate * exact.v[:-1] * np.array([exact.pull_outliers, exact.pull - exact.pull_outliers])
    )
    for who, parts in zip(("outliers", "typical"), given, strict=True):
        values |= {
            f"toy-{who}-before": f"{parts[:until].sum():+.2f}",
            f"toy-{who}-after": f"{parts[until:].sum():+.2f}",
        }
    own, total = (exact.split(part)[0].sum() for part in (exact.growth_own, exact.growth_theorem))
    return values | {"toy-own": f"{own:.1f}", "toy-total": f"{total:.1f}"}


def _below(value: float) -> str:
    """The first of 1e-12, 1e-9, ... above a rounding error, whose own digits differ from processor to processor."""
    return next((f"{bound:.0e}" for bound in (1e-12, 1e-9, 1e-6, 1e-3, 1.0) if value < bound), f"{value:.0e}")
