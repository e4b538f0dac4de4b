"""Numbers as texts for tables and prose: significant digits without exponents, percents, powers of ten."""

import math


def significant(value: float, digits: int = 2) -> str:
    """ "1.20", "0.0040", "130": so many significant digits, zeros at the end kept, no exponent; "-" for no number."""
    if not math.isfinite(value):
        return "-"
    if value == 0:
        return f"{0:.{digits - 1}f}"
    rounded = float(f"{value:.{digits - 1}e}")
    return f"{rounded:.{max(0, digits - 1 - math.floor(math.log10(abs(rounded))))}f}"


def percent(share: float, digits: int = 0) -> str:
    """A fraction as "33 %", in the way of the prose."""
    return f"{100 * share:.{digits}f} %"


def power_of_ten(exponent: int) -> str:
    """ "10⁻¹²"."""
    return "10" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
