"""The control at equal fit: paired trainings read where all of them reach one accuracy on clean training images."""

from collections.abc import Callable, Sequence

import numpy as np

from bnmem.records import Record
from bnmem.stats import first_crossing

LEVELS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.925, 0.95, 0.975, 0.99)


def at_equal_fit(
    arms: Sequence[Sequence[Record]], read: Callable[[Record, float], np.ndarray | float]
) -> tuple[float, np.ndarray] | None:
    """What `read(training, epoch)` gives where the accuracy on clean training images first reaches a common level.

    Returns (level, float64 [arms, seeds, *shape of a reading]) at the highest of LEVELS at which every reading is
    finite; a reading at an epoch that a training never reaches (NaN) must be NaN. None when there is no such level.
    """
    for level in reversed(LEVELS):
        values = np.array([
            [read(r, first_crossing(r.numbers["epoch"], r.numbers["accuracy"]["clean"], level)) for r in rows]
            for rows in arms
        ], np.float64)  # fmt: skip
        if np.isfinite(values).all():
            return level, values
    return None
