"""The tables and the quoted numbers of the theory's notebooks, as texts."""

import numpy as np

from bnmem import growth
from bnmem.digits import power_of_ten, significant
from bnmem.growth import ANGLES, MarginGrowth
from bnmem.plots_theory import ARM_LABELS
from bnmem.toy import Run


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
        {"angle to w": f"{angle}°"} | {f"B = {size}": significant(ratios[row, at]) for row, size in enumerate(sizes)}
        for at, angle in enumerate(ANGLES)
    ]


def equal_fit_rows(fit: dict[str, np.ndarray]) -> list[dict[str, str]]:
    """Each arm at equal fit, as `bnmem.toy.at_equal_fit` finds it: mean and range over seeds."""
    return [
        {"arm": ARM_LABELS[arm], "step": _range(steps, 0), "outliers' median margin then": _range(outliers, 2)}
        for arm, (steps, outliers) in ((arm, values.T) for arm, values in fit.items())
    ]


def equal_fit_values(fit: dict[str, np.ndarray]) -> dict[str, str]:
    """The same as the prose quotes it, and in how many seeds the outliers of exact BN are ahead of those without BN."""
    ours, theirs = (fit[arm][:, 1] for arm in ("exact", "none"))
    both = np.isfinite(ours) & np.isfinite(theirs)
    values = {f"toy-fit-{arm}": _range(found[:, 1], 2) for arm, found in fit.items()}
    return values | {"toy-fit-ahead": f"{(ours > theirs)[both].sum()} of {both.sum()}"}


def _range(values: np.ndarray, digits: int) -> str:
    """Mean and range over the seeds that have a value: "-0.14 (-1.41 to 0.67)"."""
    known = values[np.isfinite(values)]
    if not len(known):
        return "not reached"
    return f"{known.mean():.{digits}f} ({known.min():.{digits}f} to {known.max():.{digits}f})"


def margin_values(settings: MarginGrowth) -> dict[str, str]:
    """The numbers that the theorem page and its notebook quote, as texts."""
    sweep = {"draws": settings.draws, "seed": settings.seed, "eps": settings.eps}
    ratios = growth.over_fixed_sweep([settings.distance], [45], (8, 32, 128), **sweep).ravel()
    highest = growth.elongated(settings)[1].max(0)
    values = {f"mg-far-{size}": significant(ratio) for size, ratio in zip((8, 32, 128), ratios, strict=True)}
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
    values["toy-exact-off"] = significant(np.nanpercentile(off, 95), 1)
    values["toy-gap"] = _below(gap)
    values |= {"toy-ratio-start": f"{exact.ratio[0]:.2f}", "toy-ratio-low": f"{exact.ratio.min():.2f}"}
    values |= {"toy-ratio-end": f"{exact.ratio[-1]:.2f}", "toy-ratio-low-step": f"{exact.ratio.argmin()}"}
    outliers, _ = exact.split(exact.margin)
    turned = np.flatnonzero(np.median(outliers, axis=1) > 0)
    values["toy-turned"] = f"{turned[0]}" if len(turned) else "never"
    until = turned[0] if len(turned) else len(exact.pull)
    pulls = np.array([exact.pull_outliers, exact.pull - exact.pull_outliers, exact.pull])
    given = exact.settings.learning_rate * exact.v[:-1] * pulls
    for who, parts in zip(("outliers", "typical", "gamma"), given, strict=True):
        values |= {
            f"toy-{who}-before": f"{parts[:until].sum():+.2f}",
            f"toy-{who}-after": f"{parts[until:].sum():+.2f}",
            f"toy-{who}-all": f"{parts.sum():+.2f}",
        }
    values["toy-outlier-count"] = f"{exact.samples.outlier.sum()} of {len(exact.samples.outlier)}"
    own, total = (exact.split(part)[0].sum() for part in (exact.growth_own, exact.growth_theorem))
    return values | {"toy-own": f"{own:.1f}", "toy-total": f"{total:.1f}"}


def _below(value: float) -> str:
    """The first of 10⁻¹², 10⁻⁹, ... above a rounding error, whose own digits differ from processor to processor."""
    return next((power_of_ten(k) for k in (-12, -9, -6, -3) if value < 10.0**k), significant(value, 1))
