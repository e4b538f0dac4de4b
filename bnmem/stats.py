"""Small statistics in float64: t intervals, and reading curves at a level."""

from dataclasses import dataclass

import numpy as np
from scipy import stats

from bnmem.digits import significant
from bnmem.errors import InputError


@dataclass(frozen=True)
class Interval:
    """A mean with its two-sided interval; n values entered it. low and high are NaN for n = 1."""

    mean: float
    low: float
    high: float
    n: int


def t_interval(values, level: float = 0.95) -> Interval:
    """Student's t interval of the mean of independent values [n], n - 1 degrees of freedom."""
    values = np.asarray(values, np.float64)
    if values.ndim != 1 or not len(values) or not np.isfinite(values).all():
        raise InputError(f"an interval needs one or more finite numbers, not {values.tolist()}")
    mean, n = float(values.mean()), len(values)
    if n == 1:
        return Interval(mean, np.nan, np.nan, 1)
    half = float(stats.t.ppf(0.5 + level / 2, n - 1) * values.std(ddof=1) / np.sqrt(n))
    return Interval(mean, mean - half, mean + half, n)


def first_crossing(x, y, level: float) -> float:
    """The first x at which the broken line through (x, y) [n] reaches `level` from below; NaN where it never does."""
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    reached = np.flatnonzero(y >= level)
    if not len(reached):
        return float("nan")
    i = reached[0]
    if i == 0:
        return float(x[0])
    return float(x[i - 1] + (x[i] - x[i - 1]) * (level - y[i - 1]) / (y[i] - y[i - 1]))


def value_at(x, y, at: float) -> float:
    """The broken line through (x, y) [n] read at `at`; NaN outside its range, x ascending."""
    return float(np.interp(at, x, y, left=np.nan, right=np.nan))


def interval(i: Interval, digits: int = 2, sign: str = "+") -> str:
    """ "+0.24 [+0.10, +0.38]"; the mean alone where one value gives no interval. sign "" leaves the plus out."""
    mean, low, high = (f"{value:{sign}.{digits}f}" for value in (i.mean, i.low, i.high))
    return f"{mean} (one value)" if i.n == 1 else f"{mean} [{low}, {high}]"


def factor(i: Interval, digits: int = 3) -> str:
    """A log2 interval as a factor with so many significant digits: "1.90 [1.52, 2.40]"."""
    mean, low, high = (significant(2**value, digits) for value in (i.mean, i.low, i.high))
    return f"{mean} (one value)" if i.n == 1 else f"{mean} [{low}, {high}]"


def of_cell(cell) -> Interval:
    """A scorecard's cell (effect, low, high) as an interval; n is 1 where it has no bounds, else unknown and 2."""
    return Interval(cell.effect, cell.low, cell.high, 1 if np.isnan(cell.low) else 2)
