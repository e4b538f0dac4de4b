"""Small statistics against closed forms, SciPy and simulation."""

import numpy as np
import pytest
from scipy import stats as scipy_stats

from bnmem.errors import InputError
from bnmem.rules import Cell
from bnmem.stats import Interval, factor, first_crossing, interval, of_cell, t_interval, value_at


def test_t_interval_is_scipys_and_covers_at_its_level_with_three_values():
    rng = np.random.default_rng(0)
    draws = rng.normal(2.0, 3.0, (4000, 3))
    intervals = [t_interval(d) for d in draws]
    low, high = scipy_stats.ttest_1samp(draws[0], 0).confidence_interval(0.95)
    assert intervals[0].low == pytest.approx(low) and intervals[0].high == pytest.approx(high)
    cover = np.mean([i.low <= 2.0 <= i.high for i in intervals])
    assert abs(cover - 0.95) < 4 * np.sqrt(0.95 * 0.05 / 4000)


def test_one_value_has_no_interval_and_says_so():
    one = t_interval([0.25])
    assert np.isnan(one.low) and interval(one) == "+0.25 (one value)"
    assert interval(t_interval([0.1, 0.3])) == "+0.20 [-1.07, +1.47]"


@pytest.mark.parametrize("values", [[], [np.nan, 1.0], [[1.0, 2.0]], [np.inf]])
def test_bad_values_are_refused(values):
    with pytest.raises(InputError, match="finite numbers"):
        t_interval(values)


def test_first_crossing_interpolates_and_is_nan_when_never():
    x, y = [0, 1, 2, 4], [0.1, 0.3, 0.2, 0.8]
    assert first_crossing(x, y, 0.2) == pytest.approx(0.5)
    assert first_crossing(x, y, 0.5) == pytest.approx(3.0)
    assert first_crossing(x, y, 0.1) == 0.0
    assert np.isnan(first_crossing(x, y, 0.9))


def test_value_at_reads_the_line_and_is_nan_outside():
    assert value_at([0, 2], [1.0, 3.0], 1) == 2.0
    assert np.isnan(value_at([0, 2], [1.0, 3.0], 2.1))


def test_log_ratios_are_shown_as_factors():
    assert factor(Interval(1.0, 0.0, 2.0, 3)) == "2.00 [1.00, 4.00]" and factor(Interval(-1.0, -2.0, 0.0, 3), 2) == (
        "0.50 [0.25, 1.0]"
    )
    assert factor(of_cell(Cell("m", "w", 10.0, np.nan, np.nan))) == "1020 (one value)"
    assert interval(of_cell(Cell("m", "w", 0.1, 0.0, 0.2))) == "+0.10 [+0.00, +0.20]"
