"""What one trained model proves about its privacy: a lower bound on epsilon from guesses about canaries.

Put canaries into the pool, each with a coin flip of its own: heads, it is trained on; tails, it is absent. Train once.
Score the canaries, guess the r clearest ones, count the right guesses. A model that is epsilon-differentially private
lets nobody guess better than r coins with success probability e^eps / (1 + e^eps), so many right guesses refute a
small epsilon.

The number r must be fixed before the scores are seen: the best of several r is no test. The flips must be independent:
rows of ``masks.paired`` are balanced by class and group, hence no coin flips. The model is not private by design here;
the bound says how large its epsilon is at least, and ``ceiling`` how large a bound r guesses could ever give.
Source: Steinke, Nasr and Jagielski 2023, Algorithm 1 and the p-value of pure differential privacy (delta = 0).
"""

from typing import NamedTuple

import numpy as np
from scipy import special, stats

from bnmem.errors import InputError


class Audit(NamedTuple):
    """``epsilon``: the lower bound, in nats, that holds with ``confidence``; ``ceiling``: what all right would give.

    ``guesses`` r, of them ``correct`` right, out of ``canaries``; ``p_at_zero``: how likely so many right guesses are
    without any leak. An epsilon of 0 means that nothing was shown, not that nothing leaks.
    """

    epsilon: float
    ceiling: float
    confidence: float
    guesses: int
    correct: int
    canaries: int
    p_at_zero: float


def coins(canaries: int, *, seed) -> np.ndarray:
    """Independent fair flips, booleans [canaries], True = train on it; ``seed`` as for ``numpy.random.default_rng``."""
    _whole("canaries", canaries, 1)
    return np.random.default_rng(seed).random(canaries) < 0.5


def guess(scores, guesses: int, *, seed) -> np.ndarray:
    """IN for the guesses/2 highest scores, OUT for the guesses/2 lowest, no guess between.

    Ties are broken at random: by position, canaries that happen to be sorted by their coin would be guessed right.

    Parameters: ``scores`` reals [canaries], larger = member; ``guesses`` even, 2..canaries; ``seed`` for ties.
    Returns: int8 [canaries], +1 IN, -1 OUT, 0 no guess.
    Raises: InputError on NaN or infinity, wrong shapes or values.
    """
    scores = np.asarray(scores)
    if scores.ndim != 1 or scores.dtype.kind not in "fiu" or not scores.size or not np.isfinite(scores).all():
        raise InputError(
            f"scores must be finite reals [canaries], not {scores.dtype} {list(scores.shape)}: pass one number a canary"
        )
    _whole("guesses", guesses, 2, scores.size)
    if guesses % 2:
        raise InputError(f"guesses must be even, not {guesses}: half of them say IN, half OUT")
    shuffled = np.random.default_rng(seed).permutation(scores.size)
    order = shuffled[np.argsort(scores[shuffled], kind="stable")]
    out = np.zeros(scores.size, dtype=np.int8)
    out[order[: guesses // 2]] = -1
    out[order[scores.size - guesses // 2 :]] = 1
    return out


def p_value(correct: int, guesses: int, epsilon: float) -> float:
    """P[Bin(guesses, e^eps / (1 + e^eps)) >= correct]: at most this likely if the training is epsilon-private."""
    _whole("guesses", guesses, 1)
    _whole("correct", correct, 0, guesses)
    if not epsilon >= 0:
        raise InputError(f"epsilon must be >= 0, not {epsilon!r}: it is a privacy level in nats")
    return float(stats.binom.sf(correct - 1, guesses, special.expit(epsilon)))


def epsilon_lower_bound(correct: int, guesses: int, *, confidence: float = 0.95) -> float:
    """The largest epsilon that is refuted: p_value(correct, guesses, epsilon) <= 1 - confidence; 0 if none is.

    Exact: the p-value is an incomplete beta function of the success probability, and that is inverted.

    Parameters: ``correct`` 0..guesses; ``guesses`` at least 1; ``confidence`` a fraction.
    Returns: epsilon in nats, at least 0.
    Raises: InputError on values out of range.
    """
    _whole("guesses", guesses, 1)
    _whole("correct", correct, 0, guesses)
    if not (np.isscalar(confidence) and 0 < confidence < 1):
        raise InputError(f"confidence must be a fraction between 0 and 1, not {confidence!r}: write 95 % as 0.95")
    if correct == 0:
        return 0.0
    success = special.betaincinv(correct, guesses - correct + 1, 1 - confidence)
    return max(0.0, float(special.logit(success)))


def ceiling(guesses: int, *, confidence: float = 0.95) -> float:
    """The bound if every guess is right: no audit with so few guesses can show more, whatever the model leaks."""
    return epsilon_lower_bound(guesses, guesses, confidence=confidence)


def audit(scores, flips, *, guesses: int, confidence: float = 0.95, seed) -> Audit:
    """Guess, count, and bound epsilon from one training run.

    Parameters: ``scores`` reals [canaries] of the one model, larger = member; ``flips`` booleans [canaries], the coins
    of ``coins`` that decided what was trained on; ``guesses`` r, even, fixed beforehand; ``confidence`` a fraction;
    ``seed`` for ties.
    Returns: Audit.
    Raises: InputError on wrong shapes, types or values.
    """
    flips = np.asarray(flips)
    guessed = guess(scores, guesses, seed=seed)
    if flips.shape != guessed.shape or flips.dtype != np.bool_:
        raise InputError(
            f"flips must be booleans {list(guessed.shape)}, not {flips.dtype} {list(flips.shape)}: pass the drawn coins"
        )
    correct = int(((guessed == 1) & flips).sum() + ((guessed == -1) & ~flips).sum())
    return Audit(
        epsilon=epsilon_lower_bound(correct, guesses, confidence=confidence),
        ceiling=ceiling(guesses, confidence=confidence),
        confidence=float(confidence),
        guesses=int(guesses),
        correct=correct,
        canaries=guessed.size,
        p_at_zero=p_value(correct, guesses, 0.0),
    )


def _whole(name: str, value, low: int, high: int | None = None) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < low or (high and value > high):
        bound = f"{low} or more" if high is None else f"{low}..{high}"
        raise InputError(f"{name} must be an integer, {bound}, not {value!r}: fix it before the audit")
