"""Numbers as texts."""

import pytest

from bnmem.digits import percent, power_of_ten, significant


@pytest.mark.parametrize(
    "value, digits, text",
    [
        (1.2, 3, "1.20"),
        (1.0, 3, "1.00"),
        (0.966, 3, "0.966"),
        (-0.0038, 2, "-0.0038"),
        (130.4, 2, "130"),
        (0.0999, 2, "0.10"),
        (99.9, 2, "100"),
        (12345, 3, "12300"),
        (4.2e-4, 1, "0.0004"),
        (0, 2, "0.0"),
        (float("nan"), 2, "-"),
        (float("inf"), 2, "-"),
    ],
)
def test_significant_digits_keep_their_zeros_and_have_no_exponent(value, digits, text):
    assert significant(value, digits) == text


def test_percents_and_powers_of_ten_are_written_as_in_the_prose():
    assert (percent(0.333), percent(0.0556, 1), percent(1)) == ("33 %", "5.6 %", "100 %")
    assert (power_of_ten(-12), power_of_ten(3)) == ("10⁻¹²", "10³")
