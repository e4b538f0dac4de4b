"""The two ways in which bnmem says no. Both carry one line that ends with the way out."""


class InputError(ValueError):
    """What the caller gave cannot be used: an unknown name, a wrong type, a value out of range, a damaged file."""


class Diverged(ArithmeticError):
    """A training whose loss became NaN, infinite or absurdly large; the message names settings, epoch and batch."""
